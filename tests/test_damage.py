"""Damaged, edited and foreign databases: one line or one page says so, and a run mends what is ours."""

import subprocess
import sys
from contextlib import nullcontext

import pytest
from click.testing import CliRunner
from datasette.cli import cli

from datasette_agent_memory import ingest, writer
from datasette_agent_memory.connections import DatabaseError, open_readonly
from datasette_agent_memory.files import read_file
from datasette_agent_memory.search import search

NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns billing.\n",
    "memory/2026-01-05.md": "# Monday\n\nThe heron nests by the canal.\n",
    "memory/2026-01-06.md": "# Tuesday\n\nThe stork nests on the roof.\n",
}


@pytest.fixture
def indexed(workspace, index, tiny):
    root = workspace(NOTES)
    index(root, tiny)
    return root


@pytest.fixture
def is_whole(rows):
    def check():
        chunks = sorted(rows("select id from chunks"))
        assert len(chunks) == 3 == rows("select count(*) from files")[0][0]
        assert sorted(rows("select id from chunks_fts")) == chunks
        assert rows("select path from chunks_fts where chunks_fts match 'heron'") == [
            ("memory/2026-01-05.md",)
        ]
        if rows("select 1 from sqlite_master where name = 'chunks_vec'"):
            assert sorted(rows("select id from chunks_vec")) == chunks
        rows("select count(*) from embedding_cache")

    return check


@pytest.mark.parametrize(
    "statements",
    [
        ["delete from chunks"],
        ["delete from chunks where path = 'MEMORY.md'"],
        ["drop table chunks"],
        ["drop table files"],
        ["drop table meta"],
        ["drop table embedding_cache"],
        ["drop table chunks_fts"],
        ["delete from chunks_fts"],
        ["drop table chunks_fts", "create table chunks_fts (text, id)"],
        ["update meta set value = 'garbled'"],
        ["update meta set value = '{}'"],
        ["update chunks set embedding = 'garbage'", "delete from chunks_vec"],
        ["update chunks set embedding = '[1, 2]'", "delete from chunks_vec"],
        ["update embedding_cache set embedding = 'garbage'", "delete from files"],
        ["update embedding_cache set embedding = '[1, 2]'", "delete from chunks"],
        ["update embedding_cache set embedding = x'00'", "delete from chunks"],
    ],
    ids=lambda statements: "; ".join(statements),
)
@pytest.mark.needs_sqlite_vec
def test_a_run_mends_what_is_lost(indexed, index, tiny, change, is_whole, statements):
    change(*statements)
    index(indexed, tiny)
    is_whole()


def test_some_lost_chunks_of_a_file_are_noticed(workspace, index, tiny, change, rows):
    root = workspace(
        {"a.md": "\n".join(f"line {number} of the walrus" for number in range(400)), "b.md": "b"}
    )
    index(root, tiny)
    before = rows("select id from chunks order by id")
    change("delete from chunks where path = 'a.md' and start_line > 100")
    assert index(root, tiny).files_updated == 1
    assert rows("select id from chunks order by id") == before
    assert index(root, tiny).files_updated == 0


def test_chunks_of_a_file_that_is_gone_and_forgotten_are_removed(indexed, index, tiny, change, rows):
    change("delete from files where path = 'MEMORY.md'")
    (indexed / "MEMORY.md").unlink()
    assert index(indexed, tiny).files_removed == 1
    assert rows("select count(*) from chunks where path = 'MEMORY.md'") == [(0,)]


@pytest.mark.parametrize("value", ["5", "null", '["x"]', '{"a": 1}'])
def test_odd_values_in_meta_are_passed_over(indexed, index, tiny, change, is_whole, value):
    change(
        f"update meta set value = json_set(value, '$.root', json('{value}'), '$.extraPaths', json('{value}'))"
    )
    index(indexed, tiny)
    is_whole()


DAMAGE = [
    "drop table files",
    "drop table meta",
    "drop table embedding_cache",
    "drop table chunks_fts_data",
    "update chunks set text = x'ff00'",
    "update chunks set start_line = 'x'",
    "update chunks set start_line = -5, end_line = 999999999999",
    "update chunks set path = x'ff'",
    "update chunks set path = 7",
    "update chunks set id = cast(id as blob), source = x'ff'",
    "update meta set value = printf('%.*c', 100000, '[')",
    "alter table chunks rename to old; create view chunks as select * from old",
]


