"""The vectors of queries: asked for before the SQL, in time, once, and for whom."""

import asyncio
import json
import threading

import pytest
from conftest import KEY
from test_batches import notes
from test_views import SEARCH, get, links

from datasette_agent_memory import search as search_module
from datasette_agent_memory.config import PLUGIN_NAME
from datasette_agent_memory.connections import open_readonly, open_writable
from datasette_agent_memory.embeddings import queries
from datasette_agent_memory.embeddings.base import EmbeddingError, TemporaryError
from datasette_agent_memory.embeddings.queries import QUERY_VECTORS, QueryVectors
from datasette_agent_memory.search import ask, search

pytestmark = pytest.mark.asyncio


@pytest.fixture
def datasette(workspace, index, database, server, openai, make_datasette):
    """A served index of openai's vectors, whose server has forgotten what it was sent."""

    def make(**config):
        index(workspace(notes(4)), openai)
        server.requests.clear()
        return make_datasette(database, metadata={"plugins": {PLUGIN_NAME: config}} if config else None)

    return make


def codes(answer):
    """The notices but one, of Pythons without sqlite-vec."""
    return [notice["code"] for notice in answer["notices"] if notice["code"] != "no_sqlite_vec"]


async def answer_of(datasette, q="heron", **params):
    response = await get(datasette, f"{SEARCH}.json", q=q, min_score="0", **params)
    assert response.status_code == 200
    return response.json()


async def test_the_page_and_the_json_fill_the_cache(datasette, server):
    served = datasette()
    answer = await answer_of(served)
    assert (answer["query"]["mode"], answer["provider"], answer["model"]) == ("hybrid", "openai", "test-16")
    assert (answer["dims"], answer["first_choice"], answer["pending_chunks"]) == (16, True, 0)
    assert server.texts == ["heron"] and all(hit["vector_score"] for hit in answer["results"])
    # Known by now: no second call, neither for the page nor for the same SQL in the editor.
    page = await get(served, SEARCH, q="heron", min_score="0")
    assert "openai test-16" in page.text
    sql = await get(served, "/memory.json", sql="select length(embed('heron')) as n", _shape="array")
    if sql.status_code == 200:  # 0.65
        assert sql.json() == [{"n": 64}]
    assert server.texts == ["heron"]


async def test_the_sql_of_a_page_gives_its_rows_and_scores_in_the_editor(datasette, server):
    served = datasette()
    page = await get(served, SEARCH, q="heron", min_score="0")
    answer = await answer_of(served)
    (link,) = links(page, "View and edit SQL")
    path, _, query = link.partition("?")
    rows = (await served.client.get(f"{path}.json?{query}&_shape=objects")).json()["rows"]
    assert [(row["id"], row["score"], row["vector_score"]) for row in rows] == [
        (hit["id"], hit["score"], hit["vector_score"]) for hit in answer["results"]
    ]
    assert rows and all(row["vector_score"] for row in rows) and server.texts == ["heron"]


async def test_sql_asks_no_network(datasette, server, database):
    datasette()
    with open_readonly(database) as conn:
        assert conn.execute("select embed('canal')").fetchone()[0] is None
        assert codes(search(conn, "canal").as_json()) == ["embedding_failed"]
        assert server.requests == []
        ask(conn, "canal")
        assert len(conn.execute("select embed('canal')").fetchone()[0]) == 64
    assert server.texts == ["canal"]


@pytest.mark.parametrize("params", [{"mode": "keyword"}, {"q": "?!"}, {"q": ""}])
async def test_what_needs_no_vector_asks_for_none(datasette, server, params):
    await answer_of(datasette(), **{"q": "heron", **params})
    assert server.requests == []


@pytest.mark.parametrize(
    "step, cause",
    [
        ("bad_key", "HTTP 401"),
        ("quota", "quota is exhausted"),
        (("rate_limit", 60), "asks to wait 60 s"),
        ("html", "not JSON"),
        (("width", 8), "8 dimensions"),
        (("bad_vectors", float("nan")), "zero or not finite"),
        (("status", 400), "HTTP 400"),
    ],
    ids=str,
)
async def test_a_failure_is_named_and_keywords_answer(datasette, server, openai, step, cause):
    served = datasette(embedding_timeout=0.5)
    server.always = step
    answer = await answer_of(served)
    assert codes(answer) == ["embedding_failed"] and answer["query"]["mode"] == "keyword"
    assert cause in answer["notices"][-1]["message"] and KEY not in json.dumps(answer)
    assert len(answer["results"]) == 4
    page = await get(served, SEARCH, q="canal heron")
    assert page.status_code == 200 and "could not be embedded" in page.text and KEY not in page.text


async def test_a_slow_provider_does_not_hold_the_page(datasette, server):
    served = datasette(embedding_timeout=0.1)
    server.script = [("slow", 0.5)]
    answer = await answer_of(served)
    assert codes(answer) == ["embedding_failed"] and "within 0.1 s" in answer["notices"][-1]["message"]
    # What comes late is there for the next time.
    while server.in_flight:
        await asyncio.sleep(0.01)
    for _ in range(100):
        if (answer := await answer_of(served))["query"]["mode"] == "hybrid":
            break
        await asyncio.sleep(0.01)
    assert codes(answer) == [] and server.texts == ["heron"]


