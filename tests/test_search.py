"""The fused query: scores, order, filters and its shape."""

import json
import re

import pytest

from datasette_agent_memory.config import PARAMETERS, ParameterError, resolve_options
from datasette_agent_memory.connections import open_readonly, open_writable
from datasette_agent_memory.search import NotAMemoryDatabase, search

NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns billing. Tomasz owns the backend.\n",
    "memory/2026-01-05.md": "# Monday\n\nbackup backup backup of the server\n",
    "memory/2026-02-05.md": "# Thursday\n\nbackup of the server\n\n" + "Other words about the garden. " * 30,
    "memory/2026-03-05.md": "# Visit\n\nThe ferry to the island was late.\n",
    "memory/ids.md": "# Decisions\n\nDEC-0054 is settled.\n",
    "memory/notes/会议.md": "# 会议\n\n今天讨论了数据库迁移和备份。\n",
}


@pytest.fixture
def ask(workspace, index, database, tiny):
    index(workspace(NOTES), tiny)

    def run(q, **given):
        with open_readonly(database) as conn:
            return search(conn, q, given)

    return run


def paths(answer):
    return [hit.path for hit in answer.hits]


def test_a_score_is_the_weighted_sum_of_its_sides(ask):
    answer = ask("backup server", vector_weight=0.6, text_weight=0.4, min_score=0)
    assert answer.hits
    for hit in answer.hits:
        expected = 0.6 * (hit.vector_score or 0) + 0.4 * (hit.text_score or 0)
        assert hit.score == pytest.approx(expected)
    scores = [hit.score for hit in answer.hits]
    assert scores == sorted(scores, reverse=True)


def test_text_scores_differ_in_the_order_of_bm25(ask):
    """H04."""
    hits = ask("backup", mode="keyword").hits
    assert [hit.path for hit in hits] == ["memory/2026-01-05.md", "memory/2026-02-05.md"]
    assert 1 > hits[0].text_score > hits[1].text_score > 0


def test_an_exact_keyword_is_found_below_the_minimum(ask):
    """H03."""
    answer = ask("DEC-0054", min_score=1, k=3)
    assert answer.hits[0].path == "memory/ids.md"
    assert answer.hits[0].score < 1


def test_a_hit_below_the_minimum_displaces_none_above(ask, database):
    # By vectors alone everything passes; the keyword hit is weighed down to nothing.
    all_hits = ask("DEC-0054", vector_weight=1, text_weight=0, min_score=0, k=6).hits
    passing = sorted((hit.score for hit in all_hits), reverse=True)[2]
    answer = ask("DEC-0054", vector_weight=1, text_weight=0, min_score=passing, k=6)
    below = [hit.score < passing for hit in answer.hits]
    assert below == sorted(below), "what passes comes first"
    assert all(hit.text_score is not None for hit in answer.hits if hit.score < passing)


def test_modes(ask):
    assert all(hit.text_score is None for hit in ask("backup", mode="vector", min_score=0).hits)
    keyword = ask("backup", mode="keyword")
    assert all(hit.vector_score is None and hit.score == hit.text_score for hit in keyword.hits)
    assert "embed(" not in keyword.sql and "chunks_fts" not in ask("backup", mode="vector").sql


@pytest.mark.parametrize("text_norm, best", [("max", 1.0), ("rank", 1.0), ("relevance", None)])
def test_text_norms(ask, text_norm, best):
    scores = [hit.text_score for hit in ask("backup", mode="keyword", text_norm=text_norm).hits]
    assert len(scores) == 2 and scores[0] > scores[1]
    if best:
        assert scores[0] == best
    if text_norm == "rank":
        assert scores == [1.0, 0.5]


def test_reciprocal_ranks(ask):
    answer = ask("backup server", fusion="rrf", min_score=0, vector_weight=0.5, text_weight=0.5)
    by_vector = sorted((h for h in answer.hits if h.vector_score is not None), key=lambda h: -h.vector_score)
    by_text = sorted((h for h in answer.hits if h.text_score is not None), key=lambda h: -h.text_score)
    for hit in answer.hits:
        expected = sum(0.5 * 61 / (61 + side.index(hit)) for side in (by_vector, by_text) if hit in side)
        assert hit.score == pytest.approx(expected)


