"""Which provider embeds: the chain, what is handed over, and what an index keeps to."""

import json
import re

import pytest
from click.testing import CliRunner
from conftest import KEY
from datasette.cli import cli
from test_batches import notes

from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.embeddings import batches, chain
from datasette_agent_memory.embeddings.base import EmbeddingError, ProviderMissing
from datasette_agent_memory.embeddings.chain import AUTO_CHAIN, Providers
from datasette_agent_memory.embeddings.openai import OpenAIProvider
from datasette_agent_memory.search import ask
from datasette_agent_memory.status import read_status

EMBEDDED = "universal-sentence-encoder-multilingual-3"


@pytest.fixture
def names(monkeypatch):
    """The names of the providers of a chain, and those passed over."""

    def choose(chosen="auto", *arguments):
        chain = Providers().choose(chosen, *arguments)
        return (
            [provider.name if provider else "none" for provider in chain.providers],
            [one.provider for one in chain.passed_over],
        )

    return choose


@pytest.fixture
def run(database):
    """Run `index` on a folder, and give its result."""

    def index(root, *arguments):
        # Another process knows no provider yet, nor the width of its model.
        chain.forget_providers()
        arguments = ["agent-memory", "index", str(root), "-d", str(database), *map(str, arguments)]
        return CliRunner().invoke(cli, arguments)

    return index


@pytest.fixture
def state(database, rows):
    """What the index says of its vectors, and what search and status say; they agree."""

    def read():
        with open_readonly(database) as conn:
            answer, status = ask(conn, "heron", {"min_score": 0}).as_json(), read_status(conn)
        for name in ("provider", "model", "dims", "first_choice", "pending_chunks"):
            assert answer[name] == status[name]
        models = {model for (model,) in rows("select distinct model from chunks")}
        assert models == {status["model"]}
        assert set(rows("select distinct provider, model from embedding_cache")) >= set(
            rows("select ?, model from chunks where embedding <> '[]'", (status["provider"],))
        )
        return status

    return read


def test_auto_is_what_is_there(names, monkeypatch, tmp_path):
    assert names() == (["embedded", "none"], [])
    for variable, expected in (
        ("MISTRAL_API_KEY", ["mistral"]),
        ("VOYAGE_API_KEY", ["voyage", "mistral"]),
        ("GOOGLE_API_KEY", ["gemini", "voyage", "mistral"]),
        ("OPENAI_API_KEY", ["openai", "gemini", "voyage", "mistral"]),
    ):
        monkeypatch.setenv(variable, KEY)
        assert names() == ([*expected, "embedded", "none"], [])
    monkeypatch.setenv("OPENAI_API_KEY", " ")
    assert names()[0][0] == "gemini"
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model = tmp_path / "some.gguf"
    model.write_bytes(b"not a model")
    monkeypatch.setenv("AGENT_MEMORY_LOCAL_MODEL", str(model))
    assert names() == (list(AUTO_CHAIN)[1:], ["local"])


def test_order_and_members_can_be_said(names, monkeypatch):
    assert names("none") == (["none"], [])
    assert names("embedded") == (["embedded"], [])
    monkeypatch.setenv("VOYAGE_API_KEY", KEY)
    assert names("embedded,voyage,none") == (["embedded", "voyage", "none"], [])
    # What is named and not there is passed over; what is not named is not used.
    assert names("openai, embedded") == (["embedded"], ["openai"])
    assert names("gemini,auto") == (["voyage", "embedded", "none"], ["gemini"])
    with pytest.raises(ProviderMissing, match="OPENAI_API_KEY"):
        names("openai")
    with pytest.raises(ValueError, match=r"provider must be of auto, local, .*none, not 'cohere'"):
        names("openai,cohere")
    with pytest.raises(ValueError, match="a model needs its provider's name, not auto"):
        names("auto=some-model")
    with pytest.raises(ValueError, match="dimensions need the name of one provider"):
        names("openai,embedded", 16)
    with pytest.raises(EmbeddingError, match="embedded has no model but"):
        names("embedded=other")
    # What comes after none cannot be reached.
    assert names("none,embedded") == (["none"], [])


@pytest.mark.parametrize("step", ["bad_key", "quota", ("status", 404), ("status", 500)], ids=str)
def test_a_provider_that_fails_hands_over_wholly(workspace, run, state, server, database, monkeypatch, step):
    monkeypatch.setattr(batches, "INDEX_ATTEMPTS", 2)
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    monkeypatch.setenv("GEMINI_BASE_URL", server.url)
    server.always = step
    result = run(workspace(notes(5)))
    assert result.exit_code == 0, result.output
    for name in ("openai text-embedding-3-small", "gemini gemini-embedding-001"):
        assert re.search(rf"{name}: HTTP \d+.*\. The whole index is made with \w+ .* instead", result.stderr)
    status = state()
    assert (status["provider"], status["model"], status["dims"]) == ("embedded", EMBEDDED, 512)
    assert status["pending_chunks"] == 0 and status["first_choice"] is False
    assert [one["provider"] for one in status["passed_over"]] == ["openai", "gemini"]
    assert "second_choice" in [notice["code"] for notice in status["notices"]]
    with open_readonly(database) as conn:
        fallback = ask(conn, "heron").as_openclaw()["fallback"]
    assert fallback["from"] == "openai" and "HTTP" in fallback["reason"]
    assert KEY not in json.dumps(status) + result.output


