"""What is missing narrows the search, and the answer says so."""

import pytest

from datasette_agent_memory.connections import open_readonly, open_writable
from datasette_agent_memory.embeddings import chain
from datasette_agent_memory.embeddings.base import EmbeddingError
from datasette_agent_memory.search import search
from datasette_agent_memory.status import read_status

NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns billing.\n",
    "memory/2026-01-05.md": "# Monday\n\nThe heron nests by the canal.\n",
    "memory/2026-01-06.md": "# 星期二\n\n苍鹭在运河边筑巢。\n",
}


@pytest.fixture
def ask(database):
    def run(q="heron canal", time_limit_ms=None, **given):
        with open_readonly(database) as conn:
            answer = search(conn, q, {"min_score": 0, **given}, time_limit_ms=time_limit_ms)
            status = read_status(conn)
        # What the search says of the index, the status says too.
        said = {notice["code"] for notice in status["notices"]}
        assert {notice.code for notice in answer.notices} - said <= {
            "timeout",
            "embedding_failed",
            "no_words",
            "search_failed",
        }
        return answer

    return run


def codes(answer):
    return [notice.code for notice in answer.notices]


def change(database, *statements):
    with open_writable(database) as conn:
        for statement in statements:
            conn.execute(statement)


def test_nothing_is_missing(workspace, index, tiny, ask):
    index(workspace(NOTES), tiny)
    answer = ask()
    if answer.sql.count("vec_distance_cosine"):
        assert codes(answer) == []
    assert answer.options.mode == "hybrid" and answer.hits[0].path == "memory/2026-01-05.md"


@pytest.mark.parametrize("mode", ["hybrid", "vector", "keyword"])
def test_no_vectors(workspace, index, ask, mode):
    index(workspace(NOTES))
    answer = ask(mode=mode)
    assert codes(answer) == ([] if mode == "keyword" else ["no_vectors"])
    assert answer.options.mode == "keyword" and answer.hits[0].path == "memory/2026-01-05.md"
    assert ask("运河").hits[0].path == "memory/2026-01-06.md"


@pytest.mark.parametrize("mode", ["hybrid", "vector", "keyword"])
def test_no_full_text_table(workspace, index, tiny, database, ask, mode):
    index(workspace(NOTES), tiny)
    change(database, "drop table chunks_fts")
    answer = ask(mode=mode)
    assert ("no_fts" in codes(answer)) == (mode != "vector")
    if mode != "keyword":
        assert answer.options.mode == "vector" and len(answer.hits) == 3
    else:
        assert answer.hits == []


def test_neither(workspace, index, database, ask):
    index(workspace(NOTES))
    change(database, "drop table chunks_fts")
    answer = ask()
    assert codes(answer) == ["no_vectors", "no_fts"] and answer.hits == []
    assert answer.sql


@pytest.mark.needs_sqlite_vec
def test_without_sqlite_vec_the_scores_are_the_same(workspace, index, tiny, ask, monkeypatch):
    index(
        workspace(
            {**NOTES, **{f"memory/{n}.md": f"note {n} of the canal {'heron ' * n}" for n in range(40)}}
        ),
        tiny,
    )
    cases = [{}, {"mode": "vector"}, {"path": "memory/2*"}, {"mmr": 1}, {"fusion": "rrf"}, {"k": 30}]
    expected = [ask(**case) for case in cases]
    monkeypatch.setattr("datasette_agent_memory.connections.load_sqlite_vec", lambda conn: False)
    for case, with_vec in zip(cases, expected, strict=True):
        answer = ask(**case)
        assert codes(answer) == ["no_sqlite_vec"] and "pip install" in answer.notices[0].message
        assert "cosine_similarity(embedding, embed(:q))" in answer.sql
        assert [hit.id for hit in answer.hits] == [hit.id for hit in with_vec.hits]
        assert [hit.score for hit in answer.hits] == pytest.approx(
            [hit.score for hit in with_vec.hits], abs=1e-6
        )


@pytest.mark.needs_sqlite_vec
def test_a_lost_vector_table_is_scanned_for(workspace, index, tiny, database, ask):
    index(workspace(NOTES), tiny)
    change(database, "drop table chunks_vec")
    answer = ask()
    assert codes(answer) == ["no_vec_table"] and answer.hits[0].path == "memory/2026-01-05.md"


@pytest.mark.needs_sqlite_vec
def test_another_width(workspace, index, tiny, ask, monkeypatch):
    index(workspace(NOTES), tiny)
    monkeypatch.setattr(tiny, "dims", 64, raising=False)
    answer = ask()
    assert codes(answer) == ["dimension_mismatch"] and "32" in answer.notices[0].message
    assert answer.options.mode == "keyword" and answer.hits


def test_a_model_that_is_not_here(workspace, index, tiny, ask, monkeypatch):
    index(workspace(NOTES), tiny)
    monkeypatch.delitem(chain.PROVIDERS, "tiny")
    answer = ask()
    assert codes(answer) == ["model_unavailable"] and "tiny tiny-bag" in answer.notices[0].message
    assert answer.hits[0].path == "memory/2026-01-05.md"


def test_another_model_of_the_same_width_is_not_mixed_in(workspace, index, tiny, ask, monkeypatch):
    index(workspace(NOTES), tiny)
    monkeypatch.setattr(tiny, "model", "tiny-bag-2", raising=False)
    assert codes(ask()) == ["model_unavailable"]


def test_a_query_that_cannot_be_embedded(workspace, index, tiny, ask, monkeypatch):
    index(workspace(NOTES), tiny)

    def fails(text):
        raise EmbeddingError("the model is on holiday")

    monkeypatch.setattr(tiny, "embed_query", fails)
    answer = ask()
    assert "embedding_failed" in codes(answer) and answer.options.mode == "keyword" and answer.hits


def test_an_empty_index(workspace, index, tiny, ask):
    index(workspace({"MEMORY.md": ""}), tiny)
    answer = ask()
    assert codes(answer) == ["empty_index"] and answer.hits == []


def test_a_search_that_takes_too_long(workspace, index, tiny, ask, monkeypatch):
    index(workspace({f"{n}.md": f"heron note {n} {'word ' * 50}" for n in range(200)}), tiny)
    monkeypatch.setattr("datasette_agent_memory.connections.load_sqlite_vec", lambda conn: False)
    if "no_vec_table" in codes(ask()):
        pytest.fail("the scan must run")
    answer = ask(time_limit_ms=1)
    assert "timeout" in codes(answer)
    assert "1 ms" in answer.notices[-1].message


@pytest.mark.parametrize("meta", ["garbled", "[]", '{"provider": 7}'])
def test_a_garbled_meta(workspace, index, tiny, database, ask, meta):
    index(workspace(NOTES), tiny)
    with open_writable(database) as conn:
        conn.execute("update meta set value = ?", (meta,))
    answer = ask()
    assert codes(answer) == ["model_unavailable"] and answer.hits


def test_rows_of_the_vector_table_without_a_chunk_are_passed_over(workspace, index, tiny, database, ask):
    index(workspace(NOTES), tiny)
    change(database, "delete from chunks where path = 'memory/2026-01-05.md'")
    assert all(hit.path != "memory/2026-01-05.md" for hit in ask().hits)
