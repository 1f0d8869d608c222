"""Embedding an index through the real client, at a server that misbehaves on command."""

import threading
from pathlib import Path

import pytest
from embedding_server import DIMS, EmbeddingServer

from datasette_agent_memory.connections import DatabaseError, open_readonly, open_writable
from datasette_agent_memory.embeddings import batches
from datasette_agent_memory.embeddings.base import EmbeddingError, TemporaryError
from datasette_agent_memory.embeddings.batches import estimate_tokens
from datasette_agent_memory.ingest import IndexSettings, update_index
from datasette_agent_memory.report import IndexIncomplete, Listener
from datasette_agent_memory.schema import PENDING_KEY
from datasette_agent_memory.status import read_status


def notes(count, text="heron note {n}"):
    return {f"memory/{n:04}.md": text.format(n=n) + "\n" for n in range(count)}


@pytest.fixture
def vectors(rows):
    """The numbers of chunks, of those with a vector, and of those said to wait for one; they agree."""

    def count():
        ((chunks, embedded),) = rows("select count(*), sum(embedding <> '[]') from chunks")
        pending = rows(f"select value from meta where key = '{PENDING_KEY}'")
        assert (int(pending[0][0]) if pending else 0) == chunks - embedded
        has_vec = rows("select 1 from sqlite_master where name = 'chunks_vec'")
        assert not has_vec or rows("select count(*) from chunks_vec_rowids") == [(embedded,)]
        return chunks, embedded

    return count


def test_batches_are_by_tokens_and_by_count(workspace, index, server, openai, vectors, monkeypatch):
    # Of about 417 tokens each: 19 are under 8,000.
    root = workspace(notes(100, "heron {n:04} " + "x" * 1486))
    index(root, openai)
    assert vectors() == (100, 100)
    sizes = sorted(len(request.texts) for request in server.requests)
    assert sum(sizes) == 100 and max(sizes) == 19 and len(sizes) == 6
    tokens = [sum(map(estimate_tokens, request.texts)) for request in server.requests]
    assert max(tokens) <= 8000
    server.requests.clear()
    monkeypatch.setattr(type(openai), "max_batch_texts", 7)
    index(workspace(notes(100)), openai)
    assert max(len(request.texts) for request in server.requests) == 7


def test_one_text_above_the_tokens_goes_alone(workspace, index, server, openai, vectors):
    index(workspace({"a.md": "x" * 40_000, "b.md": "y"}), openai, chunk_tokens=50_000)
    assert sorted(len(request.texts) for request in server.requests) == [1, 1]
    assert vectors() == (2, 2)


def test_four_requests_go_at_once(workspace, index, server, openai, monkeypatch):
    monkeypatch.setattr(type(openai), "max_batch_texts", 2)
    server.always = ("slow", 0.05)
    index(workspace(notes(40)), openai)
    assert server.most_in_flight == 4


def test_a_text_that_stands_twice_is_embedded_once(workspace, index, server, openai, vectors):
    report = index(workspace(notes(10, "the same")), openai)
    assert server.texts == ["the same\n"] and vectors() == (10, 10)
    assert (report.embeddings_computed, report.embeddings_cached) == (1, 0)


@pytest.mark.parametrize(
    "script",
    [
        [("status", 500)],
        [("status", 503), ("status", 529)],
        ["drop", "cut"],
        ["html"],
        [("rate_limit", 0)],
        ["backwards"],
    ],
    ids=str,
)
def test_what_passes_is_tried_again(workspace, index, server, openai, rows, script):
    server.script = list(script)
    index(workspace({"a.md": "heron", "b.md": "canal"}), openai)
    assert server.script == []
    (heron,) = rows("select embedding from chunks where text like 'heron%'")
    assert rows("select embedding from embedding_cache where embedding = ?", heron) == [heron]


def test_retry_after_is_honoured(workspace, index, server, openai, vectors):
    server.script = [("rate_limit", 2), ("rate_limit", 2)]
    index(workspace(notes(3)), openai)
    times = [request.at for request in server.requests]
    assert len(times) == 3 and times[1] - times[0] >= 2 and times[2] - times[1] >= 2
    assert vectors() == (3, 3)