def test_what_had_begun_is_not_mixed_in(workspace, run, state, server, monkeypatch, rows):
    monkeypatch.setattr(chain.PROVIDERS["openai"], "max_batch_texts", 1)
    server.script = [None] * 3
    server.always = "quota"
    result = run(workspace(notes(9)), "--provider", "openai=test-16,embedded")
    assert result.exit_code == 0
    assert state()["provider"] == "embedded"
    assert rows("select count(*) from chunks where embedding <> '[]'") == [(9,)]
    # What was paid for stays in the cache.
    ((kept,),) = rows("select count(*) from embedding_cache where provider = 'openai'")
    assert 3 <= kept <= 6
    server.always = None
    server.requests.clear()
    result = run(workspace({}))
    assert state()["provider"] == "openai" and state()["first_choice"] is True
    assert len(server.texts) == 9 - kept + 1  # and the query


def test_a_provider_named_alone_is_not_replaced(workspace, run, state, server, rows):
    server.always = "quota"
    result = run(workspace(notes(5)), "--provider", "openai", "--model", "test-16")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("Error: openai test-16: HTTP 429")
    assert "0 of 5 texts are embedded and kept, and keywords find all of them" in result.stderr
    status = state()
    assert (status["provider"], status["pending_chunks"], status["searches"]) == ("openai", 5, "keyword")
    assert [notice["code"] for notice in status["notices"]] == ["vectors_pending"]
    assert "5 of 5 chunks have no vector yet" in status["notices"][-1]["message"]


def test_a_failed_change_of_models_leaves_the_index_as_it_was(workspace, run, state, server, rows):
    root = workspace(notes(5))
    assert run(root, "--provider", "embedded").exit_code == 0
    before = rows("select * from chunks")
    server.always = "bad_key"
    result = run(root, "--provider", "openai")
    assert result.exit_code == 1 and "the index is as it was" in result.stderr
    assert rows("select * from chunks") == before and state()["provider"] == "embedded"


def test_an_index_with_vectors_waits_for_its_provider(workspace, run, state, server, monkeypatch):
    monkeypatch.setattr(batches, "INDEX_ATTEMPTS", 2)
    root = workspace(notes(5))
    assert run(root, "--provider", "openai=test-16,embedded").exit_code == 0
    workspace({"memory/new.md": "a new heron"})
    server.always = ("status", 503)
    result = run(root)
    assert result.exit_code == 1 and "HTTP 503" in result.stderr
    status = state()
    assert (status["provider"], status["chunks"], status["pending_chunks"]) == ("openai", 6, 1)
    server.always = None
    assert run(root).exit_code == 0
    assert state()["pending_chunks"] == 0


def test_a_rebuild_with_the_same_model_waits_for_it_too(workspace, run, state, server, monkeypatch):
    monkeypatch.setattr(batches, "INDEX_ATTEMPTS", 2)
    root = workspace({"MEMORY.md": "heron " * 500})
    assert run(root, "--provider", "openai=test-16,embedded").exit_code == 0
    server.always = ("status", 503)
    result = run(root, "--chunk-tokens", 200)
    assert result.exit_code == 1 and "the index is as it was" in result.stderr
    assert (state()["provider"], state()["chunk_tokens"]) == ("openai", 400)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    "lost, missing_thing",
    [
        ("OPENAI_API_KEY", "openai needs a key: OPENAI_API_KEY is not set"),
        # Notes and key must not go to another address than before because of that.
        ("OPENAI_BASE_URL", "the address of openai here is https://openai.example/v1; OPENAI_BASE_URL or"),
    ],
)
def test_a_lost_key_or_address_leads_to_no_other_model(
    workspace, run, state, server, monkeypatch, named, lost, missing_thing
):
    # A server that wants a key, at what is an address of one's own.
    monkeypatch.setattr(
        OpenAIProvider,
        "default_base_url",
        server.url if lost == "OPENAI_API_KEY" else "https://openai.example/v1",
    )
    root = workspace(notes(5))
    given = ["--provider", "openai", "--model", "test-16"] if named else []
    server.dims = 16 if named else 1536
    assert run(root, *given).exit_code == 0
    monkeypatch.delenv(lost)
    # Nothing to embed: nothing is missing.
    result = run(root)
    assert result.exit_code == 0, result.output
    assert state()["provider"] == "openai"
    workspace({"memory/new.md": "a new heron"})
    result = run(root)
    assert result.exit_code == 1 and missing_thing in result.stderr
    status = state()
    assert (status["provider"], status["chunks"], status["pending_chunks"]) == ("openai", 6, 1)
    assert status["searches"] == "keyword"
    (missing,) = [one for one in status["notices"] if one["code"] == "model_unavailable"]
    assert missing_thing in missing["message"]
    # Asked for, another model is taken.
    assert run(root, "--provider", "embedded").exit_code == 0
    assert (state()["provider"], state()["pending_chunks"]) == ("embedded", 0)


