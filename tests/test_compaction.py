"""A compact index answers as before, stays compact, and never has a text embedded again."""

import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from datasette.cli import cli

from datasette_agent_memory.compaction import compact, undo
from datasette_agent_memory.connections import DatabaseError, open_readonly, open_writable
from datasette_agent_memory.doctor import diagnose, mend
from datasette_agent_memory.search import NotAMemoryDatabase, search

NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns billing.\n",
    "memory/2026-01-05.md": "# Monday\n\nThe heron nests by the canal.\n",
    "memory/long.md": "\n".join(f"line {number} of the walrus, and so on" for number in range(3000)) + "\n",
}


@pytest.fixture
def indexed(workspace, index, tiny, database):
    root = workspace(NOTES)
    index(root, tiny, asked={"names": "tiny", "dimensions": None})
    tiny.embedded.clear()
    return root


@pytest.fixture
def cached(rows):
    return lambda: rows("select count(*) from embedding_cache")[0][0]


def answers(database):
    with open_readonly(database) as conn:
        return [
            [
                (hit.id, pytest.approx(hit.score, abs=1e-5))
                for hit in search(conn, question, {"min_score": 0}).hits
            ]
            for question in ("heron", "walrus line 70", "who owns billing")
        ]


def test_it_is_smaller_and_answers_as_before(indexed, database, cached, rows):
    before, vectors = answers(database), dict(rows("select id, embedding from chunks"))
    sizes = compact(database)
    assert sizes.after < sizes.before and cached() == 0
    assert answers(database) == before
    for id, text in rows("select id, embedding from chunks"):
        assert np.allclose(json.loads(text), json.loads(vectors[id]), atol=1e-6)
        assert len(text) < len(vectors[id])
    assert diagnose(database).problems == []
    assert compact(database).after == sizes.after


def test_later_runs_keep_it_and_embed_nothing_twice(indexed, index, tiny, database, cached, rows):
    compact(database)
    # A file that is renamed, one that is gone for a while, and one that is new.
    (indexed / "memory/long.md").rename(indexed / "memory/longer.md")
    text = (indexed / "MEMORY.md").read_text()
    (indexed / "MEMORY.md").unlink()
    index(indexed, tiny)
    assert tiny.embedded == [] and cached() == 1
    (indexed / "MEMORY.md").write_text(text)
    (indexed / "memory/new.md").write_text("An osprey.")
    index(indexed, tiny)
    assert tiny.embedded == ["An osprey."] and cached() == 0
    (osprey,) = rows("select embedding from chunks where path = 'memory/new.md'")
    assert all(len(number.partition(".")[2]) <= 6 for number in osprey[0].strip("[]").split(","))
    assert diagnose(database).problems == []


def test_a_rebuild_embeds_nothing_twice_and_stays_compact(indexed, index, tiny, database, cached):
    compact(database)
    before = answers(database)
    index(indexed, tiny, force=True)
    assert tiny.embedded == [] and cached() == 0 and answers(database) == before


def test_vectors_of_the_model_before_are_kept(indexed, index, tiny, database, cached, rows):
    count = cached()
    compact(database)
    index(indexed)
    assert rows("select distinct embedding from chunks") == [("[]",)] and cached() == count
    index(indexed, tiny)
    assert tiny.embedded == [] and cached() == 0


def test_another_index_takes_over_what_its_chunks_hold(indexed, index, tiny, database, tmp_path):
    compact(database)
    shutil.copyfile(database, tmp_path / "other.db")
    database.unlink()
    index(indexed, tiny, cache_from=[tmp_path / "other.db"])
    assert tiny.embedded == []


def test_undone_all_are_in_the_cache_again(indexed, index, tiny, database, cached, workspace):
    count = cached()
    compact(database)
    undo(database)
    assert cached() == count and diagnose(database).problems == []
    workspace({"memory/new.md": "An osprey."})
    index(indexed, tiny)
    assert cached() == count + 1
    undo(database)
    assert cached() == count + 1


@pytest.mark.needs_sqlite_vec
def test_it_is_mended_from_the_vector_table(indexed, tiny, database, change):
    compact(database)
    before = answers(database)
    change("update chunks set embedding = 'garbage' where rowid = 1")
    assert mend(database).problems == [] and answers(database) == before
    assert tiny.embedded == []


def test_other_indexes_are_left_as_they_are(indexed, database, change, tmp_path):
    change("update meta set value = json_remove(value, '$.generator')", "drop table chunks_fts")
    change("create virtual table chunks_fts using fts5(text, id unindexed)")
    with pytest.raises(DatabaseError):
        compact(database)
    with open_writable(tmp_path / "other.db") as conn:
        conn.execute("create table t (x)")
    with pytest.raises(NotAMemoryDatabase):
        compact(tmp_path / "other.db")


def test_the_command(indexed, database):
    for arguments in ([], ["--undo"]):
        result = CliRunner().invoke(cli, ["agent-memory", "compact", *arguments, "-d", str(database)])
        assert result.exit_code == 0 and " before, " in result.stdout
    result = CliRunner().invoke(cli, ["agent-memory", "compact", "-d", f"{database}x"])
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
