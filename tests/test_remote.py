"""Providers behind HTTP: what they send, and what they make of every kind of answer."""

import numpy as np
import pytest
from conftest import KEY
from embedding_server import DIMS, vector

from datasette_agent_memory.embeddings import chain
from datasette_agent_memory.embeddings.base import (
    EmbeddingError,
    InputRefused,
    ProviderMissing,
    TemporaryError,
    WrongCount,
)
from datasette_agent_memory.embeddings.chain import Providers

TEXTS = ["the heron nests by the canal", "苍鹭在运河边筑巢", "Mara owns billing"]


def unit(text):
    values = np.array(vector(text))
    return values / np.linalg.norm(values)


@pytest.fixture
def provider(server, monkeypatch):
    """A provider by its name, at the local server."""

    def make(name="openai", model="test-16", dimensions=None, key=KEY):
        variable = {"gemini": "GEMINI"}.get(name, name.upper())
        monkeypatch.setenv(f"{variable}_BASE_URL", server.url)
        monkeypatch.setenv(f"{variable}_API_KEY", key)
        return Providers().get(name, model, dimensions)

    return make


def test_openai(server, provider):
    vectors = provider().embed_documents(TEXTS)
    assert vectors.dtype == np.float32
    assert np.abs(vectors - [unit(text) for text in TEXTS]).max() < 1e-6
    request = server.requests[0]
    assert request.path == "/v1/embeddings"
    assert request.body == {"model": "test-16", "input": TEXTS}
    assert request.headers["authorization"] == f"Bearer {KEY}"
    server.dims = 8
    assert provider(dimensions=8).embed_query("heron").shape == (8,)
    assert server.requests[-1].body == {"model": "test-16", "input": ["heron"], "dimensions": 8}


def test_gemini(server, provider):
    gemini = provider("gemini", None, DIMS)
    vectors = gemini.embed_documents(TEXTS)
    # Of unit length, which the server's are not.
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-6
    assert np.abs(vectors - [unit(text) for text in TEXTS]).max() < 1e-6
    gemini.embed_query("heron")
    documents, query = server.requests
    assert documents.path == "/v1/models/gemini-embedding-001:batchEmbedContents"
    # In a header: addresses are logged.
    assert documents.headers["x-goog-api-key"] == KEY and KEY not in documents.path
    assert documents.body["requests"][1] == {
        "model": "models/gemini-embedding-001",
        "content": {"parts": [{"text": TEXTS[1]}]},
        "taskType": "RETRIEVAL_DOCUMENT",
        "outputDimensionality": DIMS,
    }
    assert [one["taskType"] for one in query.body["requests"]] == ["RETRIEVAL_QUERY"]
    assert provider("gemini", None).dims == 768


def test_voyage_and_mistral(server, provider):
    provider("voyage").embed_documents(TEXTS)
    provider("voyage").embed_query("heron")
    server.dims = 8
    provider("mistral", dimensions=8).embed_query("heron")
    assert [request.body for request in server.requests] == [
        {"model": "test-16", "input": TEXTS, "input_type": "document"},
        {"model": "test-16", "input": ["heron"], "input_type": "query"},
        {"model": "test-16", "input": ["heron"], "output_dimension": 8},
    ]


@pytest.mark.parametrize(
    "model, query, document",
    [
        ("embeddinggemma", "task: search result | query: x", "title: none | text: x"),
        ("unsloth/embeddinggemma-300M-GGUF:Q8_0", "task: search result | query: x", "title: none | text: x"),
        ("nomic-embed-text:v1.5", "search_query: x", "search_document: x"),
        ("intfloat/multilingual-e5-small", "query: x", "passage: x"),
        ("text-embedding-3-large", "x", "x"),
        ("Qwen/Qwen3-Embedding-0.6B", None, "x"),
        ("bge-m3", "x", "x"),
    ],
)
def test_models_get_the_prompts_that_they_were_trained_with(server, provider, model, query, document):
    provider(model="m" if model.startswith("text-") else model)
    asked = provider(model=model)
    asked.dims = DIMS
    asked.embed_query("x")
    asked.embed_documents(["x"])
    assert server.texts[0] == query or (query is None and server.texts[0].endswith("Query:x"))
    assert server.texts[1] == document


