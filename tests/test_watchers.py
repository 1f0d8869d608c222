"""`watch: true`: a server that keeps its memories fresh."""

import json
import shutil
import time
import urllib.request
from typing import get_args

import pytest
from browsing import Server

from datasette_agent_memory import watchers
from datasette_agent_memory.config import PLUGIN_NAME
from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.ingest import IndexSettings, update_index
from datasette_agent_memory.status import read_status, watching_in_words
from datasette_agent_memory.watching import ANOTHER_WATCHES, State

PATIENCE_S = 60
ADDRESS = "/memory/-/agent-memory"


@pytest.fixture
def start(tmp_path):
    """Serve databases in a process of their own, with what is configured of the plugin."""
    servers = []

    def run(database, watch=True, **more):
        config = tmp_path / "config.json"
        config.write_text(json.dumps({"plugins": {PLUGIN_NAME: {"watch": watch}}}))
        # 1.0a takes the plugins of metadata for configuration.
        servers.append(Server([database, "-m", config], **more))
        return servers[-1]

    yield run
    for server in servers:
        server.close()


def answer(server, address):
    with urllib.request.urlopen(f"{server.url}{ADDRESS}{address}") as response:
        return response.read().decode()


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def found(server, word):
    return [hit["path"] for hit in json.loads(answer(server, f".json?q={word}"))["results"]]


def watching(server):
    return json.loads(answer(server, "/status.json"))["watch"]


def test_a_server_keeps_its_memory_fresh(start, workspace, index, database):
    root = workspace({"MEMORY.md": "The heron nests."})
    index(root)
    (root / "MEMORY.md").write_text("The bittern booms.")
    first = start(database)
    # What changed while nothing ran, and then what changes.
    wait_until(lambda: found(first, "bittern"))
    (root / "memory").mkdir()
    (root / "memory/a.md").write_text("An otter swims.")
    wait_until(lambda: found(first, "otter") == ["memory/a.md"])
    watch = wait_until(lambda: watching(first)["state"] == "watching" and watching(first))
    assert watch["detail"] is None and watch["last_run"]["added"] == 1
    page = answer(first, "/status")
    assert "Kept fresh" in page and "Changes of its files are indexed as they happen" in page
    # Of several workers one does it, and another goes on when that dies.
    second = start(database)
    wait_until(lambda: (watching(second) or {}).get("state") == "waiting")
    assert "another process" in watching(second)["detail"]
    first.process.kill()
    first.process.wait()
    (root / "memory/a.md").write_text("A kingfisher dives.")
    wait_until(lambda: found(second, "kingfisher"))
    wait_until(lambda: watching(second)["state"] == "watching")


@pytest.fixture
def served(make_datasette):
    """A Datasette in this process whose watchers are ended after the test."""

    def make(*files, config=None, **kwargs):
        return make_datasette(*files, metadata=config or configured(True), **kwargs)

    yield make
    watchers.stop_watchers()


def configured(watch, database=None):
    plugins = {"plugins": {PLUGIN_NAME: {"watch": watch}}}
    return plugins if database is None else {"databases": {database: plugins}}


async def watch_of(datasette, name="memory"):
    response = await datasette.client.get(f"/{name}/-/agent-memory/status.json")
    assert response.status_code == 200
    return response.json()["watch"]


@pytest.mark.asyncio
async def test_one_of_several_databases(served, workspace, index, database, tmp_path):
    index(workspace({"MEMORY.md": "x"}))
    shutil.copy(database, tmp_path / "other.db")
    datasette = served(database, tmp_path / "other.db", config=configured(True, "other"))
    await datasette.invoke_startup()
    assert await watch_of(datasette) is None
    assert (await watch_of(datasette, "other"))["state"] in ("starting", "indexing", "watching")


@pytest.mark.asyncio
async def test_a_database_that_becomes_a_memory_is_watched(served, workspace, database, tmp_path):
    root = workspace({"MEMORY.md": "x"})
    from sqlite_utils import Database

    made = Database(str(database))
    made["t"].insert({"id": 1})
    made.close()
    datasette = served(database)
    await datasette.invoke_startup()
    update_index(database, IndexSettings(root))
    assert (await datasette.client.get("/-/agent-memory")).status_code == 200
    assert (await watch_of(datasette))["state"] != "off"