def test_decay_by_the_date_of_the_name(ask):
    plain = {hit.path: hit for hit in ask("backup", min_score=0).hits}
    answer = ask("backup", min_score=0, decay=1, half_life=31, now="2026-02-05")
    hits = {hit.path: hit for hit in answer.hits}
    assert hits["memory/2026-01-05.md"].decay == pytest.approx(0.5)
    assert hits["memory/2026-01-05.md"].age_days == 31
    assert hits["memory/2026-01-05.md"].score == pytest.approx(plain["memory/2026-01-05.md"].score / 2)
    assert hits["memory/2026-03-05.md"].decay == 1, "the future does not decay"
    assert (hits["MEMORY.md"].decay, hits["MEMORY.md"].age_days) == (1, None)
    assert answer.params["now"] == "2026-02-05"
    assert all((hit.decay, hit.age_days) == (1, None) for hit in plain.values())


def test_mmr_orders_all_candidates(ask, workspace, index, tiny):
    index(workspace({"memory/copy.md": NOTES["memory/2026-01-05.md"]}), tiny)
    plain = ask("backup of the server", min_score=0, k=3)
    assert set(paths(plain)[:2]) == {"memory/2026-01-05.md", "memory/copy.md"}
    varied = ask("backup of the server", min_score=0, k=3, mmr=1, **{"lambda": 0.3})
    assert paths(varied)[0] == paths(plain)[0]
    assert paths(varied)[1] not in paths(plain)[:2]
    scores = {hit.path: hit.score for hit in plain.hits}
    assert all(hit.score == scores[hit.path] for hit in varied.hits if hit.path in scores)


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"path": "memory/2026-*"}, {"memory/2026-01-05.md", "memory/2026-02-05.md", "memory/2026-03-05.md"}),
        ({"since": "2026-02-05"}, {"memory/2026-02-05.md", "memory/2026-03-05.md"}),
        ({"until": "2026-02-05"}, {"memory/2026-01-05.md", "memory/2026-02-05.md"}),
        ({"since": "2026-02-01", "until": "2026-02-28"}, {"memory/2026-02-05.md"}),
        ({"source": "memory", "path": "MEMORY.md"}, {"MEMORY.md"}),
        ({"source": "sessions"}, set()),
    ],
)
@pytest.mark.parametrize("mode", ["hybrid", "vector"])
def test_filters(ask, given, expected, mode):
    assert set(paths(ask("backup of the ferry", min_score=0, mode=mode, **given))) == expected


def test_a_filter_that_every_chunk_passes_costs_nothing(ask):
    answer = ask("backup", source="memory", path="*")
    assert "allowed" not in answer.sql and ":source" not in answer.sql
    assert (answer.options.source, answer.options.path) == ("memory", "*")
    assert paths(answer) == paths(ask("backup"))
    assert ":source" in ask("backup", source="sessions").sql


def test_filters_come_before_the_candidates_are_cut(ask):
    # With one candidate a side, a filter afterwards would leave nothing of the ferry.
    answer = ask("backup backup backup", k=1, candidate_multiplier=1, path="memory/2026-03*", min_score=0)
    assert paths(answer) == ["memory/2026-03-05.md"]


def test_the_same_question_gives_the_same_answer(workspace, index, database, tiny):
    index(workspace({f"{name}.md": "the same words" for name in "dbca"}), tiny)
    with open_readonly(database) as conn:
        answers = [search(conn, "same words") for _ in range(3)]
    assert [paths(answer) for answer in answers] == [["a.md", "b.md", "c.md", "d.md"]] * 3


@pytest.mark.parametrize(
    "given",
    [{"text_norm": "rank"}, {"fusion": "rrf"}, {"mode": "keyword", "mmr": 1, "lambda": 1}, {"mmr": 1}],
)
def test_equal_texts_have_equal_scores_whatever_was_edited(workspace, index, database, tiny, given):
    root = workspace({f"{name}.md": "identical zebra note" for name in "abcd"})
    (root / "e.md").write_text("something else")
    answers = []
    for text in ("identical zebra note", "edited", "identical zebra note"):
        (root / "a.md").write_text(text)
        index(root, tiny)
        with open_readonly(database) as conn:
            answers.append(search(conn, "zebra", {"k": 4, "min_score": 0, **given}))
    for answer in (answers[0], answers[2]):
        assert paths(answer) == ["a.md", "b.md", "c.md", "d.md"]
        assert len({hit.score for hit in answer.hits}) == 1


