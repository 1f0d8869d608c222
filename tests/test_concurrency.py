"""Indexers, writers and readers that meet on one database."""

import threading

import pytest

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