@pytest.mark.asyncio
async def test_one_block_takes_back_what_the_other_says(served, workspace, index, database):
    index(workspace({"MEMORY.md": "x"}))
    datasette = served(database, config={**configured(True), **configured(False, "memory")})
    await datasette.invoke_startup()
    assert await watch_of(datasette) is None


@pytest.mark.asyncio
@pytest.mark.parametrize("database_block", [False, True])
async def test_a_bad_value_is_refused_at_the_start(served, workspace, index, database, database_block):
    from click import ClickException

    index(workspace({"MEMORY.md": "x"}))
    datasette = served(database, config=configured("sometimes", "memory" if database_block else None))
    with pytest.raises(ClickException, match="watch must be 0 or 1, not 'sometimes'"):
        await datasette.invoke_startup()


@pytest.mark.asyncio
async def test_an_immutable_database_is_not_watched(served, workspace, index, database):
    index(workspace({"MEMORY.md": "x"}))
    datasette = served(immutables=[str(database)])
    await datasette.invoke_startup()
    watch = await watch_of(datasette)
    assert (watch["state"], watch["detail"]) == ("off", "it is served as immutable")
    page = (await datasette.client.get(f"{ADDRESS}/status")).text
    assert "It is not kept fresh, although it is configured so: it is served as immutable" in page


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "meta, reason",
    [
        ("{}", "another program makes this index"),
        (f'{{"generator": "{PLUGIN_NAME}"}}', "it does not say of which folder"),
    ],
)
async def test_an_index_that_names_no_folder_is_not_watched(
    served, workspace, index, change, database, meta, reason
):
    index(workspace({"MEMORY.md": "x"}))
    change(f"update meta set value = '{meta}' where key = 'memory_index_meta_v1'")
    datasette = served(database)
    await datasette.invoke_startup()
    assert reason in (await watch_of(datasette))["detail"]


@pytest.mark.asyncio
async def test_a_folder_that_is_not_there_is_waited_for(served, workspace, index, database, tmp_path):
    root = workspace({"MEMORY.md": "The heron nests."})
    index(root)
    root.rename(tmp_path / "away")
    datasette = served(database)
    await datasette.invoke_startup()

    deadline = time.monotonic() + PATIENCE_S
    while (watch := await watch_of(datasette))["state"] != "waiting":
        assert time.monotonic() < deadline, watch
    assert watch["detail"].endswith("no such folder; waiting for it")
    assert (await datasette.client.get(f"{ADDRESS}.json?q=heron")).json()["results"]


@pytest.mark.parametrize(
    "state, detail, is_told",
    [
        ("failed", "no model", True),
        ("waiting", "no such folder", True),
        ("off", "immutable", True),
        ("waiting", ANOTHER_WATCHES, False),
        ("watching", None, False),
    ],
)
def test_what_keeps_an_index_from_being_fresh_is_a_notice(workspace, index, database, state, detail, is_told):
    index(workspace({"MEMORY.md": "x"}))
    watch = {"state": state, "detail": detail, "since": None, "last_run": None}
    with open_readonly(database) as conn:
        notices = read_status(conn, watch=watch)["notices"]
    assert [f"watch_{state}"] * is_told == [one["code"] for one in notices if "watch" in one["code"]]


def test_every_state_has_words():
    since = "2026-01-05T09:30:12Z"
    for state in get_args(State):
        watch = {"state": state, "detail": "why", "since": since, "last_run": None}
        assert watching_in_words(watch).endswith(": why (since 2026-01-05 09:30 UTC).")
    watch["last_run"] = {"at": since, "took_s": 0.25, "added": 1, "updated": 2, "removed": 3, "skipped": 4}
    assert "added 1 files, updated 2, removed 3 and skipped 4" in watching_in_words(watch)