def test_no_request_is_sent_while_the_provider_asks_for_quiet(
    workspace, index, server, openai, vectors, monkeypatch
):
    monkeypatch.setattr(type(openai), "max_batch_texts", 1)
    # All but the fourth take so long that each of the others has one call when that is answered.
    server.script = [("slow", 0.5)] * 3 + [("rate_limit", 1)]
    index(workspace(notes(30)), openai)
    asked = server.requests[3].at
    # Those under way when the answer came, three at most, had been sent.
    early = [request for request in server.requests[4:] if request.at < asked + 1]
    assert len(early) <= 3
    assert len(server.requests) == 31 and vectors() == (30, 30)


def test_too_long_a_wait_is_not_waited_for(workspace, index, server, openai, vectors):
    server.always = ("rate_limit", 3600)
    with pytest.raises(IndexIncomplete, match="asks to wait 3600 s"):
        index(workspace(notes(3)), openai)
    assert len(server.requests) == 1 and vectors() == (3, 0)


@pytest.mark.parametrize("step", [("status", 500), ("rate_limit", 0.01), "drop"], ids=str)
def test_tries_are_bounded(workspace, index, server, openai, vectors, step):
    server.always = step
    with pytest.raises(IndexIncomplete) as raised:
        index(workspace(notes(3)), openai)
    assert isinstance(raised.value.cause, TemporaryError)
    assert len(server.requests) == batches.INDEX_ATTEMPTS and vectors() == (3, 0)


@pytest.mark.parametrize("step", ["quota", "bad_key", ("status", 402), ("status", 404)], ids=str)
def test_what_does_not_pass_stops_at_once(workspace, index, server, openai, vectors, rows, step, monkeypatch):
    monkeypatch.setattr(type(openai), "max_batch_texts", 1)
    server.script = [None] * 5
    server.always = step
    root = workspace(notes(40))
    with pytest.raises(IndexIncomplete, match="5 of 40 texts are embedded and kept") as raised:
        index(root, openai)
    assert "keywords find all of them" in str(raised.value)
    # The other three calls may have been under way.
    assert 6 <= len(server.requests) <= 9
    assert vectors() == (40, 5)
    assert rows("select count(*) from chunks_fts where chunks_fts match 'heron'") == [(40,)]
    # What was paid for is not paid for again.
    server.requests.clear()
    server.always = None
    report = index(root, openai)
    assert len(server.texts) == 35 and report.embeddings_computed == 35 and vectors() == (40, 40)


@pytest.mark.parametrize("most", [1, 3, 10, 16])
def test_a_batch_that_is_too_large_is_halved(workspace, index, server, openai, vectors, most, monkeypatch):
    monkeypatch.setattr(type(openai), "max_concurrency", 1)
    server.max_texts = most
    report = index(workspace(notes(64)), openai)
    assert vectors() == (64, 64) and report.refused == []
    refused = [len(request.texts) for request in server.requests if len(request.texts) > most]
    # Once each: then the provider's measure is known.
    assert refused == [size for size in (64, 32, 16, 8, 4, 2) if size > most]


def test_one_bad_text_does_not_sink_the_rest(workspace, index, server, openai, vectors, rows):
    server.refuses = lambda text: "note 7\n" in text
    report = index(workspace(notes(20)), openai)
    assert vectors() == (20, 19)
    assert rows("select path from chunks where embedding = '[]'") == [("memory/0007.md",)]
    (refused,) = report.as_json()["refused"]
    assert (refused["path"], refused["start_line"]) == ("memory/0007.md", 1)
    assert "HTTP 400, the input is too large" in refused["reason"]
    # It is not sent again, unless that is asked for.
    server.requests.clear()
    index(workspace(notes(20)), openai)
    assert server.requests == [] and vectors() == (20, 19)
    index(workspace(notes(20)), openai, force=True)
    assert server.texts == ["heron note 7\n", "memory"] and vectors() == (20, 19)
    server.refuses = lambda text: False
    index(workspace(notes(20)), openai, force=True)
    assert vectors() == (20, 20)


def test_a_provider_that_refuses_everything_is_told_from_bad_texts(workspace, index, server, openai):
    server.refuses = lambda text: True
    with pytest.raises(IndexIncomplete, match="HTTP 400"):
        index(workspace(notes(64)), openai)
    # Halved to one text, and one that is harmless, by each of the workers: not 127 times.
    assert len(server.requests) <= 4 * 8


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0])
def test_vectors_of_no_use_are_refused_and_named(workspace, index, server, openai, vectors, value):
    server.spoils = lambda text: text in ("heron note 3\n", "heron note 4\n")
    server.spoilt_value = value
    report = index(workspace(notes(10)), openai)
    assert vectors() == (10, 8)
    assert [one.text.path for one in report.refused] == ["memory/0003.md", "memory/0004.md"]
    assert all("zero or not finite" in one.reason for one in report.refused)


