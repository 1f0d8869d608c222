"""`preset=openclaw` finds what OpenClaw 2026.3.31 would have found, by its own rules.

benchmarks/openclaw_replay.py compares it with OpenClaw's own answers.
"""

import json
import math

import pytest

from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.explain import Explainer
from datasette_agent_memory.openclaw import (
    openclaw_age,
    openclaw_keywords,
    openclaw_query,
    openclaw_short_words,
    openclaw_words,
)
from datasette_agent_memory.search import search

NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns billing. The heron is hers.\n",
    "memory/2026-01-05.md": "# Monday\n\nheron heron\n",
    "memory/2026-01-05-standup.md": "The heron at the canal.\n",
    "memory/other.md": "Nothing.\n",
}


@pytest.fixture
def ask(workspace, index, database, tiny):
    index(workspace(NOTES), tiny)

    def run(q, **given):
        with open_readonly(database) as conn:
            return search(conn, q, {"preset": "openclaw", **given})

    return run


@pytest.mark.parametrize(
    "q, expression",
    [
        ("C++ and don't", '"C" AND "and" AND "don" AND "t"'),
        ("2026.4.10 a_b", '"2026" AND "4" AND "10" AND "a_b"'),
        ("飞书插件 x", '"飞书插件" AND "x"'),
        ("?!", '""'),
        (None, '""'),
    ],
)
def test_every_run_of_letters_must_be_there(q, expression):
    assert openclaw_query(q) == expression


def test_trigrams_leave_short_words_of_cjk_to_a_look_at_the_text():
    assert openclaw_query("飞书 插件配置 AI", "trigram") == '"插件配置" AND "AI"'
    assert json.loads(openclaw_short_words("飞书 插件配置 AI")) == ["飞书"]


def test_keywords_of_an_index_without_vectors():
    assert json.loads(openclaw_keywords("what about the WH-401 heron?")) == ['"heron"']
    assert json.loads(openclaw_keywords("插件v2")) == ['"插"', '"件"', '"插件"']
    assert json.loads(openclaw_keywords("插件v2", "trigram")) == ['""']
    assert json.loads(openclaw_keywords("an 42")) == ['"an" AND "42"'], (
        "the whole query where nothing is left"
    )


@pytest.mark.parametrize(
    "path, source, age",
    [
        ("memory/2026-01-05.md", "memory", 10.5),
        ("x/memory/2026-01-05.md", "memory", 10.5),
        ("memory/2026-02-01.md", "memory", 0),
        ("memory/2026-01-05-standup.md", "memory", None),
        ("memory/projects/2026-01-05.md", "memory", None),
        ("MEMORY.md", "memory", None),
        ("memory/2026-02-30.md", "memory", 1.5),
        ("extra/notes.md", "memory", 1.5),
        ("sessions/a.jsonl", "sessions", None),
    ],
)
def test_ages(path, source, age):
    changed = 1768348800000  # 2026-01-14
    assert openclaw_age(path, source, changed, "2026-01-15T12:00:00Z") == age


def test_the_words_that_mmr_compares():
    assert openclaw_words("Ab-c_1 é") == "ab c_1"
    assert len(openclaw_words("插件 置").split()) == 4, "three characters and one bigram"
    assert openclaw_words("x" * 699 + "🎉") == "x" * 699
    assert openclaw_words(None) is None


def test_a_keyword_hit_below_the_minimum_is_lost_unless_there_is_nothing_else(ask):
    weights = {"vector_weight": 0, "text_weight": 1}
    scores = [hit.score for hit in ask("heron", min_score=0, **weights).hits if hit.text_score]
    assert len(scores) == 3
    middle = sorted(scores)[1]
    assert len(ask("heron", min_score=middle, **weights).hits) == 2
    # The floor is the weight of the text side, which r / (1 + r) does not reach.
    assert ask("heron", min_score=1, **weights).hits == []
    assert ask("heron nowhere", mode="keyword", min_score=0).hits == []


def test_a_side_that_did_not_find_a_chunk_gives_it_nothing(ask):
    hits = ask("heron", k=1, candidate_multiplier=1, min_score=0).hits
    assert all(None in (hit.vector_score, hit.text_score) or hit.vector_score for hit in hits)
    assert "rescore" not in ask("heron").sql and "scores AS" not in ask("heron").sql


def test_decay_and_mmr_by_its_rules(ask):
    hits = {hit.path: hit for hit in ask("heron", min_score=0, decay=1, now="2026-02-04", mmr=1).hits}
    assert hits["memory/2026-01-05.md"].decay == pytest.approx(math.exp(-math.log(2)))
    assert hits["memory/2026-01-05-standup.md"].decay == 1
    plain = ask("heron", min_score=0).hits
    varied = ask("heron", min_score=0, mmr=1, **{"lambda": 0}).hits
    assert {hit.path for hit in plain} == {hit.path for hit in varied}
    assert plain[0].path == varied[0].path


def test_a_rule_that_is_overridden_gives_our_search_with_the_other_values(ask):
    answer = ask("heron nowhere", match="any")
    assert answer.options.min_score == 0.35 and not answer.options.is_replay
    assert "fts_query(:q, :match)" in answer.sql


@pytest.mark.parametrize(
    "given", [{}, {"mode": "vector"}, {"mode": "keyword"}, {"source": "memory", "path": "m*", "decay": 1}]
)
def test_its_statement_with_parameters_as_text_gives_the_same(ask, database, given):
    answer = ask("heron", min_score=0, **given)
    assert answer.hits
    params = {name: str(value) for name, value in answer.params.items()}
    with open_readonly(database) as conn:
        rows = conn.execute(answer.sql, params).fetchall()
    assert [(row["id"], row["score"]) for row in rows] == [(hit.id, hit.score) for hit in answer.hits]


def test_without_vectors_each_word_is_asked_for_by_itself(workspace, index, database):
    index(workspace(NOTES))
    with open_readonly(database) as conn:
        q = "what did the heron do at the canal"
        answer = search(conn, q, {"preset": "openclaw"})
        assert [hit.path for hit in answer.hits] == ["memory/2026-01-05-standup.md"]
        # Where nothing passes, everything does.
        answer = search(conn, q, {"preset": "openclaw", "min_score": 0.9})
        assert answer.hits[0].path == "memory/2026-01-05-standup.md" and len(answer.hits) == 3
        assert search(conn, "canal", {"preset": "openclaw", "path": "M*"}).hits == []
        answer = search(conn, "canal", {"preset": "openclaw", "path": "memory/*", "since": "2026-01-01"})
        assert [notice.code for notice in answer.notices] == ["no_vectors"] and len(answer.hits) == 1
        # Each of its keywords, and no others.
        (found,) = Explainer(conn, search(conn, q, {"preset": "openclaw", "k": 1}), lambda _: answer).hits()
        assert {word.term for word in found.words} == {'"heron"', '"canal"'}
