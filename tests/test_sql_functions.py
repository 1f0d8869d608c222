"""Values, and that nothing raises. The examples in the docs are run by test_docs.py."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasette_agent_memory.connections import prepare, sqlite3
from datasette_agent_memory.embeddings.base import from_json, to_json


@pytest.fixture(scope="module")
def conn():
    connection = sqlite3.connect(":memory:")
    prepare(connection)
    yield connection
    connection.close()


@pytest.fixture
def value(conn):
    def run(expression, **params):
        return conn.execute(f"select {expression}", params).fetchone()[0]

    return run


@pytest.mark.parametrize(
    "expression, expected",
    [
        ("bm25_norm(-3)", 0.75),
        ("bm25_norm(-1e308)", 1.0),
        ("bm25_norm(0)", 1.0),
        ("bm25_norm(1)", 0.5),
        ("bm25_norm('-3')", 0.75),
        ("bm25_norm(NULL)", None),
        ("bm25_norm('x')", None),
        ("bm25_norm(x'00')", None),
        ("bm25_norm(9e999)", None),
        ("hybrid_score(0.5, 1.0)", 0.65),
        ("hybrid_score(0.5, NULL)", 0.35),
        ("hybrid_score(NULL, 1.0)", 0.3),
        ("hybrid_score(NULL, NULL)", None),
        ("hybrid_score(1, 0, 0.5, 0.5)", 0.5),
        ("hybrid_score(1, 0, '0.5', '0.5')", 0.5),
        ("hybrid_score(1, 0, 3, 1)", 0.5),
        ("hybrid_score(1, 0, -1, 1)", 0.0),
        ("hybrid_score(1, 0, 0, 0)", 0.7),
        ("hybrid_score(1, 0, NULL, 1)", None),
        ("hybrid_score('x', 0)", None),
        ("decay(1, 30)", 0.5),
        ("decay(0.8, 20, 10)", 0.2),
        ("decay(0.8, NULL)", 0.8),
        ("decay(0.8, -5)", 0.8),
        ("decay(0.8, 5, 0)", None),
        ("decay(0.8, 5, -1)", None),
        ("decay(0.8, 5, NULL)", None),
        ("decay(NULL, 5)", None),
        ("decay(0.8, 'x')", None),
        ("memory_age('memory/2026-01-05.md', '2026-01-15')", 10.0),
        ("memory_age('memory/2026-01-05.md', '2026-01-05T12:00:00Z')", 0.5),
        ("memory_age('memory/2026-01-05.md', '2026-01-05T01:00:00+02:00')", -1 / 24),
        ("memory_age('2026-01-05.md', '2026-01-05 06:00')", 0.25),
        ("memory_age('2026-01-05.md', '2026-01-05T06:00:00.5Z')", 0.25 + 0.5 / 86400),
        ("memory_age('2026-01-05.md', '20260105')", None),
        ("memory_age('memory/dreaming/light/2026-01-11.md', '2026-01-12')", 1.0),
        ("memory_age('memory/2026-01-11-standup.md', '2026-01-12')", 1.0),
        ("memory_age('memory/2026-01-11-0930.md', '2026-01-12')", 1.0),
        ("memory_age('2026-01-11.md', '2026-01-01')", -10.0),
        ("memory_age('MEMORY.md', '2026-01-01')", None),
        ("memory_age('memory/plans.md', '2026-01-01')", None),
        ("memory_age('memory/2026-02-30.md', '2026-01-01')", None),
        ("memory_age('memory/2026-01-111.md', '2026-01-01')", None),
        ("memory_age('2026-01-11/notes.md', '2026-01-12')", None),
        ("memory_age('memory/2026-01-05.md', 'yesterday')", None),
        ("memory_age(NULL, '2026-01-01')", None),
        ("memory_age(7, '2026-01-01')", None),
        ("fts_query('status: done')", '"status" OR "done"'),
        ("fts_query('status: done', 'all')", '"status" AND "done"'),
        ("fts_query(NULL)", '""'),
        ("fts_query(7)", '""'),
        ("fts_query('x', 'nonsense')", '""'),
        ("cosine_similarity('[1, 0]', '[1, 0]')", 1.0),
        ("cosine_similarity('[1, 0]', '[0, 2]')", 0.0),
        ("cosine_similarity('[1, 2]', '[-1, -2]')", -1.0),
        ("cosine_similarity('[1, 0]', '[1, 0, 0]')", None),
        ("cosine_similarity('[0, 0]', '[1, 0]')", None),
        ("cosine_similarity('[]', '[]')", None),
        ("cosine_similarity('nonsense', '[1]')", None),
        ("cosine_similarity('{\"a\": 1}', '[1]')", None),
        ("cosine_similarity('[[1]]', '[[1]]')", None),
        ("cosine_similarity('[\"a\"]', '[1]')", None),
        ("cosine_similarity(x'0000', '[1]')", None),
        ("cosine_similarity(NULL, '[1]')", None),
        ("cosine_similarity(x'0000c07f', '[1]')", None),
        ("embed(NULL)", None),
        ("embed('')", None),
        ("embed('?!')", None),
        ("embed(7)", None),
    ],
)
def test_value(value, expression, expected):
    assert value(expression) == (expected if expected is None else pytest.approx(expected, abs=1e-12))


def test_age_without_now_counts_to_today(value):
    assert value("memory_age('2020-01-01.md') = memory_age('2020-01-01.md', date('now'))") == 1


def test_cosine_of_a_blob_and_json(value):
    vector = np.array([0.6, 0.8], dtype="<f4")
    assert value("cosine_similarity(:blob, '[0.6, 0.8]')", blob=vector.tobytes()) == pytest.approx(1)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_json_gives_the_same_float32_back(values):
    vector = np.array(values, dtype=np.float32)
    assert np.array_equal(from_json(to_json(vector)), vector)


anything = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=20), st.binary(max_size=20)
)
FUNCTIONS = {
    "bm25_norm": (1,),
    "hybrid_score": (2, 4),
    "decay": (2, 3),
    "memory_age": (1, 2),
    "fts_query": (1, 2),
    "cosine_similarity": (2,),
    "mmr": (4,),
}


@given(st.data())
def test_no_input_raises(conn, data):
    name = data.draw(st.sampled_from(sorted(FUNCTIONS)))
    count = data.draw(st.sampled_from(FUNCTIONS[name]))
    arguments = data.draw(st.lists(anything, min_size=count, max_size=count))
    (result,) = conn.execute(f"select {name}({', '.join('?' * count)})", arguments).fetchone()
    assert result is None or not isinstance(result, float) or math.isfinite(result)


def mmr(conn, rows, weight):
    return json.loads(
        conn.execute(
            "select mmr(value ->> 0, value ->> 1, value ->> 2, ?) from json_each(?)",
            (weight, json.dumps(rows)),
        ).fetchone()[0]
    )


class TestMmr:
    ROWS = (
        ("a", 0.9, "backup of the server to the cloud"),
        ("b", 0.8, "backup of the server to the cloud"),
        ("c", 0.7, "a new recipe for soup"),
        ("d", 0.1, "nothing at all"),
    )

    def test_one_is_relevance_alone(self, conn):
        assert mmr(conn, self.ROWS, 1) == ["a", "b", "c", "d"]

    def test_what_is_unlike_comes_forward(self, conn):
        # b is like a: 0.5 * 0.875 - 0.5 * 1 < 0.5 * 0.75 - 0.5 * 0
        assert mmr(conn, self.ROWS, 0.5) == ["a", "c", "d", "b"]

    def test_any_alphabet(self, conn):
        rows = [("a", 0.9, "数据库迁移完成"), ("b", 0.8, "数据库迁移完成"), ("c", 0.7, "今天买了苹果")]
        assert mmr(conn, rows, 0.5) == ["a", "c", "b"]
        rows = [("a", 0.9, "резервная копия"), ("b", 0.8, "резервная копия"), ("c", 0.7, "новый суп")]
        assert mmr(conn, rows, 0.5) == ["a", "c", "b"]

    def test_a_word_beside_cjk_is_a_word(self, conn):
        rows = [("a", 0.9, "12月"), ("b", 0.8, "21日"), ("c", 0.79, "x y"), ("d", 0.7, "z")]
        assert mmr(conn, rows, 0.5) == ["a", "b", "c", "d"]

    def test_equal_scores_keep_their_order(self, conn):
        assert mmr(conn, [("x", 0.5, "one"), ("y", 0.5, "two"), ("z", 0.5, "three")], 0.7) == ["x", "y", "z"]

    def test_of_nothing(self, conn):
        assert conn.execute("select mmr(1, 1, 1, 0.5) where 0").fetchone()[0] is None

    def test_rows_without_a_score_are_left_out(self, conn):
        assert mmr(conn, [("a", None, "one"), ("b", 0.5, "two")], 0.7) == ["b"]