@pytest.mark.parametrize("which", [slice(None), slice(3, 5)])
def test_one_bad_answer_costs_no_text_its_vector(workspace, index, server, openai, vectors, which):
    server.script = [("bad_vectors", float("nan"), which)]
    report = index(workspace(notes(10)), openai)
    assert vectors() == (10, 10) and report.refused == []


def test_a_wrong_count_says_nothing_of_a_text(workspace, index, server, openai, vectors):
    server.script = [None, "too_few"]
    root = workspace(notes(1))
    index(root, openai)
    workspace({"memory/new.md": "new"})
    report = index(root, openai)
    assert vectors() == (2, 1) and len(report.refused) == 1
    index(root, openai)
    assert vectors() == (2, 2)
    # One that never gives as many as it should is asked for no text for ever.
    server.well = lambda http, body, texts: (
        server.too_few(http, body, texts)
        if "odd" in texts[0]
        else (EmbeddingServer.well(server, http, body, texts))
    )
    workspace({"memory/odd.md": "odd"})
    assert len(index(root, openai).refused) == 1


def test_a_dry_run_leaves_out_what_was_refused(workspace, index, server, openai):
    server.refuses = lambda text: "note 7\n" in text
    root = workspace(notes(9))
    index(root, openai)
    (root / "memory/0007.md").rename(root / "memory/renamed.md")
    server.requests.clear()
    assert index(root, openai, dry_run=True).embeddings_computed == 0
    index(root, openai)
    # Nor does a bound of the cache have it sent again.
    index(root, openai, max_cached=0)
    index(root, openai)
    assert server.requests == []


def test_what_waits_is_not_called_refused(workspace, index, server, openai, database):
    def notice():
        with open_readonly(database) as conn:
            return [
                one["message"] for one in read_status(conn)["notices"] if one["code"] == "vectors_pending"
            ]

    server.refuses = lambda text: "note 2\n" in text
    root = workspace(notes(6))
    index(root, openai)
    assert "1 of 6 chunks have no vector, since openai test-16 refused" in notice()[0]
    server.always = "quota"
    workspace({f"memory/new{n}.md": f"new {n}" for n in range(5)})
    with pytest.raises(IndexIncomplete):
        index(root, openai)
    assert "6 of 11 chunks have no vector yet" in notice()[0]


def test_a_forced_change_of_width_is_swapped_in_whole(workspace, index, server, openai, vectors, rows):
    root = workspace(notes(9))
    index(root, openai)
    before = rows("select id, embedding from chunks order by id")
    server.dims, openai.dims = 8, None
    workspace({"memory/new.md": "new"})
    server.script = [None, "bad_key"]
    with pytest.raises(IndexIncomplete, match="the index is as it was"):
        index(root, openai, force=True)
    assert rows("select id, embedding from chunks order by id") == before
    index(root, openai, force=True)
    assert vectors() == (10, 10) and rows("select distinct dims from embedding_cache") == [(8,)]


def test_a_changed_width_costs_one_text_and_no_vector(workspace, index, database, server, openai, vectors):
    root = workspace(notes(9))
    index(root, openai)
    server.requests.clear()
    for run in range(3):
        server.dims, openai.dims = 8, None
        workspace({f"memory/new{n}.md": f"new {n}" for n in range(5)})
        with pytest.raises(IndexIncomplete, match="now gives 8 dimensions"):
            update_index(database, IndexSettings(root, providers=[openai, None]))
        assert vectors() == (14, 9) and len(server.texts) == run + 1


def test_another_index_of_another_width_is_named(workspace, index, server, openai, database, tmp_path):
    root = workspace(notes(3))
    other = tmp_path / "other.db"
    update_index(other, IndexSettings(root, providers=[openai]))
    server.dims, openai.dims = 8, None
    workspace({"memory/new.md": "new"})
    with pytest.raises(IndexIncomplete, match="now gives 8 dimensions, and the index has 16"):
        index(root, openai, cache_from=[other], force=True)


