"""Each kind of damage is found by its name, and mended without embedding anything that is known."""

import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import SAMPLE
from datasette.cli import cli

from datasette_agent_memory.connections import DatabaseError, open_readonly, open_writable
from datasette_agent_memory.doctor import diagnose, mend
from datasette_agent_memory.embeddings.base import to_json
from datasette_agent_memory.layouts import OPENCLAW_AGENT, SIX_TABLES
from datasette_agent_memory.locks import embedding_turn
from datasette_agent_memory.search import NotAMemoryDatabase, search

NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns billing.\n",
    "memory/2026-01-05.md": "# Monday\n\nThe heron nests by the canal.\n",
    "memory/notes.md": "---\ntitle: Notes\n---\nThe kingfisher.\n",
    "memory/blank.md": " \n\n\t\n",
    "memory/repeats.md": "# log\n" + "=" * 8000 + "\nafter the rule\n",
    "memory/2026-01-06.md": "# Tuesday\n\nThe stork nests on the roof, and 会議 at noon.\n",
    "memory/long.md": "\n".join(f"line {number} of the walrus, and so on" for number in range(300)) + "\n",
}

#: Rows that are swapped, so that every table has as many as before.
SWAP = (
    "update {table} set {column} = case rowid when 1 then (select {column} from {table} where rowid = 2)"
    " else (select {column} from {table} where rowid = 1) end where rowid in (1, 2)"
)
_SWAPPED_VECTORS = [
    "create table swapped as select id, embedding from chunks_vec order by id limit 2",
    "delete from chunks_vec where id in (select id from swapped)",
    "insert into chunks_vec (id, embedding) select id, (select embedding from swapped other"
    " where other.id <> swapped.id) from swapped",
    "drop table swapped",
]

DAMAGE = {
    "chunks_without_fts": ["delete from chunks_fts where rowid = 1"],
    "fts_of_no_chunk": [
        "insert into chunks_fts (rowid, text, id, path) values (99, 'ghost', 'ghost', 'ghost.md')"
    ],
    "fts_differ": [
        "create table ids as select rowid as place, id from chunks_fts where rowid in (1, 2)",
        "update chunks_fts set id = (select id from ids where place <> chunks_fts.rowid)"
        " where rowid in (1, 2)",
        "drop table ids",
    ],
    "fts_differ-text": ["update chunks_fts set text = 'another text' where rowid = 1"],
    "fts_missing": ["drop table chunks_fts"],
    "fts_damaged": ["update chunks_fts_data set block = x'00' where id > 10"],
    "chunks_without_vec": ["delete from chunks_vec where id = (select id from chunks where rowid = 1)"],
    "vec_of_no_chunk": [
        "insert into chunks_vec (id, embedding) select 'ghost', embedding from chunks_vec limit 1"
    ],
    "vec_differ": _SWAPPED_VECTORS,
    "vec_missing": ["drop table chunks_vec"],
    "vec_damaged": ["update chunks_vec_chunks set validity = zeroblob(128)"],
    "embeddings_damaged": ["update chunks set embedding = 'garbage' where rowid = 1"],
    "embeddings_damaged-width": ["update chunks set embedding = '[1, 2]' where rowid = 1"],
    "embeddings_damaged-zero": [
        "update chunks set embedding = '[' || substr(replace(hex(zeroblob(32)), '00', ',0'), 2) || ']'"
        " where rowid = 1"
    ],
    "embeddings_damaged-nan": [
        "update chunks set embedding = replace(embedding, '[', '[NaN,') where rowid = 1"
    ],
    "embeddings_damaged-blob": ["update chunks set embedding = x'00ff' where rowid = 1"],
    "embeddings_differ": [SWAP.format(table="chunks", column="embedding"), *_SWAPPED_VECTORS],
    "cache_differs": [SWAP.format(table="embedding_cache", column="embedding")],
    "cache_damaged": ["update embedding_cache set embedding = 'garbage' where rowid = 1"],
    "cache_damaged-width": ["update embedding_cache set embedding = '[1, 2]', dims = 2 where rowid = 1"],
    "pending_wrong": ["update meta set value = '7' where key = 'memory_index_pending_v1'"],
    "wrong_hashes": ["update chunks set hash = replace(hash, substr(hash, 1, 4), 'beef') where rowid = 1"],
    "wrong_hashes-text": ["update chunks set text = text || ' more' where rowid = 1"],
    "wrong_ids": ["update chunks set id = 'x' || id where rowid = 1"],
    "odd_rows": ["update chunks set start_line = 'x' where rowid = 1"],
    "odd_rows-path": ["update chunks set path = x'ff' where rowid = 1"],
    "incomplete_files": ["delete from chunks where path = 'memory/long.md' and start_line > 100"],
    "incomplete_files-all": ["delete from chunks where path = 'MEMORY.md'"],
    "chunks_of_no_file": ["delete from files where path = 'MEMORY.md'"],
    "details_of_no_file": ["insert into file_details (path, front_matter) values ('ghost.md', 'x: y')"],
    "incomplete_files-details": ["delete from file_details"],
    "tables_missing-details": ["drop table file_details"],
    "tables_missing": ["drop table files"],
    "tables_missing-chunks": ["drop table chunks"],
    "tables_missing-cache": ["drop table embedding_cache"],
}