async def test_the_event_loop_and_other_searches_go_on_meanwhile(datasette, server):
    served = datasette(embedding_timeout=5)
    server.script = ["hang"]
    waiting = asyncio.create_task(answer_of(served, "slow one"))
    while not server.in_flight:
        await asyncio.sleep(0.01)
    for number in range(5):
        assert codes(await answer_of(served, f"heron {number}")) == []
    assert not waiting.done()
    server.gone.set()
    assert (await waiting)["ok"]


async def test_equal_queries_share_one_call(datasette, server):
    served = datasette()
    server.script = [("slow", 0.2)]
    answers = await asyncio.gather(*(answer_of(served) for _ in range(10)))
    assert answers[0]["took_ms"]["total"] >= answers[0]["took_ms"]["embed"] >= 100
    assert server.texts == ["heron"]
    assert [codes(answer) for answer in answers] == [[]] * 10


async def test_a_provider_that_asks_for_quiet_gets_it(datasette, server, monkeypatch):
    served = datasette(embedding_timeout=1)
    server.always = ("rate_limit", 60)
    for number in range(5):
        answer = await answer_of(served, f"heron {number}")
        assert "asks to wait 60 s" in answer["notices"][-1]["message"]
    assert len(server.requests) == 1


async def test_a_pause_holds_for_what_is_under_way_and_in_the_queue(datasette, server):
    served = datasette(embedding_timeout=3)
    server.always = ("rate_limit", 60)
    await asyncio.gather(*(answer_of(served, f"heron {number}") for number in range(20)))
    assert len(server.requests) <= 4
    # One that was sent before and is answered late does not end the pause.
    QUERY_VECTORS.clear()
    server.requests.clear()
    server.script = [("slow", 0.5), ("rate_limit", 60)]
    server.always = None
    slow = asyncio.create_task(answer_of(served, "slow heron"))
    while not server.requests:
        await asyncio.sleep(0.01)
    await answer_of(served, "refused heron")
    assert codes(await slow) == []
    assert codes(await answer_of(served, "third heron")) == ["embedding_failed"]
    assert len(server.requests) == 2


async def test_an_answer_is_of_one_moment(datasette, server, database, workspace, index, tiny, monkeypatch):
    """The index is swapped for another model's between what is read of it and the search."""
    datasette()
    usable_sides = search_module.usable_sides
    swapped = []

    def swap(*arguments):
        if not swapped:
            swapped.append(index(workspace({}), tiny))
        return usable_sides(*arguments)

    with open_readonly(database) as conn:
        ask(conn, "heron")
        monkeypatch.setattr(search_module, "usable_sides", swap)
        answer = search(conn, "heron", {"min_score": 0})
        assert (answer.provider, answer.model) == ("openai", "test-16") and swapped
        vectors = dict(conn.execute("select id, embedding from chunks").fetchall())
        assert len(vectors) == 4 and not {hit.id for hit in answer.hits} & set(vectors)
        assert all(hit.vector_score for hit in answer.hits)
        assert search(conn, "heron", {"min_score": 0}).model == "tiny-bag"


async def test_after_a_failure_it_is_tried_again(datasette, server, monkeypatch):
    monkeypatch.setattr(queries, "_PAUSE_S", 0.01)
    served = datasette(embedding_timeout=1)
    server.script = ["bad_key"]
    assert codes(await answer_of(served)) == ["embedding_failed"]
    await asyncio.sleep(0.02)
    assert codes(await answer_of(served)) == []


async def test_a_query_is_retried_within_its_time(datasette, server):
    server_steps = [("status", 503), "drop"]
    served = datasette()
    server.script = server_steps
    assert codes(await answer_of(served)) == [] and len(server.requests) == 3


async def test_queries_of_the_anonymous_can_be_limited(datasette, server):
    served = datasette(anonymous_embeddings_per_minute=2)
    for number in range(4):
        answer = await answer_of(served, f"heron {number}")
        assert codes(answer) == ([] if number < 2 else ["embedding_failed"])
    assert "2 new queries a minute" in answer["notices"][-1]["message"]
    # What is known costs nothing, and equal queries at once cost one.
    assert codes(await answer_of(served, "heron 0")) == []
    assert codes(await answer_of(served, "heron 9", actor="root")) == []
    assert len(server.requests) == 3


async def test_equal_queries_of_the_anonymous_count_once(datasette, server):
    served = datasette(anonymous_embeddings_per_minute=2)
    server.script = [("slow", 0.2)]
    answers = await asyncio.gather(*(answer_of(served) for _ in range(6)))
    assert [codes(answer) for answer in answers] == [[]] * 6
    assert codes(await answer_of(served, "another heron")) == []
    assert len(server.requests) == 2


