"""`index --watch`: real processes, real files; and the watcher's parts by themselves."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import watchfiles._rust_notify
from click.testing import CliRunner
from datasette.cli import cli

from datasette_agent_memory import watching
from datasette_agent_memory.connections import DatabaseError, open_readonly
from datasette_agent_memory.embeddings.base import TemporaryError
from datasette_agent_memory.embeddings.chain import Providers
from datasette_agent_memory.ingest import IndexSettings
from datasette_agent_memory.locks import is_watched, watching_turn
from datasette_agent_memory.remembered import NotRemembered, settings_of
from datasette_agent_memory.scan import ScanOptions
from datasette_agent_memory.scopes import Scope
from datasette_agent_memory.status import read_status
from datasette_agent_memory.watching import (
    Watcher,
    folders_to_watch,
    kind_of_change,
    retry_wait_s,
)

#: However busy the machine is.
PATIENCE_S = 60


def wait_until(condition, what="it"):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen")


class Process:
    """`index --watch` in a process of its own; its runs are read as they are reported."""

    def __init__(self, folder, *arguments):
        self.out, self.err = folder / f"out-{time.monotonic_ns()}", folder / f"err-{time.monotonic_ns()}"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "datasette", "agent-memory", "index", *map(str, arguments)],
                stdout=out,
                stderr=err,
            )

    def runs(self):
        return [json.loads(line)["files"] for line in self.out.read_text().splitlines(keepends=True)]

    def says(self, text, times=1):
        return wait_until(lambda: self.err.read_text().count(text) >= times, f"{text!r} in {self.err}")

    def next_run(self, number):
        return wait_until(lambda: self.runs()[number:], f"run {number} in {self.out}")[0]

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def watch(tmp_path, database):
    """Start `index --watch`, which is killed after the test."""
    started = []
    options = ("--watch", "--json", "--provider", "none")

    def start(*arguments):
        started.append(Process(tmp_path, *arguments, "-d", database, *options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.fixture
def finds(database):
    """Whether a search finds a word, while others write."""

    def find(word):
        with open_readonly(database) as conn:
            if not conn.execute("select 1 from sqlite_master where name = 'chunks_fts'").fetchone():
                return []
            query = "select path from chunks_fts where chunks_fts match ?"
            return [row[0] for row in conn.execute(query, (word,))]

    return find


def check(database):
    """What is true of an index that is whole."""
    with open_readonly(database) as conn:
        assert [tuple(row) for row in conn.execute("pragma integrity_check")] == [("ok",)]
        (chunks,) = conn.execute("select count(*) from chunks").fetchone()
        assert conn.execute("select count(*) from chunks_fts_docsize").fetchone()[0] == chunks
        assert not conn.execute("select path from chunks except select path from files").fetchall()


def test_the_index_follows_the_files(watch, workspace, finds, database, tmp_path):
    root = workspace({"MEMORY.md": "The heron nests."})
    notes = tmp_path / "notes"
    notes.mkdir()
    process = watch(root, "--extra", notes)
    process.says("Watching")
    assert process.next_run(0)["added"] == 1
    # A folder that was not there, with one inside.
    (root / "memory/deep").mkdir(parents=True)
    (root / "memory/deep/a.md").write_text("A kingfisher.")
    assert process.next_run(1)["added"] == 1 and finds("kingfisher") == ["memory/deep/a.md"]
    # An editor that writes beside, and moves it over.
    (root / "memory/deep/.a.swp").write_text("An otter.")
    os.replace(root / "memory/deep/.a.swp", root / "memory/deep/a.md")
    assert process.next_run(2)["updated"] == 1 and finds("otter") and not finds("kingfisher")
    # Thousands at once are one run, or, where they take long to write, a few.
    for number in range(2000):
        (root / f"memory/{number}.md").write_text(f"Note {number}.")
    wait_until(lambda: sum(run["added"] for run in process.runs()) == 2002, "the burst")
    runs = len(process.runs())
    assert runs <= 6
    # What is of no concern is not looked at.
    (root / "memory/b.txt").write_text("A vole.")
    # The folder goes, and comes back with another file; nothing is lost meanwhile.
    root.rename(tmp_path / "away")
    process.says("no such folder; waiting")
    assert finds("otter")
    (tmp_path / "away/MEMORY.md").write_text("The bittern booms.")
    (tmp_path / "away").rename(root)
    assert process.next_run(runs)["updated"] == 1 and finds("bittern")
    process.says("Watching", times=2)
    assert process.err.read_text().count("waiting") == 1
    # So does an extra path, as another folder than it was.
    shutil.rmtree(notes)
    notes.mkdir()
    (notes / "n.md").write_text("The grebe dives.")
    assert process.next_run(runs + 1)["added"] == 1 and finds("grebe") == ["../notes/n.md"]
    assert process.end(signal.SIGTERM) == 0
    assert len(process.runs()) == runs + 2, "a run without changes says nothing"
    check(database)
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith("memory.db")] == ["memory.db"]


def test_a_killed_one_is_followed_by_the_next(watch, workspace, finds, database):
    root = workspace({f"memory/{number}.md": f"Note {number}." for number in range(300)})
    first, second = watch(root), None
    wait_until(lambda: database.exists() and finds("note"), "a first file")
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    check(database)
    first = watch(root)
    first.says("Watching")
    second = watch(root)
    second.says("another process keeps this index fresh")
    with open_readonly(database) as conn:
        assert read_status(conn)["watch"]["detail"] == "by another process"
    first.end(signal.SIGKILL)
    second.says("Watching")
    (root / "MEMORY.md").write_text("The heron nests.")
    wait_until(lambda: finds("heron"), "the other's run")
    assert second.end(signal.SIGINT) == 0
    check(database)
    assert not is_watched(database)
    with open_readonly(database) as conn:
        assert read_status(conn)["watch"] is None


@pytest.mark.parametrize("more", [("--dry-run",), ("memory",)])
def test_a_whole_index_is_kept_fresh_or_none(workspace, database, more):
    root = workspace({"memory/a.md": "x"})
    command = ["agent-memory", "index", str(root), *more, "-d", str(database), "--watch"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 2 and "--watch keeps a whole index fresh" in result.output


# Its parts


@pytest.fixture
def impatient(monkeypatch):
    for name, seconds in {
        "QUIET_S": 0.05,
        "LOOK_S": 0.1,
        "POLL_S": 0.05,
        "FIRST_RETRY_S": 0.05,
    }.items():
        monkeypatch.setattr(watching, name, seconds)


class Watched:
    """A watcher in a thread, what it has told, and the runs that it has made."""

    def __init__(self, database, settings):
        self.states = []
        self.reports = []
        self.watcher = Watcher(database, settings, self.reports.append, self.states.append)
        self.thread = threading.Thread(target=self.watcher.run)

    @property
    def state(self):
        return self.watcher.as_json()["state"]

    def wait_for(self, state):
        wait_until(lambda: self.state == state, f"{state}, but {self.watcher.as_json()}")


@contextmanager
def watched(database, settings):
    one = Watched(database, settings if callable(settings) else lambda: settings)
    one.thread.start()
    try:
        yield one
    finally:
        one.watcher.stop.set()
        one.thread.join(PATIENCE_S)
        assert not one.thread.is_alive()


def test_files_and_folders_that_matter(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "node_modules").mkdir()
    here = str(tmp_path)
    kinds = {
        name: kind_of_change(f"{here}/{name}", {here})
        for name in (
            *("a.md", "a.jsonl", ".gitignore", "folder", "node_modules", "a.txt", "folder/a.md", "gone"),
            *("memory.db", "memory.db-wal", "memory.db-shm", "memory.db-journal"),
            *("memory.db-embedding", "memory.db-watching"),
        )
    }
    assert {name: kind for name, kind in kinds.items() if kind} == {
        "a.md": "file",
        "a.jsonl": "file",
        ".gitignore": "file",
        "folder": "folder",
    }
    assert kind_of_change(here, {here}) == "folder"


def test_folders_are_watched_that_are_indexed(workspace, tmp_path):
    root = workspace({"a.md": "", "sub/b.md": "", "node_modules/x/c.md": "", ".git/d.md": ""})
    (root / "loop").symlink_to(root)
    (tmp_path / "notes").mkdir()
    extra = tmp_path / "notes" / "n.md"
    extra.write_text("")
    scope = Scope(root, [extra, tmp_path / "no"], [], ScanOptions(), {})
    names = {os.path.relpath(folder, tmp_path) for folder in folders_to_watch(scope)[0]}
    assert names == {"workspace", "workspace/sub", "notes"}
    (root / "MEMORY.md").write_text("")
    scope = Scope(root, [], [], ScanOptions(), {})
    assert folders_to_watch(scope)[0] == {str(root)}, "where memory/ may be made"


def test_a_link_that_is_gone_is_a_change(workspace, tmp_path):
    root = workspace({"a.md": "", "notes/n.md": ""})
    (root / "link").symlink_to("notes")
    folders, links = folders_to_watch(Scope(root, [], [], ScanOptions(), {}))
    (root / "link").unlink()
    assert kind_of_change(str(root / "link"), folders, links) == "folder"
    assert kind_of_change(str(root / "other"), folders, links) is None


def test_waits_grow_to_the_regular_one():
    assert [retry_wait_s(failures) for failures in (1, 2, 3, 7, 1000)] == [5, 10, 20, 300, 300]


def test_a_failed_run_is_told_once_and_tried_again(workspace, database, impatient, tiny, monkeypatch):
    root = workspace({"MEMORY.md": "The heron nests."})
    calls = []

    answers = tiny.embed_documents

    def embed(texts):
        calls.append(texts)
        if len(calls) < 4:
            raise TemporaryError("the model sleeps")
        return answers(texts)

    monkeypatch.setattr(tiny, "embed_documents", embed)
    monkeypatch.setattr("datasette_agent_memory.embeddings.batches._FIRST_WAIT_S", 0.001)
    monkeypatch.setattr("datasette_agent_memory.embeddings.batches.INDEX_ATTEMPTS", 1)
    with watched(database, IndexSettings(root, providers=[tiny])) as one:
        one.wait_for("watching")
        assert [state.state for state in one.states] == ["failed", "watching"]
        assert "the model sleeps" in one.states[0].detail
        assert one.watcher.as_json()["last_run"]["added"] == 0, "the text was there before its vector"
    assert one.watcher.as_json()["state"] == "off"


def test_what_nobody_thought_of_ends_nothing(workspace, database, impatient):
    root = workspace({"MEMORY.md": "The heron nests."})
    denied = PermissionError(13, "Permission denied")
    errors = [ZeroDivisionError("sk-secret"), denied, DatabaseError("locked")]

    def settings():
        if errors:
            raise errors.pop(0)
        return IndexSettings(root)

    with watched(database, settings) as one:
        one.wait_for("watching")
    details = [state.detail for state in one.states]
    assert details == ["unexpected ZeroDivisionError", "permission denied", "locked", None]


@pytest.mark.parametrize("when", ["at the start", "later"])
def test_without_the_systems_events_it_looks(workspace, database, impatient, monkeypatch, finds, when):
    root = workspace({"MEMORY.md": "The heron nests."})
    broken = threading.Event()
    real = watchfiles._rust_notify.RustNotify

    class Limited:
        def __init__(self, *arguments):
            if broken.is_set():
                raise OSError(28, "OS file watch limit reached. " + "/folder" * 1000)
            self.real = real(*arguments)

        def watch(self, *arguments):
            if broken.is_set():
                raise RuntimeError("error in underlying watcher")
            return self.real.watch(*arguments)

        def close(self):
            self.real.close()

    monkeypatch.setattr(watchfiles._rust_notify, "RustNotify", Limited)
    if when == "at the start":
        broken.set()
    with watched(database, IndexSettings(root)) as one:
        if when == "later":
            one.wait_for("watching")
            broken.set()
        one.wait_for("looking")
        detail = one.states[-1].detail
        assert len(detail) < 400 and detail.startswith("looking every")
        (root / "MEMORY.md").write_text("The grebe dives.")
        wait_until(lambda: finds("grebe"), "a look")
        broken.clear()
        one.wait_for("watching")
        (root / "MEMORY.md").write_text("The otter swims.")
        wait_until(lambda: finds("otter"), "a change")


def test_without_watchfiles_it_looks(workspace, database, impatient, monkeypatch, finds):
    root = workspace({"MEMORY.md": "The heron nests."})
    monkeypatch.setitem(sys.modules, "watchfiles._rust_notify", None)
    with watched(database, IndexSettings(root)) as one:
        one.wait_for("looking")
        assert "pip install watchfiles" in one.watcher.as_json()["detail"]
        (root / "MEMORY.md").write_text("The grebe dives.")
        wait_until(lambda: finds("grebe"), "a look")
        assert len(one.states) == 1


def test_a_change_that_was_not_told_is_found_by_the_regular_run(
    workspace, database, impatient, monkeypatch, finds
):
    root = workspace({"MEMORY.md": "The heron nests."})
    monkeypatch.setattr(watching, "REGULAR_S", 0.2)
    monkeypatch.setattr(watching, "kind_of_change", lambda path, folders, links: None)
    with watched(database, IndexSettings(root)) as one:
        one.wait_for("watching")
        (root / "MEMORY.md").write_text("The grebe dives.")
        wait_until(lambda: finds("grebe"), "the regular run")
    assert [state.state for state in one.states] == ["watching"]


def test_its_turn_comes(workspace, database, impatient):
    root = workspace({"MEMORY.md": "The heron nests."})
    with watching_turn(database) as is_ours, watched(database, IndexSettings(root)) as one:
        assert is_ours
        one.wait_for("waiting")
        assert not database.exists()
    with watched(database, IndexSettings(root)) as one:
        one.wait_for("watching")
        assert is_watched(database)
    assert not is_watched(database)


def test_an_index_is_kept_as_it_was_made(workspace, database, index, tiny, rows):
    root = workspace({"MEMORY.md": "The heron nests."})
    asked = {"names": "tiny", "dimensions": None}
    index(root, tiny, chunk_tokens=50, chunk_overlap=5, asked=asked)
    settings = settings_of(database, Providers())
    assert (settings.root, settings.chunk_tokens, settings.chunk_overlap) == (root, 50, 5)
    assert (list(settings.providers), settings.asked, settings.force) == ([tiny], asked, False)
    with watched(database, settings) as one:
        one.wait_for("watching")
    (report,) = one.reports
    assert not report.has_changes


@pytest.mark.parametrize(
    "meta", ['{"provider": "none"}', '{"root": 5}', '{"root": "/", "provider": "magic"}', "[]", "{"]
)
def test_an_index_that_does_not_say_how(workspace, database, index, change, meta):
    index(workspace({"MEMORY.md": "x"}))
    change(f"update meta set value = '{meta}' where key = 'memory_index_meta_v1'")
    with pytest.raises(NotRemembered, match=r"memory\.db: "):
        settings_of(database, Providers())