@pytest.mark.parametrize("statement", DAMAGE)
@pytest.mark.asyncio
async def test_no_page_fails(indexed, change, make_datasette, database, statement, capfd):
    change("pragma writable_schema = 1", *statement.split("; "))
    datasette = make_datasette(database)
    for path in ("", "?q=heron+canal", "/file?path=MEMORY.md", "/status"):
        for suffix in ("", ".json"):
            name, _, query = path.partition("?")
            response = await datasette.client.get(f"/memory/-/agent-memory{name}{suffix}?{query}")
            assert response.status_code in (200, 404, 503), (path, suffix, response.text[:300])
    assert (await datasette.client.get("/-/agent-memory")).status_code == 200
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("statement", DAMAGE)
def test_no_command_ends_in_a_traceback(indexed, change, database, statement):
    change("pragma writable_schema = 1", *statement.split("; "))
    for command in (["search", "heron"], ["status"], ["get", "MEMORY.md"], ["index", str(indexed)]):
        result = CliRunner().invoke(cli, ["agent-memory", *command, "-d", str(database)])
        assert result.exit_code in (0, 1) and isinstance(result.exception, (SystemExit, type(None))), command
        assert result.exit_code == 0 or len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "content", [b"text, and no database, of some length " * 99, b"SQLite format 3\0" + b"\1" * 5000]
)
def test_a_file_that_is_no_database_is_one_line(tmp_path, content):
    (tmp_path / "x.db").write_bytes(content)
    for command in (["search", "x"], ["status"], ["get", "x"], ["index", str(tmp_path)]):
        result = CliRunner().invoke(cli, ["agent-memory", *command, "-d", str(tmp_path / "x.db")])
        assert result.exit_code == 1 and result.stderr.count("\n") == 1 and "x.db" in result.stderr


def test_bytes_that_are_not_utf8_are_one_line_or_work(workspace, tmp_path):
    root = workspace(NOTES)
    run = [sys.executable, "-m", "datasette", "agent-memory"]
    odd = bytes(tmp_path) + b"/\xff"
    for arguments, code in (
        (["index", bytes(root), "--provider", "none", "-d", odd + b".db"], 0),
        (["get", b"\xff.md", "-d", odd + b".db"], 1),
        (["search", b"\xff heron", "-d", odd + b".db"], 0),
        (["index", odd + b"-folder", "-d", odd + b".db"], 1),
        (["index", bytes(root), "--extra", odd + b"-folder", "-d", odd + b".db"], 1),
    ):
        done = subprocess.run([*run, *arguments], capture_output=True)
        assert done.returncode == code and b"Traceback" not in done.stderr, done.stderr


@pytest.mark.needs_sqlite_vec
def test_a_broken_full_text_table_leaves_the_vectors(indexed, change, database):
    change("drop table chunks_fts", "create table chunks_fts (text, id)")
    with open_readonly(database) as conn:
        answer = search(conn, "heron", {"min_score": 0})
    assert answer.options.mode == "vector" and len(answer.hits) == 3
    assert [notice.code for notice in answer.notices] == ["search_failed", "search_failed"]


def test_tables_that_are_empty_are_named(indexed, change, database):
    change("delete from chunks_fts")
    with open_readonly(database) as conn:
        assert "no_fts" in [notice.code for notice in search(conn, "heron").notices]


def test_another_run_with_other_settings_stops_this_one(indexed, index, workspace, tiny, monkeypatch, rows):
    """Two runs at once must not mix two models in one index."""
    workspace({"memory/new.md": "new words"})
    embed = tiny.embed_documents

    def embed_while_another_run_rebuilds(texts):
        monkeypatch.setattr(tiny, "embed_documents", embed)
        index(indexed)
        return embed(texts)

    monkeypatch.setattr(tiny, "embed_documents", embed_while_another_run_rebuilds)
    with pytest.raises(DatabaseError, match="meanwhile; run again"):
        index(indexed, tiny)
    assert rows("select distinct model from chunks") == [("fts-only",)]
    assert index(indexed, tiny).chunks_total == 4


def test_another_root_meanwhile_stops_this_run(indexed, tmp_path, index, tiny, monkeypatch, workspace, rows):
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.md").write_text("other")
    workspace({"memory/new.md": "new"})
    embed = tiny.embed_documents

    def embed_meanwhile(texts):
        monkeypatch.setattr(tiny, "embed_documents", embed)
        # As where no lock can be had.
        monkeypatch.setattr("datasette_agent_memory.ingest.embedding_turn", lambda path: nullcontext(True))
        index(other, tiny, force=True)
        return embed(texts)

    monkeypatch.setattr(tiny, "embed_documents", embed_meanwhile)
    with pytest.raises(DatabaseError, match="another folder"):
        index(indexed, tiny)
    assert rows("select path from files") == [("x.md",)]


