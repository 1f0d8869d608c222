"""What goes wrong on the way to a provider, and what a database of somebody else's may say of itself."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import KEY
from datasette.cli import cli
from test_batches import notes
from test_queries import answer_of, codes
from test_views import SEARCH

from datasette_agent_memory.connections import DatabaseError, open_readonly, open_writable
from datasette_agent_memory.embeddings import chain, queries, remote
from datasette_agent_memory.embeddings.base import EmbeddingError
from datasette_agent_memory.embeddings.queries import QueryVectors
from datasette_agent_memory.report import IndexIncomplete
from datasette_agent_memory.schema import META_KEY, PENDING_KEY
from datasette_agent_memory.search import ask
from datasette_agent_memory.status import read_status


@pytest.fixture
def change_meta(database):
    """Put other values into what the index says of itself."""

    def change(**values):
        with open_writable(database) as conn:
            ((meta,),) = conn.execute("select value from meta where key = ?", (META_KEY,)).fetchall()
            conn.execute(
                "update meta set value = ? where key = ?", (json.dumps(json.loads(meta) | values), META_KEY)
            )

    return change


def run(*arguments):
    chain.forget_providers()
    return CliRunner().invoke(cli, ["agent-memory", *map(str, arguments)])


# The way there


@pytest.mark.parametrize(
    "variable, value",
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1"),
        ("HTTPS_PROXY", "nonsense://x"),
        ("SSL_CERT_FILE", "/no/such/file.pem"),
    ],
)
def test_a_network_that_is_set_up_badly_is_one_line(
    workspace, database, server, monkeypatch, variable, value
):
    monkeypatch.setenv(variable, value)
    root = workspace(notes(2))
    result = run("index", root, "-d", database, "--provider", "openai", "--model", "m")
    assert result.exit_code == 1 and "the network cannot be used" in result.stderr
    assert isinstance(result.exception, SystemExit)
    result = run("index", root, "-d", database, "--provider", "openai=m,embedded")
    assert result.exit_code == 0 and "is made with embedded" in result.stderr


def test_an_answer_that_drips_has_a_time_limit(workspace, index, server, openai, monkeypatch):
    monkeypatch.setattr(remote, "READ_TIMEOUT_S", 0.5)
    server.script = ["drip"]
    index(workspace(notes(1)), openai)
    assert len(server.requests) == 2


def test_a_provider_that_hangs_holds_up_no_other(monkeypatch):
    class Provider:
        in_process = False

        def __init__(self, key):
            self.key = key
            self.asked = []

        def embed_query(self, text):
            self.asked.append(text)
            if self.key == "hangs":
                may_end.wait(60)
            return np.ones(4, dtype=np.float32)

    monkeypatch.setattr(queries, "_PAUSE_S", 600)
    may_end = threading.Event()
    vectors = QueryVectors()

    async def ask_both():
        hanging, well = Provider("hangs"), Provider("well")
        waiting = [
            asyncio.create_task(vectors.fetch_async(hanging, f"query {number}", 1)) for number in range(8)
        ]
        while len(hanging.asked) < 4:
            await asyncio.sleep(0.01)
        await vectors.fetch_async(well, "heron", 30)
        failures = [str(error) for error in await asyncio.gather(*waiting, return_exceptions=True)]
        assert sum("did not answer within 1 s" in failure for failure in failures) == 4
        assert sum("too many queries" in failure for failure in failures) == 4
        # By now that is known, and nobody else is kept waiting for it.
        with pytest.raises(EmbeddingError, match="did not answer within 1 s"):
            await vectors.fetch_async(hanging, "another", 30)
        assert len(hanging.asked) == 4
        may_end.set()

    asyncio.run(ask_both())


def test_an_exception_of_any_kind_is_one_line(workspace, index, tiny, monkeypatch, rows):
    def fails(texts):
        raise RuntimeError(f"Authorization: Bearer {KEY}")

    monkeypatch.setattr(tiny, "embed_documents", fails)
    with pytest.raises(IndexIncomplete, match="tiny tiny-bag failed with RuntimeError") as raised:
        index(workspace(notes(2)), tiny)
    assert KEY not in str(raised.value)
    assert rows("select count(*) from chunks_fts where chunks_fts match 'heron'") == [(2,)]


def test_vectors_wider_than_an_index_can_have(workspace, database, server):
    server.dims = 9000
    result = run("index", workspace(notes(2)), "-d", database, "--provider", "openai=m,embedded")
    assert result.exit_code == 0 and "gives 9000 dimensions" in result.stderr


# The index


def test_the_first_chunks_may_have_no_vector(workspace, index, server, openai, database):
    server.refuses = lambda text: "refused" in text
    root = workspace({"memory/a.md": "\n\n".join("refused " * 199 for _ in range(160)), **notes(3)})
    index(root, openai)
    with open_readonly(database) as conn:
        answer = ask(conn, "heron", {"min_score": 0})
        assert answer.index.pending > 100 and answer.options.mode == "hybrid"
        assert read_status(conn)["searches"] == "hybrid"


def test_a_hand_over_to_keywords_leaves_nothing_pending(workspace, database, server, rows):
    server.always = "bad_key"
    result = run("index", workspace(notes(3)), "-d", database, "--provider", "openai=m,none")
    assert result.exit_code == 0
    assert rows(f"select value from meta where key = '{PENDING_KEY}'") == []
    with open_readonly(database) as conn:
        status = read_status(conn)
    assert (status["provider"], status["pending_chunks"], status["first_choice"]) == ("none", 0, False)
    assert "HTTP 401" in status["passed_over"][0]["reason"]


def test_the_cause_of_a_failed_run_is_told_until_one_succeeds(workspace, index, server, openai, database):
    server.always = "bad_key"
    root = workspace(notes(3))
    with pytest.raises(IndexIncomplete):
        index(root, openai)
    with open_readonly(database) as conn:
        (notice,) = [one for one in read_status(conn)["notices"] if one["code"] == "vectors_pending"]
    assert "HTTP 401, it refuses the key of OPENAI_API_KEY" in notice["message"]
    server.always = None
    index(root, openai)
    with open_readonly(database) as conn:
        assert "vectors_pending" not in [one["code"] for one in read_status(conn)["notices"]]


def test_what_is_pending_is_taken_from_another_index_too(
    workspace, index, server, openai, database, tmp_path
):
    root = workspace(notes(4))
    full = tmp_path / "full.db"
    run("index", root, "-d", full, "--provider", "openai", "--model", "test-16")
    server.always = "quota"
    with pytest.raises(IndexIncomplete):
        index(root, openai)
    server.requests.clear()
    report = index(root, openai, cache_from=[full])
    assert server.requests == [] and report.embeddings_taken_over == 4


def test_a_dry_run_counts_as_the_run_does_and_leaves_no_trace(workspace, index, server, openai, database):
    root = workspace(notes(6))
    server.always = "quota"
    with pytest.raises(IndexIncomplete):
        index(root, openai)
    (root / "memory/0000.md").unlink()
    workspace({"memory/0001.md": "another text", "memory/new.md": "new"})
    before = {file.name: file.read_bytes() for file in database.parent.glob("memory.db*")}
    dry = index(root, openai, dry_run=True)
    assert {file.name: file.read_bytes() for file in database.parent.glob("memory.db*")} == before
    server.always = None
    server.requests.clear()
    real = index(root, openai)
    assert dry.embeddings_computed == real.embeddings_computed == len(server.texts) == 6
    assert (dry.tokens, dry.chunks_total) == (real.tokens, real.chunks_total)
    assert list(database.parent.glob("memory.db-*")) == []


def test_an_absent_provider_changes_nothing_of_what_the_index_says(
    workspace, database, server, monkeypatch, rows
):
    root = workspace(notes(2))
    run("index", root, "-d", database, "--provider", "openai", "--model", "nomic-embed-text")
    before = rows("select value from meta where key = ?", (META_KEY,))
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert run("index", root, "-d", database).exit_code == 0
    assert rows("select value from meta where key = ?", (META_KEY,)) == before


# Interruptions of a real process


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGINT for one process")
@pytest.mark.parametrize("provider", ["none", "llm"])
def test_ctrl_c_ends_a_run_in_every_phase(workspace, database, tmp_path, provider, rows):
    if provider == "llm":
        pytest.importorskip("llm")
    root = workspace(notes(3000 if provider == "none" else 3))

    def has_files():
        try:
            return rows("select 1 from files limit 1") != []
        except DatabaseError:  # no database yet, or no table
            return False

    plugin = """