async def test_queries_of_the_anonymous_can_be_refused(datasette, server):
    served = datasette(anonymous_embeddings_per_minute=0)
    answer = await answer_of(served)
    assert "of visitors who are logged in only" in answer["notices"][-1]["message"]
    assert server.requests == [] and answer["results"]


async def test_the_server_takes_its_address_and_key_from_its_configuration(datasette, server, monkeypatch):
    served = datasette(providers={"openai": {"base_url": server.url, "api_key": {"$env": "MY_KEY"}}})
    monkeypatch.setenv("MY_KEY", "sk-of-the-configuration")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert codes(await answer_of(served)) == []
    assert server.requests[0].headers["authorization"] == "Bearer sk-of-the-configuration"
    for path in ("/-/plugins.json", "/-/metadata.json", "/-/config.json", "/-/settings.json", "/memory.json"):
        assert "sk-of-the" not in (await served.client.get(path)).text


async def test_an_index_does_not_say_where_the_key_is_sent(datasette, server, database, monkeypatch):
    """Another's database must not lead queries and keys to its own server."""
    served = datasette()
    with open_writable(database) as conn:
        conn.execute("update meta set value = replace(value, '127.0.0.1', 'evil.example')")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    answer = await answer_of(served)
    assert codes(answer) == ["model_unavailable"] and server.requests == []
    assert "evil.example" in answer["notices"][-1]["message"]


@pytest.mark.parametrize(
    "config, message",
    [
        ({"providers": {"openai": {"api_key": "sk-plain"}}}, "providers.openai.api_key must be"),
        ({"providers": {"cohere": {}}}, "providers must be of local, openai"),
        ({"providers": {"openai": {"model": "x"}}}, "providers.openai has api_key, base_url, and no 'model'"),
        ({"providers": {"openai": "x"}}, "providers must have a block"),
        ({"providers": ["openai"]}, "providers must have a block"),
        ({"providers": {"local": {"path": 7}}}, "providers.local.path must be a text"),
        ({"embedding_timeout": "soon"}, "embedding_timeout must be a number"),
        ({"anonymous_embeddings_per_minute": -1}, "anonymous_embeddings_per_minute must be"),
        ({"embeding_timeout": 3}, "there is no setting 'embeding_timeout'"),
    ],
)
async def test_a_bad_configuration_stops_the_start(datasette, config, message):
    with pytest.raises(Exception, match=message) as raised:
        await datasette(**config).invoke_startup()
    assert "sk-plain" not in str(raised.value)


async def test_pending_vectors_are_told(datasette, database, workspace, index, server, openai):
    served = datasette()
    server.refuses = lambda text: "new" in text
    index(workspace({"memory/new.md": "a new heron"}), openai)
    answer = await answer_of(served)
    assert answer["pending_chunks"] == 1 and codes(answer) == ["vectors_pending"]
    assert "1 of 5 chunks have no vector, since openai test-16 refused" in answer["notices"][-1]["message"]
    # It is there all the same.
    assert "memory/new.md" in [hit["path"] for hit in answer["results"]]


class Slow:
    """A provider that answers when it is told to."""

    in_process = False
    key = "slow"

    def __init__(self):
        self.asked = []
        self.may_answer = threading.Event()

    def embed_query(self, text):
        import numpy as np

        self.asked.append(text)
        self.may_answer.wait(10)
        if text == "bad":
            raise EmbeddingError("no")
        return np.ones(4, dtype=np.float32)


async def test_calls_at_once_are_bounded_and_those_that_wait_too_long_are_not_made():
    vectors, provider = QueryVectors(), Slow()

    async def fetch(number):
        with pytest.raises(TemporaryError):
            await vectors.fetch_async(provider, f"query {number}", 0.2)

    await asyncio.gather(*(fetch(number) for number in range(20)))
    assert len(provider.asked) == 4
    provider.may_answer.set()
    while vectors._under_way:
        await asyncio.sleep(0.01)
    assert len(provider.asked) == 4


async def test_a_cancelled_page_harms_no_other():
    vectors, provider = QueryVectors(), Slow()
    first = asyncio.create_task(vectors.fetch_async(provider, "heron", 5))
    second = asyncio.create_task(vectors.fetch_async(provider, "heron", 5))
    await asyncio.sleep(0.05)
    first.cancel()
    provider.may_answer.set()
    await second
    assert provider.asked == ["heron"] and vectors.cached("slow", "heron")


async def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(queries, "_CACHE_SIZE", 3)
    vectors, provider = QueryVectors(), Slow()
    provider.may_answer.set()
    for number in range(5):
        vectors.fetch(provider, f"query {number}", 5)
    assert [bool(vectors.cached("slow", f"query {number}")) for number in range(5)] == [False] * 2 + [
        True
    ] * 3


async def test_equal_long_queries_are_one():
    vectors, provider = QueryVectors(), Slow()
    provider.may_answer.set()
    vectors.fetch(provider, "x" * 5000, 5)
    assert vectors.cached("slow", "x" * 6000) and len(provider.asked[0]) == 4000
    assert vectors.cached("slow", "x" * 3999) is None