def test_an_index_keeps_to_what_it_was_made_with(workspace, run, state, server, monkeypatch):
    root = workspace(notes(3))
    assert run(root, "--provider", "embedded").exit_code == 0
    # A key that is there for other reasons sends nothing anywhere.
    assert run(root).exit_code == 0 and server.requests == []
    assert run(root, "--provider", "openai", "--model", "nomic-embed-text").exit_code == 0
    server.requests.clear()
    workspace({"memory/new.md": "new"})
    assert run(root).exit_code == 0
    assert [request.body["model"] for request in server.requests] == ["nomic-embed-text"]
    assert state()["model"] == "nomic-embed-text"


def test_a_change_of_models_is_said_first_and_rebuilds(workspace, run, state, server, rows):
    root = workspace(notes(4))
    run(root, "--provider", "openai", "--model", "a-16")
    server.requests.clear()
    result = run(root, "--provider", "openai", "--model", "b-16", "--dry-run")
    assert "openai b-16: 4 texts to embed, about 16 tokens" in result.stderr and server.requests == []
    assert state()["model"] == "a-16"
    # Of the same width, the worst case.
    server.requests.clear()
    run(root, "--provider", "openai", "--model", "b-16")
    assert state()["model"] == "b-16" and len(server.texts) == 4 + 1
    server.dims = 24
    run(root, "--provider", "openai", "--model", "c-24")
    assert (state()["model"], state()["dims"]) == ("c-24", 24)
    # Back again costs nothing.
    server.requests.clear()
    server.always = "bad_key"
    assert run(root, "--provider", "openai", "--model", "a-16").exit_code == 0
    assert (state()["model"], state()["dims"]) == ("a-16", 16)


def test_the_old_index_answers_until_the_new_one_is_whole(
    workspace, run, state, server, database, monkeypatch
):
    root = workspace(notes(6))
    run(root, "--provider", "openai", "--model", "a-16")
    monkeypatch.setattr(chain.PROVIDERS["openai"], "max_batch_texts", 1)
    seen = []
    well = server.well

    def look(http, body, texts):
        if body["model"] == "b-16":
            with open_readonly(database) as conn:
                seen.append(read_status(conn)["model"])
        well(http, body, texts)

    monkeypatch.setattr(server, "well", look)
    run(root, "--provider", "openai", "--model", "b-16")
    assert seen == ["a-16"] * 6 and state()["model"] == "b-16"


def test_a_change_of_prompts_or_address_is_a_change_of_models(workspace, run, state, server, monkeypatch):
    run(workspace(notes(2)), "--provider", "openai", "--model", "a-16")
    assert state()["searches"] == "hybrid"
    monkeypatch.setenv("OPENAI_BASE_URL", server.url.replace("127.0.0.1", "localhost"))
    status = state()
    assert status["searches"] == "keyword"
    (notice,) = [one for one in status["notices"] if one["code"] == "model_unavailable"]
    assert server.url in notice["message"] and "localhost" in notice["message"]


def test_meta_names_what_makes_vectors_comparable(workspace, run, rows, server):
    server.dims = 8
    run(workspace(notes(2)), "--provider", "openai", "--model", "nomic-embed-text", "--dimensions", "8")
    ((meta,),) = rows("select value from meta where key = 'memory_index_meta_v1'")
    meta = json.loads(meta)
    assert (meta["provider"], meta["model"], meta["vectorDims"]) == ("openai", "nomic-embed-text", 8)
    assert meta["prompts"] == {"query": "search_query: ", "document": "search_document: "}
    assert (meta["dimensions"], meta["normalised"], meta["baseUrl"]) == (8, True, server.url)
    assert re.fullmatch("[0-9a-f]{64}", meta["providerKey"])


def test_the_key_is_nowhere(workspace, run, server, database, rows):
    server.script = ["bad_key"]
    output = run(workspace(notes(2)), "--provider", "openai", "--model", "a-16").output
    output += run(workspace(notes(2))).output + run(workspace({}), "--force", "--json").output
    files = [database, *database.parent.glob("memory.db-*")]
    assert all(KEY.encode() not in file.read_bytes() for file in files)
    assert KEY not in output
    assert not any(KEY[start : start + 8] in output for start in range(len(KEY) - 8))