def test_answers_are_put_in_order(server, provider):
    server.script = ["backwards"]
    assert np.abs(provider().embed_documents(TEXTS) - [unit(text) for text in TEXTS]).max() < 1e-6


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 0, 1e-320, 1e300, None])
def test_a_vector_of_no_use_is_of_nan(server, provider, value):
    server.script = [("bad_vectors", value, slice(1, 2))]
    vectors = provider().embed_documents(TEXTS)
    assert np.isnan(vectors[1]).all()
    assert np.abs(vectors[::2] - [unit(text) for text in TEXTS[::2]]).max() < 1e-6
    server.script = [("bad_vectors", value)]
    with pytest.raises(EmbeddingError, match="zero or not finite"):
        provider().embed_query("heron")


@pytest.mark.parametrize(
    "step, error, message",
    [
        ("bad_key", EmbeddingError, "HTTP 401, it refuses the key of OPENAI_API_KEY"),
        (("status", 403), EmbeddingError, "HTTP 403, something is wrong"),
        (("status", 402), EmbeddingError, "quota is exhausted"),
        ("quota", EmbeddingError, "quota is exhausted"),
        (("gemini_rate_limit", "30s", "PerDay"), EmbeddingError, "quota is exhausted"),
        (("gemini_rate_limit", "30s", "PerMinute"), TemporaryError, "HTTP 429"),
        (("rate_limit", 7), TemporaryError, "HTTP 429"),
        (("status", 404), EmbeddingError, "HTTP 404, something is wrong"),
        (("status", 500), TemporaryError, "HTTP 500"),
        (("status", 529), TemporaryError, "HTTP 529"),
        (("status", 400, {}, "API key not valid", ), InputRefused, "HTTP 400"),
        (("status", 413), InputRefused, "HTTP 413"),
        (("status", 500, {}, "input (900 tokens) is too large to process"), InputRefused, "too large"),
        (("redirect", "https://example.com/"), EmbeddingError, "a redirect"),
        ("drop", TemporaryError, "cannot be reached"),
        ("cut", TemporaryError, "cannot be reached"),
        ("html", TemporaryError, "text/html that is not JSON; is http://127"),
        (("json", [1, 2]), TemporaryError, "not one vector"),
        (("json", {"data": None}), TemporaryError, "not one vector"),
        (("json", {"error": {"message": "no"}}), TemporaryError, "not one vector"),
        (("json", {"data": [{"embedding": [1] * n} for n in (1, 2, 1)]}), TemporaryError, "not one vector"),
        (("json", {"data": [{"index": 0, "embedding": [1]}] * 3}), TemporaryError, "not one vector"),
        (("json", {"data": [{"index": 9, "embedding": [1]}] * 3}), TemporaryError, "not one vector"),
        (("json", {"data": [{"embedding": "AAAA"}] * 3}), TemporaryError, "not one vector"),
        (("json", {"data": [{"embedding": []}] * 3}), TemporaryError, "not one vector"),
        ("too_few", WrongCount, "gave 2 vectors for 3 texts"),
    ],
    ids=str,
)  # fmt: skip
def test_every_kind_of_failure_is_named(server, provider, step, error, message):
    server.script = [step]
    with pytest.raises(EmbeddingError, match=message) as raised:
        provider().embed_documents(TEXTS)
    assert type(raised.value) is error
    assert "\n" not in str(raised.value) and str(raised.value).startswith("openai test-16")
    # One call: patience is not the provider's.
    assert len(server.requests) == 1
    assert provider().embed_documents(TEXTS).shape == (3, DIMS)


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Mon, 01 Jan 2001 00:00:00 GMT"}, 0),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_retry_after(server, provider, headers, seconds):
    server.script = [("status", 429, headers)]
    with pytest.raises(TemporaryError) as raised:
        provider().embed_documents(TEXTS)
    assert raised.value.retry_after_s == seconds


def test_geminis_retry_delay(server, provider):
    server.script = [("gemini_rate_limit", "12.5s", "PerMinute")]
    with pytest.raises(TemporaryError) as raised:
        provider("gemini", None).embed_documents(TEXTS)
    assert raised.value.retry_after_s == 12.5


def test_another_width_is_refused(server, provider):
    asked = provider()
    asked.embed_documents(TEXTS)
    server.script = [("width", 8)]
    with pytest.raises(EmbeddingError, match="8 dimensions instead of 16"):
        asked.embed_documents(TEXTS)


def test_a_server_that_hangs(server, provider, monkeypatch):
    monkeypatch.setattr("datasette_agent_memory.embeddings.remote.READ_TIMEOUT_S", 0.1)
    server.script = ["hang"]
    with pytest.raises(TemporaryError, match="did not answer in time"):
        provider().embed_documents(TEXTS)