def test_more_candidates_than_sqlite_vec_takes(ask):
    """H10."""
    answer = ask("backup", k=2000, candidate_multiplier=4, min_score=0)
    assert answer.params["candidates"] == 4096
    assert len(answer.hits) == 6


@pytest.mark.parametrize("q", ["", "   ", "*", '"', "?!", "🎉"])
def test_a_query_without_a_word_finds_nothing(ask, q):
    assert ask(q).hits == []


def test_a_lone_surrogate_is_no_error(ask):
    assert ask("backup \udcff").hits


@pytest.mark.needs_sqlite_vec
def test_the_statement_is_the_designs(ask):
    sql = ask("backup", text_norm="relevance").sql
    assert sql.startswith(
        "WITH vector_hits AS MATERIALIZED (\n  SELECT id, 1 - vec_distance_cosine(embedding, embed(:q))"
    )
    assert "hybrid_score(vector_score, text_score, :vector_weight, :text_weight) AS score" in sql
    assert max(map(len, sql.splitlines())) < 140


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"mode": "keyword"},
        {"mode": "vector"},
        {"decay": 1, "mmr": 1, "text_norm": "max", "since": "2026-01-01", "source": "memory", "path": "m*"},
        {"fusion": "rrf", "match": "all"},
    ],
)
def test_the_statement_with_parameters_as_text_gives_the_same(ask, database, given):
    """Datasette's editor passes every parameter as text."""
    answer = ask("backup server", **given)
    with open_readonly(database) as conn:
        params = {name: str(value) for name, value in answer.params.items()}
        rows = conn.execute(answer.sql, params).fetchall()
    assert [(row["id"], row["score"]) for row in rows] == [(hit.id, hit.score) for hit in answer.hits]
    assert set(re.findall(r":([a-z_]+)", answer.sql)) == set(answer.params)


def test_a_question_is_embedded_once(ask, tiny, monkeypatch):
    calls = []
    embed_query = tiny.embed_query
    monkeypatch.setattr(tiny, "embed_query", lambda text: [calls.append(text), embed_query(text)][1])
    ask("backup")
    ask("backup")
    assert calls == ["backup"]


def test_citations(ask):
    assert ask("DEC-0054").hits[0].citation == "memory/ids.md#L1-L4"


def test_another_database_is_refused(tmp_path):
    with open_writable(tmp_path / "other.db") as conn, pytest.raises(NotAMemoryDatabase):
        conn.execute("create table t (a)")
        search(conn, "x")


@pytest.mark.parametrize(
    "name, value",
    [
        ("k", "0"),
        ("k", "-1"),
        ("k", "4097"),
        ("k", "1.5"),
        ("k", "many"),
        ("k", "1_0"),
        ("k", "٣"),
        ("k", "9" * 5000),
        ("mode", "both"),
        ("min_score", "2"),
        ("min_score", "nan"),
        ("vector_weight", "-0.1"),
        ("text_weight", "x"),
        ("candidate_multiplier", "0"),
        ("text_norm", "none"),
        ("fusion", "x"),
        ("match", "x"),
        ("decay", "maybe"),
        ("half_life", "0"),
        ("mmr", "2"),
        ("lambda", "1.1"),
        ("since", "yesterday"),
        ("until", "2026-02-30"),
        ("now", "x"),
        ("now", "20260601"),
        ("now", "2026-W23-1"),
        ("preset", "x"),
    ],
)
def test_a_bad_value_is_named(name, value):
    with pytest.raises(ParameterError, match=f"^{name} must be ") as caught:
        resolve_options({name: value})
    assert len(str(caught.value)) < 200 and "\n" not in str(caught.value)


def test_every_parameter_is_an_option():
    options = resolve_options({})
    assert list(options.as_parameters()) == list(PARAMETERS)
    json.dumps(options.as_parameters())


def test_what_is_given_comes_before_preset_configuration_and_provider():
    provider = {"text_norm": "max", "min_score": 0.1}
    assert resolve_options({}, {}, provider).text_norm == "max"
    assert resolve_options({}, {"text_norm": "rank"}, provider).text_norm == "rank"
    assert resolve_options({"preset": "openclaw"}, {"text_norm": "rank"}, provider).text_norm == "relevance"
    given = {"preset": "openclaw", "text_norm": "max"}
    assert resolve_options(given, {"text_norm": "rank"}, provider).text_norm == "max"
    assert resolve_options({"min_score": ""}, {}, provider).min_score == 0.1
    assert resolve_options({}, {"preset": "openclaw"}, provider).match == "all"