def test_extra_paths_of_two_runs_at_once_are_both_kept(workspace, tmp_path, index, rows, monkeypatch):
    root = workspace(NOTES)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.md").write_text(name)
    prepare = writer.IndexWriter.prepare

    def prepare_after_another(self, *args):
        monkeypatch.setattr(writer.IndexWriter, "prepare", prepare)
        index(root, extra=[tmp_path / "two"])
        prepare(self, *args)

    monkeypatch.setattr(writer.IndexWriter, "prepare", prepare_after_another)
    index(root, extra=[tmp_path / "one"])
    assert index(root).files_removed == 0
    assert rows("select path from files where path like '../%' order by path") == [
        ("../one/x.md",),
        ("../two/x.md",),
    ]


def test_a_rebuild_overtaken_by_another_stops(indexed, index, tiny, monkeypatch, rows):
    rebuild = ingest._Run._rebuild

    def rebuild_after_another(self, found):
        monkeypatch.setattr(ingest._Run, "_rebuild", rebuild)
        index(indexed)
        rebuild(self, found)

    monkeypatch.setattr(ingest._Run, "_rebuild", rebuild_after_another)
    with pytest.raises(DatabaseError, match="meanwhile"):
        index(indexed, tiny, force=True)
    assert rows("select distinct model from chunks") == [("fts-only",)]


class TestText:
    """What is printed of a file is what was indexed, or it is said that it isn't."""

    REPEATS = "# log\n" + "=" * 8000 + "\nafter the rule\n"

    @pytest.fixture
    def read(self, database):
        def run(path):
            with open_readonly(database) as conn:
                return read_file(conn, path)

        return run

    def test_equal_parts_of_a_line_are_kept_beside_the_chunks(self, workspace, index, read):
        root = workspace({"a.md": self.REPEATS})
        index(root)
        (root / "a.md").write_text("secret")
        assert read("a.md").is_exact and read("a.md").content == self.REPEATS

    def test_where_they_are_lost_they_come_from_disk_while_it_is_unchanged(
        self, workspace, index, read, change
    ):
        root = workspace({"a.md": self.REPEATS})
        index(root)
        change("delete from file_details")
        assert read("a.md").is_exact and read("a.md").content == self.REPEATS
        (root / "a.md").write_text("secret")
        file = read("a.md")
        assert not file.is_exact and "secret" not in file.content and "after the rule" in file.content

    def test_a_link_put_there_since_is_not_followed_to_other_text(self, workspace, index, read, tmp_path):
        root = workspace({"a.md": self.REPEATS})
        index(root)
        (tmp_path / "secret").write_text("secret")
        (root / "a.md").unlink()
        (root / "a.md").symlink_to(tmp_path / "secret")
        assert "secret" not in read("a.md").content

    def test_the_root_of_the_database_gives_no_way_out(self, workspace, index, read, change, tmp_path):
        secret = tmp_path / "secret.md"
        secret.write_text("secret")
        index(workspace({"a.md": "a"}))
        change("insert into files values ('../secret.md', 'memory', 'x', 0, 0)")
        assert read("../secret.md").content == ""

    @pytest.mark.parametrize("text", ["a\nb\n", "a\nb", "a\r\nb\r\n", "\n\na\n", "😀漢" * 900 + "\nend\n"])
    def test_it_is_exact(self, workspace, index, read, text):
        root = workspace({"a.md": text})
        index(root)
        (root / "a.md").unlink()
        file = read("a.md")
        assert file.is_exact and file.content == text
        assert len(file.lines) == text.rstrip("\n").count("\n") + 1


def test_long_words_and_many_matches_take_no_longer_than_they_should(workspace, index, database):
    """Each of these took minutes when its time grew with the square of the text."""
    index(
        workspace(
            {
                "word.md": "x" * 400_000,
                "letters.md": " ".join("abcdefg" * 40_000),
                "cjk.md": "漢字" * 50_000,
            }
        ),
        chunk_tokens=100_000,
        chunk_overlap=0,
    )
    with open_readonly(database) as conn:
        assert search(conn, "a b c d e f g 漢字", {"k": 100}).hits
        long = "x" * 200_000
        assert conn.execute("select mmr(1, 1, ?, 0.5)", (long,)).fetchone()[0] == "[1]"
        rows = ",".join(f"({number}, {number}.0, 'note {number} of many words')" for number in range(3000))
        ids = conn.execute(f"with t(i, s, x) as (values {rows}) select mmr(i, s, x, 0.5) from t").fetchone()[
            0
        ]
        assert ids.count(",") == 2999
