"""The provider `llm`, with the real llm and an embedding model of a plugin for it."""

import pytest
from embedding_server import vector

from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.embeddings import chain
from datasette_agent_memory.embeddings.base import EmbeddingError, TemporaryError
from datasette_agent_memory.search import ask

llm = pytest.importorskip("llm")


class Demo(llm.EmbeddingModel):
    model_id = "demo-16"
    failure = None

    def embed_batch(self, items):
        if self.failure:
            raise self.failure
        return [vector(item) for item in items]


class Locked(llm.EmbeddingModel):
    model_id = "locked"
    needs_key = "demo"
    key_env_var = "DEMO_KEY"

    def embed_batch(self, items):
        self.get_key()
        return []


@pytest.fixture
def demo(monkeypatch, tmp_path):
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    model = Demo()

    class Plugin:
        @llm.hookimpl
        def register_embedding_models(self, register):
            register(model, aliases=["short"])
            register(Locked())

    from llm.plugins import pm

    llm.get_embedding_models()  # has its own plugins loaded
    plugin = Plugin()
    pm.register(plugin)
    chain.forget_providers()
    yield model
    pm.unregister(plugin)
    chain.forget_providers()


def test_a_model_of_llms(demo, workspace, index, database, rows):
    provider = chain.Providers().get("llm", "short")
    # An alias may stand for another model tomorrow.
    assert str(provider) == "llm demo-16"
    index(workspace({"a.md": "the heron nests", "b.md": "Mara owns billing"}), provider)
    assert rows("select count(*) from chunks where embedding <> '[]'") == [(2,)]
    with open_readonly(database) as conn:
        answer = ask(conn, "heron", {"min_score": 0})
    assert (answer.options.mode, answer.provider, answer.model) == ("hybrid", "llm", "demo-16")
    assert answer.hits[0].path == "a.md" and answer.hits[0].vector_score > 0


def test_what_is_missing_is_named(demo):
    for model, message in ((None, "llm needs --model"), ("nothing", "no embedding model 'nothing'")):
        with pytest.raises(EmbeddingError, match=message):
            chain.Providers().get("llm", model)
    with pytest.raises(EmbeddingError, match=r"llm locked: .*(key|DEMO_KEY)"):
        chain.Providers().get("llm", "locked").embed_query("x")


def test_a_plugins_failure_is_told_without_what_it_holds(demo):
    for kind, error in ((RuntimeError, EmbeddingError), (ConnectionError, TemporaryError)):
        demo.failure = kind("Authorization: Bearer sk-secret")
        with pytest.raises(EmbeddingError, match=rf"llm demo-16 failed with {kind.__name__}$") as raised:
            chain.Providers().get("llm", "demo-16").embed_query("x")
        assert type(raised.value) is error


def test_a_query_without_a_usable_vector(demo):
    demo.embed_batch = lambda items: [[float("nan")] * 16 for _ in items]
    with pytest.raises(EmbeddingError, match="zero or not finite"):
        chain.Providers().get("llm", "demo-16").embed_query("x")


def test_a_model_of_too_few_vectors(demo):
    demo.embed_batch = lambda items: [vector(item) for item in list(items)[1:]]
    with pytest.raises(EmbeddingError, match="gave 1 vectors for 2 texts"):
        chain.Providers().get("llm", "demo-16").embed_documents(["a", "b"])