def test_nobody_listens(provider, monkeypatch):
    monkeypatch.setenv("MISTRAL_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("MISTRAL_API_KEY", KEY)
    with pytest.raises(
        TemporaryError, match=r"mistral mistral-embed cannot be reached at http://127\.0\.0\.1:9/v1"
    ):
        Providers().get("mistral").embed_documents(TEXTS)


@pytest.mark.parametrize(
    "url, message",
    [
        ("localhost:11434/v1", "OPENAI_BASE_URL is not an address"),
        ("ftp://host/v1", "OPENAI_BASE_URL is not an address"),
        ("http://", "OPENAI_BASE_URL is not an address"),
        ("http://[bad/v1", "OPENAI_BASE_URL is not an address"),
        ("http://host:99999/v1", "OPENAI_BASE_URL is not an address"),
        ("http://host/v1\x1b[31m", "OPENAI_BASE_URL is not an address"),
        ("http://user:hunter2@host/v1", "no user, password"),
        ("http://host/v1?api-key=hunter2", "no user, password"),
    ],
)
def test_an_address_that_cannot_be_used(monkeypatch, url, message):
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(EmbeddingError, match=message) as raised:
        Providers().get("openai")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("name", ["openai", "gemini", "voyage", "mistral"])
def test_a_missing_key_is_named(name):
    with pytest.raises(ProviderMissing, match=f"{name} needs a key: {name.upper()}_API_KEY .*is not set"):
        Providers().get(name)


def test_a_local_server_needs_no_key(server, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    Providers().get("openai", "test-16").embed_documents(TEXTS)
    assert "authorization" not in server.requests[0].headers


def test_a_key_with_a_newline_at_its_end_is_mended_and_one_with_signs_refused(server, provider):
    provider(key=KEY + "\n").embed_documents(TEXTS)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    with pytest.raises(EmbeddingError, match="OPENAI_API_KEY has characters that no key has") as raised:
        provider(key="sk-ключ\nX: y")
    assert "ключ" not in str(raised.value)


@pytest.mark.parametrize("name", ["openai", "gemini"])
@pytest.mark.parametrize(
    "step", ["bad_key", *(("echoes", status) for status in (400, 402, 403, 404, 413, 429, 500))]
)
def test_a_key_that_a_server_repeats_is_in_no_message(server, provider, name, step):
    server.script = [step]
    with pytest.raises(EmbeddingError) as raised:
        provider(name).embed_documents(TEXTS)
    shown = f"{raised.value!r} {raised.value}"
    assert not any(KEY[start : start + 8] in shown for start in range(len(KEY) - 8))


def test_a_key_does_not_show_itself(provider):
    asked = provider()
    assert KEY not in repr(vars(asked)) and "key of OPENAI_API_KEY" in repr(vars(asked))
    assert KEY not in str(asked.identity) + repr(Providers()._settings("openai"))


def test_a_key_identifies_the_maker_and_not_the_payer(server, provider):
    keys = {
        provider().key,
        provider(model="other").key,
        provider(dimensions=8).key,
        provider("mistral").key,
        provider(model="nomic-embed-text").key,
    }
    assert len(keys) == 5
    first = provider().key
    assert provider(key="sk-another-key").key == first


def test_openclaws_key_is_known(monkeypatch):
    # Of the databases that OpenClaw 2026.3.31 wrote, whose address ended with a slash.
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:18999/v1")
    assert (
        "7c12385adc112da769b3ed40e1ab36677cacb634e99953fd9dfd609f591cd2a9"
        in Providers().get("openai", "hash-bow-64").keys
    )


def test_surrogates_and_controls_are_sent(server, provider):
    provider().embed_documents(["half a \ud83d pair", "a \x00 zero", ""])
    assert server.texts == ["half a ? pair", "a \x00 zero", ""]


def test_no_library_of_the_network_is_loaded_before_it_is_needed():
    import subprocess
    import sys

    code = (
        "import sys, datasette_agent_memory.embeddings.chain as chain\n"
        "chain.Providers().choose('auto')\n"
        "heavy = 'httpx', 'tenacity', 'llm', 'xllamacpp', 'llama_cpp'\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


def test_one_provider_serves_all_that_ask_for_it(provider):
    assert provider() is provider()
    assert set(chain.AUTO_CHAIN) - {"none"} < set(chain.PROVIDERS)
