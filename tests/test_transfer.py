"""What is exported comes back row by row; what is no export changes nothing."""

import json
import threading

import pytest
from click.testing import CliRunner
from conftest import SAMPLE
from datasette.cli import cli

from datasette_agent_memory.connections import open_readonly, open_writable
from datasette_agent_memory.doctor import diagnose
from datasette_agent_memory.embeddings import chain
from datasette_agent_memory.search import search
from datasette_agent_memory.transfer import TransferError, read_lines

NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns billing.\n",
    "memory/2026-01-05.md": "# Monday\n\nThe heron nests by the canal, 会議 at noon.\n",
    "memory/notes.md": "---\ntitle: Notes\n---\nThe kingfisher.\n",
    "memory/blank.md": " \n\n\t\n",
    "memory/odd \u2028 name.md": "a line separator \u2028 and a \u0085 and \x00\x1b\n".replace("\x00", ""),
}
QUESTIONS = ("backup restore", "certificate expired", "heron", "会議")


@pytest.fixture
def run():
    def invoke(*arguments, code=0, stdin=None):
        result = CliRunner().invoke(cli, ["agent-memory", *map(str, arguments)], input=stdin)
        assert result.exit_code == code, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return invoke


def contents(database):
    """Every row that is not made of others, and the answers to some questions."""
    with open_readonly(database) as conn:
        tables = [
            name
            for (name,) in conn.execute(
                "select name from sqlite_master where type = 'table' and name in"
                " ('meta', 'files', 'chunks', 'embedding_cache', 'passages', 'file_details') order by name"
            )
        ]
        rows = {name: [tuple(row) for row in conn.execute(f"select rowid, * from {name}")] for name in tables}
        fts = [tuple(row) for row in conn.execute("select rowid, * from chunks_fts order by rowid")]
        answers = [
            [(hit.id, hit.score) for hit in search(conn, question, {"min_score": 0}).hits]
            for question in QUESTIONS
        ]
    return rows, fts, answers


@pytest.mark.parametrize("provider", ["embedded", "none"])
def test_nothing_is_lost_on_the_way_back(index, database, run, tmp_path, provider):
    index(SAMPLE, chain.Providers().choose(provider).providers[0])
    run("export", tmp_path / "memory.jsonl", "-d", database)
    run("import", tmp_path / "memory.jsonl", "-d", tmp_path / "back.db")
    assert contents(tmp_path / "back.db") == contents(database)
    assert diagnose(tmp_path / "back.db").problems == []
    assert not list(tmp_path.glob("*.part*"))
    again = run("export", "-", "-d", tmp_path / "back.db").stdout_bytes
    assert again == (tmp_path / "memory.jsonl").read_bytes()


def test_a_copy_is_the_same_database(workspace, index, tiny, database, run, tmp_path):
    index(workspace(NOTES), tiny)
    run("export", tmp_path / "copy.db", "-d", database)
    assert contents(tmp_path / "copy.db") == contents(database)
    assert "is there already" in run("export", tmp_path / "copy.db", "-d", database, code=1).stderr
    run("export", tmp_path / "copy.db", "-d", database, "--force")
    run("export", database, "-d", database, "--force", code=2)


def test_an_index_that_is_there_is_replaced_only_by_force_and_readers_go_on(
    workspace, index, tiny, database, run, tmp_path
):
    index(workspace(NOTES), tiny)
    run("export", tmp_path / "memory.jsonl", "-d", database)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x.md").write_text("an osprey")
    index(tmp_path / "other", tiny, force=True)
    assert "--force" in run("import", tmp_path / "memory.jsonl", "-d", database, code=1).stderr
    with open_writable(database) as conn:
        conn.execute("create table mine (x)")
    failures, counts, stop = [], set(), threading.Event()

    def read():
        with open_readonly(database) as conn:
            while not stop.is_set():
                try:
                    counts.add(conn.execute("select count(*) from chunks").fetchone()[0])
                except Exception as error:
                    failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        run("import", tmp_path / "memory.jsonl", "-d", database, "--force")
    finally:
        stop.set()
        reader.join()
    assert failures == [] and counts <= {1, 4}
    with open_readonly(database) as conn:
        assert search(conn, "heron", {"min_score": 0}).hits
        assert conn.execute("select count(*) from mine").fetchone()[0] == 0


@pytest.fixture
def exported(workspace, index, tiny, database, run, tmp_path):
    index(workspace(NOTES), tiny)
    run("export", tmp_path / "memory.jsonl", "-d", database)
    return (tmp_path / "memory.jsonl").read_text("utf-8").split("\n")[:-1]


@pytest.mark.parametrize("table", ["chunks", "passages", "file_details"])
def test_another_programs_table_is_left_alone(exported, run, tmp_path, table):
    with open_writable(tmp_path / "theirs.db") as conn:
        conn.execute(f"create table {table} (mine)")
        conn.execute(f"insert into {table} values (1)")
    text = "\n".join(exported)
    result = run("import", "-", "-d", tmp_path / "theirs.db", "--force", code=1, stdin=text)
    assert f"a table {table} of another program" in result.stderr
    with open_readonly(tmp_path / "theirs.db") as conn:
        assert conn.execute(f"select count(*) from {table}").fetchone()[0] == 1