def test_what_is_refused_may_be_in_another_index(workspace, index, server, openai, vectors, tmp_path):
    root = workspace(notes(3))
    other = tmp_path / "other.db"
    update_index(other, IndexSettings(root, providers=[openai]))
    server.refuses = lambda text: "note 1\n" in text
    index(root, openai)
    assert vectors() == (3, 2)
    index(root, openai, cache_from=[other])
    assert vectors() == (3, 3)


def test_a_provider_of_useless_vectors_alone_fails(workspace, index, server, openai, vectors):
    server.always = ("bad_vectors", float("nan"))
    with pytest.raises(IndexIncomplete, match="zero or not finite"):
        index(workspace(notes(3)), openai)
    assert vectors() == (3, 0)


def test_too_few_answers_are_matched_with_no_text(workspace, index, server, openai, vectors, rows):
    server.script = ["too_few"]
    index(workspace({"a.md": "heron", "b.md": "canal", "c.md": "billing"}), openai)
    assert vectors() == (3, 3)
    before = rows("select text, embedding from chunks order by text")
    server.always = None
    index(workspace({}), openai, force=True)
    assert rows("select text, embedding from chunks order by text") == before


def test_a_wrong_width_is_no_vector(workspace, index, server, openai, vectors):
    root = workspace(notes(3))
    index(root, openai)
    server.always = ("width", 8)
    openai.dims = None
    workspace({"memory/new.md": "new"})
    with pytest.raises(IndexIncomplete, match="now gives 8 dimensions, and the index has 16; --force"):
        index(root, openai)
    assert vectors() == (4, 3)
    openai.dims = None
    index(root, openai, force=True)
    assert vectors() == (4, 4)


def test_interrupting_keeps_what_is_embedded(
    workspace, index, database, server, openai, vectors, monkeypatch
):
    monkeypatch.setattr(type(openai), "max_batch_texts", 1)
    stop = threading.Event()

    class Impatient(Listener):
        def embedded(self, texts, tokens):
            stop.set()

    root = workspace(notes(50))
    with pytest.raises(IndexIncomplete, match="interrupted") as raised:
        update_index(database, IndexSettings(root, providers=[openai]), Impatient(), stop)
    assert raised.value.is_interruption
    chunks, embedded = vectors()
    assert chunks == 50 and 1 <= embedded <= 8 and embedded == len(server.texts)
    index(root, openai)
    assert vectors() == (50, 50) and sorted(server.texts) == sorted(set(server.texts))


def test_interrupting_ends_waits_and_does_not_wait_for_what_hangs(
    workspace, index, database, server, openai, vectors, monkeypatch
):
    monkeypatch.setattr(batches, "_LAST_CALLS_S", 0.2)
    monkeypatch.setattr(type(openai), "max_batch_texts", 1)
    server.script = [None, "hang", ("rate_limit", 100), None]
    stop = threading.Event()
    threading.Timer(1, stop.set).start()
    with pytest.raises(IndexIncomplete, match="interrupted"):
        update_index(database, IndexSettings(workspace(notes(9)), providers=[openai]), stop=stop)
    assert vectors()[0] == 9 and vectors()[1] >= 1


def test_text_is_searchable_before_its_vectors(workspace, index, server, openai, rows, database):
    seen = []

    class Watcher(Listener):
        def plan(self, provider, texts, tokens, cached):
            seen.append((str(provider), texts, tokens, cached))
            seen.append(rows("select count(*) from chunks_fts where chunks_fts match 'heron'")[0][0])
            seen.append(len(server.requests))

    root = workspace(notes(30))
    update_index(database, IndexSettings(root, providers=[openai]), Watcher())
    assert seen == [("openai test-16", 30, 30 * estimate_tokens("heron note 10\n"), 0), 30, 0]


def test_dry_run_says_what_would_be_sent_and_sends_nothing(workspace, index, server, openai, database):
    report = index(workspace(notes(30)), openai, dry_run=True)
    assert (report.embeddings_computed, report.tokens) == (30, 120)
    assert server.requests == [] and not database.exists()
    index(workspace({}), openai)
    server.requests.clear()
    report = index(
        workspace({"memory/new.md": "new", "memory/0000.md": "heron note 1\n"}), openai, dry_run=True
    )
    assert (report.embeddings_computed, report.embeddings_cached) == (1, 1) and server.requests == []


