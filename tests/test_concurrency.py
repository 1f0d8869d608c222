"""Indexers, writers and readers that meet on one database."""

import subprocess
import sys
import threading

import pytest
from serving import Server
from survival import Readers, Survival, Worker, check

from datasette_agent_memory import connections, ingest
from datasette_agent_memory.connections import DatabaseError, open_readonly, open_writable
from datasette_agent_memory.ingest import IndexSettings, update_index
from datasette_agent_memory.report import IndexIncomplete, Listener


class Waiting(Listener):
    def __init__(self, then):
        self.times = 0
        self.then = then

    def waits_for_writer(self):
        self.times += 1
        self.then()


@pytest.fixture
def other(database, monkeypatch):
    """A connection of another's, in the middle of writing."""
    monkeypatch.setattr(connections, "BUSY_TIMEOUT_S", 0.05)
    with open_writable(database) as conn:
        yield conn


def test_a_run_waits_for_another_writer(workspace, index, database, other, rows):
    root = workspace({"a.md": "alpha"})
    index(root)
    workspace({"a.md": "beta"})
    other.execute("begin immediate")
    release = Waiting(lambda: other.execute("rollback"))
    report = update_index(database, IndexSettings(root), release)
    assert report.files_updated == 1 and release.times == 1
    assert rows("select text from chunks") == [("beta",)]


def test_a_run_does_not_wait_for_ever(workspace, index, database, other, monkeypatch):
    root = workspace({"a.md": "alpha"})
    index(root)
    workspace({"a.md": "beta"})
    monkeypatch.setattr(ingest, "_LONGEST_WAIT_S", 0.0)
    other.execute("begin immediate")
    with pytest.raises(DatabaseError, match="another process has been writing"):
        update_index(database, IndexSettings(root))


def test_waiting_can_be_interrupted(workspace, index, database, other):
    root = workspace({"a.md": "alpha"})
    index(root)
    workspace({"a.md": "beta"})
    other.execute("begin immediate")
    stop = threading.Event()
    with pytest.raises(IndexIncomplete, match="interrupted"):
        update_index(database, IndexSettings(root), Waiting(stop.set), stop)
    with open_readonly(database) as conn:
        assert [row[0] for row in conn.execute("select text from chunks")] == ["alpha"]


def test_a_full_disk_is_one_line_and_keeps_the_index(workspace, tmp_path, run_limited, rows, agreement):
    root = workspace({f"{number}.md": f"heron {number}\n" * 40 for number in range(20)})
    arguments = ["agent-memory", "index", str(root), "-d", str(tmp_path / "memory.db"), "--provider", "none"]
    assert run_limited(1 << 30, *arguments)[0] == 0
    before = rows("select id from chunks order by id")
    for number in range(20):
        (root / f"{number}.md").write_text(f"kettle {number}\n" * 400)
    for more in ((), ("--force",)):
        code, output = run_limited(300_000, *arguments, *more)
        assert code == 1 and output.count("\n") == 1 and "what was indexed is kept" in output, output
        assert agreement() >= len(before)
    assert set(before) & set(rows("select id from chunks")), "some are not changed yet"
    assert run_limited(1 << 30, *arguments)[0] == 0 and agreement() > len(before)


def test_readers_of_a_server_never_fail(tmp_path):
    """While two indexers, and rebuilds, are at work on the database that it serves."""
    survival = Survival(tmp_path, seed=3, files=8)
    arguments = ["index", str(survival.memory.root), "-d", str(survival.database)]
    with Worker() as one, Worker() as other:
        assert one.run(*arguments, "--provider", "embedded") == 0
        server = Server(["serve", survival.database])
        with Readers(f"{server.url}/memory/-/agent-memory", survival.memory) as readers:
            for more in ((), ("--force",), ("--chunk-tokens", "100")):
                survival.memory.change()
                assert 0 in survival.run_both((one, other), more)
        assert one.run(*arguments) == 0
        survival.memory.settle()
        check(survival.database, survival.memory.versions)
        server.close()
    assert readers.failures == [] and readers.answers > 20


@pytest.fixture
def run_limited():
    """Run Datasette's command line where files cannot grow above a size, as on a full disk."""
    resource = pytest.importorskip("resource")

    def run(size, *arguments):
        done = subprocess.run(
            [sys.executable, "-m", "datasette", *arguments],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stderr if done.returncode else ""

    return run