@pytest.fixture
def indexed(workspace, index, tiny):
    root = workspace(NOTES)
    index(root, tiny, asked={"names": "tiny", "dimensions": None})
    tiny.embedded.clear()
    return root


@pytest.fixture
def found(database):
    """The codes of what is wrong."""
    return lambda: {problem.code for problem in diagnose(database).problems}


@pytest.fixture
def all_rows(rows):
    """The rows of the index, without the times at which they were written."""

    def read():
        return [
            rows("select id, path, source, start_line, end_line, hash, model, text from chunks order by id"),
            rows("select path, source, hash, size from files order by path"),
            rows("select id, text, path, start_line, end_line, cjk, context from chunks_fts order by id"),
            rows("select hash, dims from embedding_cache order by hash"),
        ]

    return read


@pytest.fixture
def embeddings(rows):
    def read():
        return {id: np.array(json.loads(text)) for id, text in rows("select id, embedding from chunks")}

    return read


def test_nothing_is_wrong_with_a_healthy_index(indexed, found):
    assert found() == set()


@pytest.mark.parametrize("provider", ["none", "embedded"])
def test_nothing_is_wrong_with_the_sample(index, found, database, provider):
    done = CliRunner().invoke(
        cli, ["agent-memory", "index", str(SAMPLE), "-d", str(database), "--provider", provider]
    )
    assert done.exit_code == 0 and found() == set()
    result = CliRunner().invoke(cli, ["agent-memory", "doctor", "--fix", "-d", str(database)])
    assert result.exit_code == 0 and "nothing is wrong" in result.stdout


@pytest.mark.needs_sqlite_vec
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_mended(
    indexed, tiny, change, found, database, all_rows, embeddings, rows, damage
):
    before, vectors = all_rows(), embeddings()
    change(*DAMAGE[damage])
    assert damage.partition("-")[0] in found()

    diagnosis = mend(database)
    assert diagnosis.problems == [] and diagnosis.done
    expected = [] if damage != "tables_missing-cache" else tiny.embedded
    assert tiny.embedded == expected
    assert found() == set()
    after = all_rows()
    if damage.startswith("cache_damaged") or damage == "tables_missing-cache":
        before.pop(), after.pop()
    assert after == before
    assert all(np.allclose(vectors[id], vector, atol=1e-6) for id, vector in embeddings().items())
    assert len(rows("select id from chunks_vec")) == len(vectors)
    assert mend(database).done == []


@pytest.mark.needs_sqlite_vec
def test_vectors_that_are_not_of_unit_length_are_brought_to_it(indexed, embeddings, found, database):
    vectors = embeddings()
    with open_writable(database) as conn:
        for id, vector in vectors.items():
            conn.execute("update chunks set embedding = ? where id = ?", (to_json(vector * 3), id))
    assert "embeddings_not_unit" in found()
    assert mend(database).problems == []
    assert all(np.allclose(vectors[id], vector, atol=1e-6) for id, vector in embeddings().items())


@pytest.mark.needs_sqlite_vec
def test_an_embedding_that_nothing_has_is_left_to_the_next_run(indexed, index, tiny, change, found, database):
    change(
        "delete from embedding_cache",
        "update chunks set embedding = '[]x' where rowid = 1",
        "delete from chunks_vec where id = (select id from chunks where rowid = 1)",
    )
    diagnosis = mend(database)
    assert [problem.code for problem in diagnosis.problems] == ["vectors_pending"]
    assert "index" in diagnosis.problems[0].command and tiny.embedded == []
    index(indexed, tiny, asked={"names": "tiny", "dimensions": None})
    assert len(tiny.embedded) == 1 and found() == set()


@pytest.mark.needs_sqlite_vec
def test_without_the_folder_what_the_tables_hold_is_mended_and_nothing_lost(
    indexed, change, found, database, rows
):
    shutil.rmtree(indexed)
    change("delete from chunks_fts where rowid = 1", "update chunks set text = 'x' where rowid = 2")
    count = rows("select count(*) from chunks")
    diagnosis = mend(database)
    assert {problem.code for problem in diagnosis.problems} == {"wrong_hashes", "incomplete_files"}
    assert rows("select count(*) from chunks") == count == rows("select count(*) from chunks_fts")
    assert any("folder" in line for line in diagnosis.unchecked)


def test_files_on_disk_are_compared(indexed, found, database):
    (indexed / "MEMORY.md").write_text("changed")
    (indexed / "memory/2026-01-05.md").unlink()
    (indexed / "memory/new.md").write_text("new")
    (indexed / "memory/binary.md").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\1\2")
    assert found() == {"files_changed", "files_missing", "files_not_indexed"}
    problems = {problem.code: problem for problem in diagnose(database).problems}
    assert problems["files_not_indexed"].examples == ("memory/new.md",)
    # A new time alone is no change.
    (indexed / "memory/long.md").touch()
    assert len(diagnose(database).problems) == 3