import sys, time
import llm

class Hangs(llm.EmbeddingModel):
    model_id = "hangs"
    def embed_batch(self, items):
        print("hanging", file=sys.stderr, flush=True)
        time.sleep(60)

class Plugin:
    @llm.hookimpl
    def register_embedding_models(self, register):
        register(Hangs())

from llm.plugins import pm
pm.register(Plugin())
"""
    code = (plugin if provider == "llm" else "") + "from datasette.cli import cli; cli()"
    arguments = ["index", root, "-d", database, "--provider", provider]
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            code,
            "agent-memory",
            *arguments,
            *(["--model", "hangs"] * (provider == "llm")),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LLM_USER_PATH": str(tmp_path / "llm")},
    )
    if provider == "llm":
        while "hanging" not in process.stderr.readline():
            pass
    else:
        while not has_files():
            time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=30)[1]
    assert process.returncode == 130, error
    assert re.search("Error: interrupted", error) and "Traceback" not in error
    if provider == "none":
        assert 0 < rows("select count(*) from files")[0][0] < 3000
    else:
        assert rows("select count(*) from chunks") == [(3,)]


# What a database says of itself


@pytest.mark.parametrize(
    "values",
    [
        {"provider": "local", "model": "x", "modelPath": "a\0b"},
        {"provider": "local", "model": "x", "modelPath": "~nosuch/x.gguf"},
        {"provider": "local", "model": "x", "modelPath": ["x"]},
        {"model": "\ud800"},
        {"model": "x" * 3_000_000},
        {"model": 7},
        {"model": ["<script>"]},
        {"provider": {"a": 1}},
        {"dimensions": "x"},
        {"dimensions": -3},
        {"baseUrl": {"a": "b"}},
        {"prompts": 7},
        {"asked": {"names": 5}},
        {"asked": {"names": "nobody,\x1b[31m", "dimensions": []}},
        {"asked": "x"},
        {"passedOver": "x"},
        {"passedOver": [{"provider": "p" * 200_000, "reason": "<b>" * 100_000}] * 50},
        {"passedOver": [7, None, {"reason": {}}]},
        {"failure": ["x"]},
        {"refusedTexts": "many"},
        {"vectorDims": "wide"},
        {"vectorDims": 10**30},
    ],
    ids=lambda values: str(values)[:60],
)
def test_meta_of_any_type_is_no_traceback(
    workspace, index, server, openai, database, change_meta, make_datasette, values
):
    root = workspace(notes(2))
    index(root, openai)
    change_meta(**values)
    datasette = make_datasette(database)

    async def visit():
        await datasette.invoke_startup()
        for path in (f"{SEARCH}?q=heron", f"{SEARCH}.json?q=heron", f"{SEARCH}/status", "/-/agent-memory"):
            response = await datasette.client.get(path)
            assert response.status_code == 200, path
            assert len(response.text) < 200_000
            if ".json" not in path:
                assert "<b><b>" not in response.text and "['<script>" not in response.text

    asyncio.run(visit())
    for arguments in (["status", "-d", database], ["search", "heron", "-d", database]):
        assert run(*arguments).exit_code == 0
    result = run("index", root, "-d", database)
    assert result.exit_code in (0, 1, 2) and "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("path", ["/etc/passwd", "/dev/zero", "/etc"])
def test_a_database_says_nothing_of_other_files(workspace, index, tiny, database, change_meta, path):
    index(workspace(notes(2)), tiny)
    change_meta(provider="local", model=path.rpartition("/")[2], modelPath=path)
    with open_readonly(database) as conn:
        (notice,) = [one for one in read_status(conn)["notices"] if one["code"] == "model_unavailable"]
    assert f"there is no file {path}" in notice["message"]


@pytest.mark.asyncio
async def test_status_tells_of_the_last_query_that_failed(
    workspace, index, server, openai, database, make_datasette
):
    index(workspace(notes(2)), openai)
    datasette = make_datasette(database)
    server.always = "bad_key"
    assert codes(await answer_of(datasette)) == ["embedding_failed"]
    status = (await datasette.client.get(f"{SEARCH}/status.json")).json()
    (notice,) = [one for one in status["notices"] if one["code"] == "embedding_failed"]
    assert "HTTP 401" in notice["message"]


@pytest.mark.parametrize("model", ["\udcff", "a\nb", "x" * 2000])
def test_a_models_name_is_a_line_of_text(workspace, database, server, model):
    result = run("index", workspace(notes(1)), "-d", database, "--provider", "openai", "--model", model)
    assert result.exit_code in (1, 2) and "a model's name is a line of text" in result.stderr


def test_a_home_that_is_not_there(workspace, database, monkeypatch):
    monkeypatch.setenv("AGENT_MEMORY_LOCAL_MODEL", "~nosuch/x.gguf")
    assert run("index", workspace(notes(1)), "-d", database).exit_code == 0
    result = run("index", workspace({}), "-d", database, "--provider", "local", "--model", "~nosuch/x.gguf")
    assert result.exit_code == 1 and "~nosuch/x.gguf" in result.stderr
