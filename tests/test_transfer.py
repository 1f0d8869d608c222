"""What is exported comes back row by row; what is no export changes nothing."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner
from conftest import SAMPLE
from datasette.cli import cli

from datasette_agent_memory.connections import open_readonly, open_writable, sqlite3
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


#: Runs beside the tests, to be killed with its log left behind.
_WRITER = """
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute("pragma journal_mode=wal")
conn.execute("pragma wal_autocheckpoint=0")
conn.execute("create table old (x)")
for number in range(200):
    conn.execute("insert into old values (randomblob(9000))")
print("written", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def leave_log():
    """Leave behind the log of a database that is gone, as a kill and a removal do."""

    def leave(database):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with process:
            assert process.stdout.readline() == b"written\n"
            process.send_signal(signal.SIGKILL)
        assert database.with_name(f"{database.name}-wal").stat().st_size > 1_000_000
        database.unlink()

    return leave


def is_whole(database):
    with open_readonly(database) as conn:
        assert conn.execute("pragma integrity_check").fetchone()[0] == "ok"
        return bool(search(conn, "heron", {"min_score": 0}).hits)


@pytest.mark.skipif(os.name == "nt", reason="kills as POSIX does")
@pytest.mark.parametrize("command", ["import", "export"])
def test_the_log_of_a_database_that_is_gone_is_not_played_into_a_new_one(
    exported, run, tmp_path, database, leave_log, command
):
    new = tmp_path / "new.db"
    leave_log(new)
    (tmp_path / "new.db-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(600))
    if command == "import":
        run("import", tmp_path / "memory.jsonl", "-d", new)
    else:
        run("export", new, "-d", database)
    assert is_whole(new)
    assert not list(tmp_path.glob("new.db-*"))


@pytest.mark.parametrize("ending", ["-wal", "-journal"])
def test_a_copy_does_not_replace_a_database_in_use(exported, run, tmp_path, database, ending):
    (tmp_path / "used.db").write_bytes(b"")
    (tmp_path / f"used.db{ending}").write_bytes(b"x")
    assert "in use" in run("export", tmp_path / "used.db", "-d", database, "--force", code=1).stderr
    assert (tmp_path / f"used.db{ending}").read_bytes() == b"x"


def test_the_file_behind_a_link_is_written(exported, run, tmp_path, database):
    (tmp_path / "there").mkdir()
    for name in ("x.jsonl", "x.db"):
        link, target = tmp_path / name, tmp_path / "there" / name
        link.symlink_to(target)
        run("export", link, "-d", database)
        target.chmod(0o600)
        run("export", link, "-d", database, "--force")
        assert link.is_symlink() and target.stat().st_size > 1000
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
    link, target = tmp_path / "y.db", tmp_path / "there/y.db"
    link.symlink_to(target)
    run("import", tmp_path / "there/x.jsonl", "-d", link)
    run("import", tmp_path / "there/x.jsonl", "-d", link, "--force")
    assert link.is_symlink() and is_whole(target)


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize("ending", [".jsonl", ".db"])
def test_what_is_no_regular_file_is_left_alone(exported, run, tmp_path, database, ending, force):
    places = {name: tmp_path / f"{name}{ending}" for name in ("folder", "pipe", "null", "loop", "into")}
    places["folder"].mkdir()
    os.mkfifo(places["pipe"])
    places["null"].symlink_to("/dev/null")
    places["loop"].symlink_to(places["loop"])
    places["into"].symlink_to(places["folder"])
    before = {name: place.lstat().st_mode for name, place in places.items()}
    for place in places.values():
        result = run("export", place, "-d", database, *force, code=1)
        assert f"{place}: " in result.stderr and result.stderr.count("\n") == 1
        result = run("import", tmp_path / "memory.jsonl", "-d", place, *force, code=1)
        assert f"{place}: " in result.stderr and result.stderr.count("\n") == 1
    assert {name: place.lstat().st_mode for name, place in places.items()} == before
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("is_folder", [False, True])
def test_files_with_names_like_ours_are_the_users(exported, run, tmp_path, database, is_folder):
    names = [
        f"{name}.part{ending}"
        for name in ("backup.db", "backup.jsonl", "new.db")
        for ending in ("", "-wal", "-shm", "-journal")
    ]
    for name in names:
        if is_folder:
            (tmp_path / name / "mine").mkdir(parents=True)
        else:
            (tmp_path / name).write_text("mine")
    run("export", tmp_path / "backup.db", "-d", database)
    run("export", tmp_path / "backup.jsonl", "-d", database)
    run("import", tmp_path / "backup.jsonl", "-d", tmp_path / "new.db")
    for name in names:
        assert (tmp_path / name / "mine").is_dir() if is_folder else (tmp_path / name).read_text() == "mine"
    assert not list(tmp_path.glob(".agent-memory-*"))


@pytest.mark.parametrize("content", [b"", b"x", b"# Notes\n", b"x" * 5000])
def test_a_file_that_is_no_database_is_not_replaced(exported, run, tmp_path, content):
    (tmp_path / "notes.db").write_bytes(content)
    for force in ([], ["--force"]) if content else ([],):
        result = run("import", tmp_path / "memory.jsonl", "-d", tmp_path / "notes.db", *force, code=1)
        assert "notes.db: is there" in result.stderr
        assert (tmp_path / "notes.db").read_bytes() == content


def test_a_database_made_meanwhile_is_not_replaced(exported, tmp_path):
    class Lines:
        def __init__(self):
            self.left = iter(exported)

        def readline(self, size):
            (tmp_path / "new.db").write_text("mine")
            return next(self.left, "").encode()

    with pytest.raises(TransferError, match="meanwhile"):
        read_lines(Lines(), "x", tmp_path / "new.db", force=False)
    assert (tmp_path / "new.db").read_text() == "mine"


def test_the_database_itself_and_what_is_beside_it_are_not_written(exported, run, tmp_path, database):
    (tmp_path / "link.db").symlink_to(database)
    for name in ("link.db", f"{database.name}-wal", f"{database.name}-shm", f"{database.name}-journal"):
        run("export", tmp_path / name, "-d", database, "--force", code=2)


def test_names_that_are_too_long_are_one_line(exported, run, tmp_path, database):
    longest = tmp_path / ("n" * 249 + ".jsonl")
    run("export", longest, "-d", database)
    assert longest.stat().st_size > 1000
    for name in ("n" * 300, "n" * 300 + ".db", "n" * 252 + ".db"):
        result = run("export", tmp_path / name, "-d", database, code=1)
        assert "name too long" in result.stderr and result.stderr.count("\n") == 1
        result = run("import", longest, "-d", tmp_path / name, code=1)
        if len(name) > 255 or name.endswith(".db"):
            assert "name too long" in result.stderr and result.stderr.count("\n") == 1


def test_the_file_that_is_wrong_is_the_one_named(exported, run, tmp_path, database, monkeypatch):
    text = (tmp_path / "memory.jsonl").read_text("utf-8")
    (tmp_path / "folder").mkdir()
    assert f"{tmp_path}/folder: is a directory" in run("import", tmp_path / "folder", code=1).stderr
    result = run("import", "-", "-d", tmp_path / "folder", code=1, stdin=text)
    assert result.stderr == f"Error: {tmp_path}/folder: is a folder; {result.stderr.partition('; ')[2]}"

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied", "somewhere")

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    result = run("import", "-", "-d", tmp_path / "new.db", code=1, stdin=text)
    assert result.stderr == f"Error: {tmp_path}/new.db: permission denied\n"
    result = run("export", tmp_path / "new.jsonl", "-d", database, code=1)
    assert result.stderr == f"Error: {tmp_path}/new.jsonl: permission denied\n"


def test_an_error_of_sqlite_names_the_file_that_was_asked_for(exported, run, tmp_path, monkeypatch):
    def fail(self):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("datasette_agent_memory.transfer._Import._fill", fail)
    result = run("import", tmp_path / "memory.jsonl", "-d", tmp_path / "new.db", code=1)
    assert f"{tmp_path}/new.db: database or disk is full" in result.stderr
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize(
    "table, column, value",
    [
        ("chunks", "start_line", "x"),
        ("chunks", "start_line", {"base64": "eA=="}),
        ("chunks", "end_line", 1.5),
        ("chunks", "path", {"base64": "eA=="}),
        ("chunks", "text", {"base64": "eA=="}),
        ("chunks", "text", 5),
        ("chunks", "embedding", 5),
        ("chunks", "updated_at", "now"),
        ("files", "mtime", float("inf")),
        ("files", "size", "many"),
        ("files", "size", True),
        ("meta", "value", {"base64": "eA=="}),
        ("file_details", "whole", "text"),
        ("file_details", "lines", {"base64": "eA=="}),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_line(exported, run, tmp_path, table, column, value):
    number = next(at for at, line in enumerate(exported) if line.startswith(f'{{"{table}":'))
    row = json.loads(exported[number])[table]
    exported[number] = json.dumps({table: {**row, column: value}}).replace("Infinity", "1e309")
    result = run("import", "-", "-d", tmp_path / "new.db", code=1, stdin="\n".join(exported))
    assert f"line {number + 1}: has a " in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "new.db").exists()


def test_a_time_with_a_fraction_is_taken(exported, run, tmp_path):
    number = next(at for at, line in enumerate(exported) if line.startswith('{"files":'))
    row = json.loads(exported[number])["files"]
    exported[number] = json.dumps({"files": {**row, "mtime": row["mtime"] + 0.25}})
    run("import", "-", "-d", tmp_path / "new.db", stdin="\n".join(exported))