def test_openclaws_embeddings_are_taken_over(workspace, run, server, tmp_path, database, rows, openai):
    """An index by OpenClaw has its embeddings under the same keys and hashes."""
    other = tmp_path / "openclaw.sqlite"
    run(workspace(notes(4)), "--provider", "openai", "--model", "a-16", "-d", other)
    with_slash = Providers().get("openai", "a-16").keys[1]
    from datasette_agent_memory.connections import open_writable

    with open_writable(other) as conn:
        conn.execute("update embedding_cache set provider_key = ?", (with_slash,))
        # Of no unit length, as servers may give them.
        conn.execute("update embedding_cache set embedding = replace(embedding, ',', '0,')")
    server.requests.clear()
    run(workspace({}), "--provider", "openai", "--model", "a-16", "--cache-from", other)
    assert server.requests == [] and rows("select count(*) from chunks where embedding <> '[]'") == [(4,)]


def test_bad_usage_is_named(workspace, run, tmp_path):
    root = workspace(notes(1))
    for arguments, message in (
        (["--provider", "cohere"], "provider must be of"),
        (["--provider", ""], "provider must be of"),
        (["--model", "x"], "a model needs its provider's name"),
        (["--model", "x", "--provider", "openai,embedded"], "of several, write NAME=x"),
        (["--dimensions", "8"], "dimensions need the name of one provider"),
        (["--provider", "embedded", "--model", "x"], "embedded has no model but"),
        (["--provider", "openai"], "OPENAI_API_KEY"),
        (["--provider", "local", "--model", tmp_path / "no.gguf"], "no.gguf"),
        (["--cache-from", tmp_path / "no.db"], "no such database file"),
        (["--dimensions", "0"], "--dimensions"),
    ):
        result = run(root, *arguments)
        assert result.exit_code in (1, 2) and message in result.stderr, arguments
        assert "Traceback" not in result.output


def test_a_provider_in_the_environment_keeps_the_address(workspace, run, state, server, monkeypatch):
    root = workspace(notes(2))
    run(root, "--provider", "openai", "--model", "m16")
    monkeypatch.setenv("AGENT_MEMORY_PROVIDER", "openai=m16")
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.setattr(OpenAIProvider, "default_base_url", "https://openai.example/v1")
    workspace({"memory/new.md": "new"})
    server.requests.clear()
    result = run(root)
    assert result.exit_code == 1 and "OPENAI_BASE_URL or providers.openai.base_url sets it" in result.stderr
    # Nor does another model of the same provider go elsewhere unasked.
    result = run(root, "--model", "n16")
    assert result.exit_code == 1 and "OPENAI_BASE_URL or" in result.stderr
    assert server.requests == [] and state()["model"] == "m16"


def test_dimensions_alone_change_the_width_and_not_the_model(workspace, run, state, server):
    root = workspace(notes(2))
    run(root, "--provider", "openai", "--model", "m16")
    server.dims = 8
    assert run(root, "--dimensions", "8").exit_code == 0
    assert (state()["model"], state()["dims"]) == ("m16", 8)
    assert server.requests[-1].body["dimensions"] == 8
    server.requests.clear()
    assert run(root).exit_code == 0 and state()["dims"] == 8
    assert run(root, "--provider", "openai", "--dimensions", "8").exit_code == 0
    assert state()["model"] == "m16"


def test_all_that_failed_is_told(workspace, run, state, server, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    monkeypatch.setenv("GEMINI_BASE_URL", server.url)
    server.always = "bad_key"
    result = run(workspace(notes(2)), "--provider", "openai=m16,gemini", "--json")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "openai m16: HTTP 401" in line and "gemini gemini-embedding-001: HTTP 401" in line
    assert "keywords find all of them" in line and "as it was" not in line


def test_a_change_that_failed_is_told_by_the_index(workspace, run, state, server):
    root = workspace(notes(2))
    run(root, "--provider", "openai", "--model", "m16")
    server.script = ["bad_key"]
    assert run(root, "--provider", "openai", "--model", "n16").exit_code == 1
    (notice,) = [one for one in state()["notices"] if one["code"] == "last_run_failed"]
    assert "openai n16: HTTP 401" in notice["message"] and state()["searches"] == "hybrid"
    assert run(root, "--provider", "openai", "--model", "m16").exit_code == 0
    assert [one for one in state()["notices"] if one["code"] == "last_run_failed"] == []


def test_a_run_that_did_not_begin_leaves_no_file(workspace, run, database, tmp_path):
    result = run(workspace(notes(1)), tmp_path / "no.md", "--provider", "embedded")
    assert result.exit_code == 1 and not database.exists()