def _chunk(**values):
    return json.dumps({"chunks": values})


@pytest.mark.parametrize(
    "number, line, reason",
    [
        (1, "", "no JSON"),
        (1, "{}", "no JSON object"),
        (1, '{"format": "other"}', "no export"),
        (1, '{"format": "datasette-agent-memory", "version": 99}', "another version"),
        (1, '{"format": "datasette-agent-memory", "version": 1, "layout": "openclaw agent"}', "OpenClaw"),
        (
            1,
            '{"format": "datasette-agent-memory", "version": 1, "layout": "six tables",'
            ' "tables": {"sqlite_master": []}}',
            "sqlite_master",
        ),
        (2, "[1]", "no JSON object"),
        (2, "\0" * 9, "no JSON"),
        (2, "[" * 100_000, "no JSON"),
        (2, '{"mine": {"x": 1}}', "no row of a table"),
        (2, '{"chunks": 5}', "no row of a table"),
        (2, _chunk(**{"id) values (1); drop table meta; --": 1}), "has a column"),
        (2, _chunk(id="x"), "NOT NULL"),
        (2, '{"meta": {"key": "x", "value": [1]}}', "value"),
        (2, '{"meta": {"key": "x", "value": {"base64": "!"}}}', "value"),
        (2, '{"meta": {"key": "x", "value": %s}}' % ("9" * 30), "value"),
        (2, '{"meta": {"key": "x", "value": "\\ud800"}}', "value"),
    ],
)
def test_a_bad_line_is_named_and_nothing_imported(exported, run, tmp_path, database, number, line, reason):
    before = contents(database)
    exported[number - 1] = line
    (tmp_path / "bad.jsonl").write_text("\n".join(exported), "utf-8")
    for target, force in ((tmp_path / "new.db", []), (database, ["--force"])):
        result = run("import", tmp_path / "bad.jsonl", "-d", target, *force, code=1)
        assert f"line {number}: " in result.stderr and reason in result.stderr
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "new.db").exists() and not list(tmp_path.glob("*.part*"))
    assert contents(database) == before


@pytest.mark.parametrize("kept", [1, 3, -1])
def test_an_export_that_was_cut_off_is_refused(exported, run, tmp_path, kept):
    text = "\n".join(exported[:kept])
    assert "ends before" in run("import", "-", "-d", tmp_path / "new.db", code=1, stdin=text).stderr
    missing = "\n".join([*exported[:2], *exported[3:]])
    assert "missing" in run("import", "-", "-d", tmp_path / "new.db", code=1, stdin=missing).stderr
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize("dims", [-1, 10**9, "x", None, 3])
def test_a_width_that_no_table_has_is_one_line_or_no_table(exported, run, tmp_path, dims):
    lines = [json.loads(line) for line in exported]
    for line in lines:
        if line.get("meta", {}).get("key") == "memory_index_meta_v1":
            line["meta"]["value"] = json.dumps({**json.loads(line["meta"]["value"]), "vectorDims": dims})
    text = "\n".join(map(json.dumps, lines))
    run("import", "-", "-d", tmp_path / "new.db", stdin=text)
    with open_readonly(tmp_path / "new.db") as conn:
        assert search(conn, "heron").hits


def test_another_programs_index_comes_back_as_the_six_tables(
    workspace, index, tiny, database, change, run, tmp_path, rows
):
    index(workspace(NOTES), tiny)
    change(
        "drop table chunks_fts",
        "update meta set value = json_remove(value, '$.generator')",
        "create virtual table chunks_fts using fts5(text, id unindexed, path unindexed, source unindexed,"
        " model unindexed, start_line unindexed, end_line unindexed)",
        "insert into chunks_fts select text, id, path, source, model, start_line, end_line from chunks",
    )
    run("export", tmp_path / "memory.jsonl", "-d", database)
    run("import", tmp_path / "memory.jsonl", "-d", tmp_path / "back.db")
    assert contents(tmp_path / "back.db") == contents(database)


def test_a_kill_leaves_no_database(exported, tmp_path):
    class Killed(BaseException):
        pass

    class Lines:
        def __init__(self):
            self.left = iter(exported)

        def readline(self, size):
            line = next(self.left)
            if "chunks" in line[:12]:
                raise Killed
            return line.encode()

    with pytest.raises(Killed):
        read_lines(Lines(), "x", tmp_path / "new.db", force=False)
    assert not (tmp_path / "new.db").exists()


def test_what_is_no_database_or_no_file_is_one_line(run, tmp_path, exported):
    assert run("export", tmp_path / "x.jsonl", "-d", tmp_path / "no.db", code=1).stderr.count("\n") == 1
    assert run("import", tmp_path / "no.jsonl", "-d", tmp_path / "x.db", code=1).stderr.count("\n") == 1
    assert run("export", tmp_path / "no/x.db", "-d", tmp_path / "memory.db", code=1).stderr.count("\n") == 1
    with (
        pytest.raises(TransferError, match="is a database already"),
        open(tmp_path / "memory.db", "rb") as lines,
    ):
        read_lines(lines, "memory.db", tmp_path / "y.db", force=False)
