"""Vectors of a chunk's passages: how they are cut, packed, kept and searched."""

import numpy as np
import pytest

from datasette_agent_memory.connections import open_readonly, open_writable
from datasette_agent_memory.passages import pack, split, unpack
from datasette_agent_memory.search import search
from datasette_agent_memory.sql_functions import passage_similarity

FACTS = [
    "The kettle was descaled with vinegar on a rainy afternoon in the small kitchen downstairs.",
    "Our neighbour keeps four bees in a hive that stands behind the old greenhouse by the wall.",
    "Tomatoes want more sun than the balcony has, so they went to the allotment at the canal.",
    "Zanzibar ferries leave at seven, and tickets are sold out on most days of the dry season.",
    "A new chain for the bicycle costs forty euros, and the shop has none of it before Friday.",
]
NOTE = "# Facts\n\n" + "\n".join(f"- {fact}" for fact in FACTS) + "\n"


@pytest.fixture
def finely(tiny, monkeypatch):
    """The tiny provider, with passages."""
    monkeypatch.setattr(type(tiny), "has_passages", True)
    return tiny


def test_a_short_chunk_is_one_passage():
    assert split("One line.\nAnother line.") == []
    assert split("") == []


def test_lines_are_passages_and_short_ones_are_put_together():
    assert split(NOTE) == [f"- {fact}" for fact in FACTS]
    many = "\n".join(f"- item number {n} of the list" for n in range(40))
    passages = split(many)
    assert 1 < len(passages) < 20 and all(len(passage) <= 120 for passage in passages)
    assert " ".join(passages) == many.replace("\n", " ")


def test_a_long_line_is_cut_into_its_sentences():
    assert len(split(" ".join(FACTS))) >= 3
    chinese = "".join(f"第{n}件事情是关于花园和温室的，没有别的内容。" for n in range(20))
    passages = split(chinese)
    assert len(passages) > 5 and "".join(passages).replace(" ", "") == chinese
    assert split("x" * 5000) == [], "a line without a sentence's end is one passage"


def test_packing_keeps_the_cosines():
    generator = np.random.default_rng(1)
    chunk, *passages = (vector / np.linalg.norm(vector) for vector in generator.normal(size=(6, 512)))
    passages = np.array(passages, dtype=np.float32)
    packed = pack(chunk.astype(np.float32), passages)
    mixed = 0.6 * chunk + 0.4 * passages
    expected = max(mixed @ passages[3] / np.linalg.norm(mixed, axis=1))
    assert len(packed) == 5 * 512
    found = passage_similarity(packed, passages[3].tobytes())
    assert found == pytest.approx(expected, abs=0.002)


@pytest.mark.parametrize("packed", [None, b"", b"abc", "text", 7, bytes(512)])
def test_what_holds_no_passages_has_no_similarity(packed):
    vector = np.ones(512, dtype=np.float32).tobytes()
    assert passage_similarity(packed, vector) is None
    assert passage_similarity(b"\1" * 512, b"") is None
    assert unpack(b"\1" * 511, 512) is None


def vector_scores(database, q):
    with open_readonly(database) as conn:
        return {
            hit.path: hit.vector_score for hit in search(conn, q, {"mode": "vector", "min_score": 0}).hits
        }


def test_the_best_passage_counts_for_the_chunk(workspace, index, database, finely):
    root = workspace({"memory/facts.md": NOTE, "memory/other.md": "Nothing of the kind."})
    index(root, finely)
    fine = vector_scores(database, FACTS[3])
    finely.has_passages = False
    try:
        index(root, finely, force=True)
        coarse = vector_scores(database, FACTS[3])
    finally:
        del finely.has_passages
    assert fine["memory/facts.md"] > coarse["memory/facts.md"] + 0.02
    assert fine["memory/other.md"] == pytest.approx(coarse["memory/other.md"], abs=1e-6)


def test_the_rows_are_those_of_the_chunks(workspace, index, rows, finely):
    root = workspace({"memory/facts.md": NOTE, "memory/other.md": "Nothing of the kind."})
    index(root, finely)
    hashes = sorted(rows("select hash from passages"))
    assert hashes == sorted(rows("select distinct hash from chunks"))
    assert sorted(size for (size,) in rows("select length(embeddings) from passages")) == [0, 5 * 32]
    finely.embedded.clear()
    index(root, finely)
    assert finely.embedded == []
    # An edit embeds the passages of what is new alone, and drops those of what is gone.
    (root / "memory/other.md").write_text(NOTE.replace("Zanzibar", "Pemba"))
    index(root, finely)
    assert sum("Zanzibar" in text for text in finely.embedded) == 0
    assert len(rows("select 1 from passages")) == 2
    (root / "memory/facts.md").unlink()
    index(root, finely)
    assert rows("select count(*) from passages") == [(1,)]


def test_a_provider_without_passages_leaves_none(workspace, index, rows, finely):
    root = workspace({"memory/facts.md": NOTE})
    index(root, finely)
    finely.has_passages = False
    try:
        index(root, finely, force=True)
        assert rows("select 1 from sqlite_master where name = 'passages'") == []
    finally:
        del finely.has_passages
    index(root, None, force=True)
    assert rows("select 1 from sqlite_master where name = 'passages'") == []


@pytest.mark.parametrize(
    "damage",
    [
        "delete from passages",
        "drop table passages",
        "update passages set maker = 'other'",
        "insert into passages values ('stale', 'x', x'')",
    ],
)
def test_what_is_missing_or_stale_is_mended(workspace, index, database, rows, finely, damage):
    root = workspace({"memory/facts.md": NOTE})
    index(root, finely)
    before = rows("select hash, embeddings from passages")
    with open_writable(database) as conn:
        conn.execute(damage)
    assert vector_scores(database, FACTS[3]), "a search goes on without"
    index(root, finely)
    assert rows("select hash, embeddings from passages") == before


def test_another_programs_table_of_that_name_is_passed_over(workspace, index, database, finely):
    root = workspace({"memory/facts.md": NOTE})
    index(root, finely)
    with open_writable(database) as conn:
        conn.execute("drop table passages")
        conn.execute("create table passages (hash text, verse text)")
    assert vector_scores(database, FACTS[3])
    (root / "memory/new.md").write_text("Something new.")
    assert index(root, finely).files_added == 1
    assert "memory/new.md" in vector_scores(database, "Something new.")


def test_a_scan_without_sqlite_vec_gives_the_same(workspace, index, database, finely, monkeypatch):
    root = workspace({"memory/facts.md": NOTE, "memory/other.md": "Nothing of the kind."})
    index(root, finely)
    with_vec = vector_scores(database, FACTS[3])
    monkeypatch.setattr("datasette_agent_memory.connections.load_sqlite_vec", lambda conn: False)
    assert vector_scores(database, FACTS[3]) == pytest.approx(with_vec, abs=1e-5)


def test_a_dry_run_makes_none(workspace, index, database, finely):
    index(workspace({"memory/facts.md": NOTE}), finely, dry_run=True)
    assert not database.exists()