def test_renames_moves_and_rebuilds_cost_no_call(
    workspace, index, server, openai, vectors, tmp_path, database
):
    root = workspace(notes(10))
    index(root, openai)
    server.requests.clear()
    (root / "memory/0001.md").rename(root / "memory/renamed.md")
    (root / "memory/0002.md").write_text("heron note 3\n")
    index(root, openai)
    index(root, openai, force=True)
    index(root, openai, chunk_tokens=300, chunk_overlap=10)
    assert server.requests == [] and vectors() == (10, 10)

    # As another process, which does not know the model's width yet.
    openai.dims = None
    other = tmp_path / "other.db"
    update_index(other, IndexSettings(root, providers=[openai], cache_from=[database]))
    assert server.requests == []
    # And it has them for itself.
    update_index(other, IndexSettings(root, providers=[openai], force=True))
    assert server.requests == []


def test_an_old_width_in_the_cache_is_of_no_use(workspace, index, server, openai, vectors):
    root = workspace(notes(5))
    index(root, openai)
    server.dims = 8
    openai.dims = None
    workspace({"memory/new.md": "new"})
    index(root, openai, force=True)
    assert vectors() == (6, 6) and openai.dims == 8


def test_the_cache_is_bounded_when_asked_for(workspace, index, rows, server, openai, vectors):
    index(workspace(notes(10)), openai, max_cached=4)
    assert rows("select count(*) from embedding_cache") == [(4,)]
    assert vectors() == (10, 10)
    server.requests.clear()
    index(workspace({}), openai, max_cached=4)
    assert server.requests == []


def test_estimates_of_tokens():
    assert estimate_tokens("") == 0
    assert estimate_tokens("word " * 72) == 100
    assert estimate_tokens("苍鹭在运河边筑巢" * 10) == 84
    assert DIMS == 16


def test_errors_are_of_one_kind():
    assert issubclass(IndexIncomplete, EmbeddingError)


def test_a_bad_text_makes_no_later_batch_smaller(workspace, index, server, openai, vectors, monkeypatch):
    monkeypatch.setattr(type(openai), "max_concurrency", 1)
    monkeypatch.setattr(type(openai), "max_batch_texts", 32)
    server.refuses = lambda text: "note 7\n" in text
    index(workspace(notes(96)), openai)
    assert vectors() == (96, 95)
    assert [len(request.texts) for request in server.requests[-2:]] == [32, 32]


def test_two_runs_at_once_pay_once(workspace, index, server, openai, vectors, monkeypatch):
    monkeypatch.setattr(type(openai), "max_batch_texts", 2)
    server.always = ("slow", 0.05)
    root = workspace(notes(40))
    first = threading.Thread(target=index, args=(root, openai))
    first.start()
    while not server.requests:
        pass
    workspace({"memory/new.md": "a new heron"})
    # It writes the text, and leaves the vectors to the first.
    assert index(root, openai).embeddings_computed == 0
    assert vectors()[0] == 41
    with pytest.raises(DatabaseError, match="another run is embedding"):
        index(root, openai, force=True)
    first.join()
    assert vectors() == (41, 41)
    assert sorted(server.texts) == sorted(set(server.texts))


def test_the_turn_of_a_run_that_died_is_over(workspace, index, database, openai, vectors):
    Path(f"{database}-embedding").touch()
    index(workspace(notes(2)), openai)
    assert vectors() == (2, 2)
    assert [file.name for file in database.parent.glob("memory.db*") if "embedding" in file.name] == []


def test_what_is_cached_by_then_is_not_asked_for(workspace, index, database, server, openai, vectors):
    """As after a rebuild that was stopped, and went another way."""
    root = workspace(notes(6))
    server.always = "quota"
    with pytest.raises(IndexIncomplete):
        index(root, openai)
    with open_writable(database) as conn:
        conn.execute(
            "insert into embedding_cache select 'openai', 'test-16', ?, hash, ?, 16, 1 from chunks",
            (openai.key, "[" + ",".join(["0.25"] * 16) + "]"),
        )
    server.requests.clear()
    report = index(root, openai, dry_run=True)
    assert (report.embeddings_computed, report.tokens) == (0, 0)
    index(root, openai)
    assert server.requests == [] and vectors() == (6, 6)