def test_transcripts_are_among_the_files(indexed, index, tiny, found, tmp_path):
    transcripts = tmp_path / "sessions"
    transcripts.mkdir()
    message = {"type": "message", "message": {"role": "user", "content": "Where does the heron nest?"}}
    (transcripts / "a.jsonl").write_text(json.dumps(message) + "\n")
    index(indexed, tiny, sessions=[transcripts])
    assert found() == set()
    with open(transcripts / "a.jsonl", "a") as file:
        file.write(json.dumps(message) + "\n")
    (transcripts / "b.jsonl").write_text(json.dumps(message) + "\n")
    assert found() == {"files_changed", "files_not_indexed"}


@pytest.mark.needs_sqlite_vec
def test_a_mending_that_is_cut_short_changes_nothing(indexed, change, database, all_rows, monkeypatch):
    change("delete from chunks_fts where rowid = 1", "update chunks set embedding = 'x' where rowid = 2")
    before = all_rows()
    monkeypatch.setattr(
        "datasette_agent_memory.writer.IndexWriter._fill_vec", lambda self: (_ for _ in ()).throw(SystemExit)
    )
    with pytest.raises(SystemExit):
        mend(database)
    assert all_rows() == before


@pytest.mark.needs_sqlite_vec
def test_it_waits_for_no_other_run(indexed, change, database):
    change("delete from chunks_fts where rowid = 1")
    with embedding_turn(database), pytest.raises(DatabaseError, match="another run"):
        mend(database)


@pytest.mark.parametrize("layout", [SIX_TABLES, OPENCLAW_AGENT], ids=["six", "agent"])
def test_another_programs_index_is_only_looked_at(workspace, index, change, rows, database, found, layout):
    index(workspace(NOTES))
    names = [(ours, getattr(layout, name)) for name, ours in vars(SIX_TABLES).items() if "_" not in ours]
    change(
        "drop table chunks_fts",
        "update meta set value = json_remove(value, '$.generator')",
        *(f"alter table {ours} rename to {theirs}" for ours, theirs in names if ours != theirs),
        f"create virtual table {layout.chunks_fts} using fts5(text, id unindexed, path unindexed,"
        " source unindexed, model unindexed, start_line unindexed, end_line unindexed)",
        f"insert into {layout.chunks_fts}"
        f" select text, id, path, source, model, start_line, end_line from {layout.chunks} order by id",
    )
    assert found() == set()
    change(f"delete from {layout.chunks_fts} where rowid = 1")
    (problem,) = diagnose(database).problems
    assert problem.code == "chunks_without_fts" and not problem.is_fixable and problem.command is None
    before = rows(f"select * from {layout.chunks_fts}")
    with pytest.raises(DatabaseError, match="another program"):
        mend(database)
    assert rows(f"select * from {layout.chunks_fts}") == before


@pytest.mark.parametrize("fix", [[], ["--fix"]])
@pytest.mark.parametrize(
    "content", [b"no database, of some length " * 99, b"SQLite format 3\0" + b"\1" * 5000]
)
def test_a_file_that_sqlite_cannot_read_is_one_line_that_says_what_to_do(tmp_path, content, fix):
    (tmp_path / "x.db").write_bytes(content)
    result = CliRunner().invoke(cli, ["agent-memory", "doctor", *fix, "-d", str(tmp_path / "x.db")])
    assert result.exit_code == 1 and result.stderr.count("\n") == 1 and "index FOLDER" in result.stderr
    assert (tmp_path / "x.db").read_bytes() == content


def test_pages_that_are_damaged_are_found(indexed, database, found):
    with open_writable(database) as conn:
        conn.execute("pragma wal_checkpoint(truncate)")
        (page,) = conn.execute("select rootpage from sqlite_master where name = 'chunks'").fetchone()
        (size,) = conn.execute("pragma page_size").fetchone()
    with open(database, "r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    result = CliRunner().invoke(cli, ["agent-memory", "doctor", "-d", str(database)])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert "malformed" in result.output or "damaged" in result.output


def test_any_other_database_is_named(tmp_path, database):
    with open_writable(database) as conn:
        conn.execute("create table t (x)")
    with pytest.raises(NotAMemoryDatabase):
        diagnose(database)


def test_the_command_says_what_it_found_and_did(indexed, change, database):
    def run(*arguments):
        return CliRunner().invoke(cli, ["agent-memory", "doctor", *arguments, "-d", str(database)])

    assert run().exit_code == 0
    change("update meta set value = '7' where key = 'memory_index_pending_v1'")
    result = run()
    assert result.exit_code == 1 and len(result.stdout.splitlines()) == 1
    assert f"doctor --fix -d {database}" in result.stdout
    report = json.loads(run("--json").stdout)
    assert not report["ok"] and report["problems"][0]["code"] == "pending_wrong"
    result = run("--fix")
    assert result.exit_code == 0 and "Done: counted" in result.stdout
    with open_readonly(database) as conn:
        assert search(conn, "heron").hits
