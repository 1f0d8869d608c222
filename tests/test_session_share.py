"""Sessions don't drown the memory among the results."""

from collections import Counter

import pytest

from datasette_agent_memory import fused_sql
from datasette_agent_memory.config import resolve_options
from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.explain import Explainer
from datasette_agent_memory.explanation import parse_place
from datasette_agent_memory.search import ask

#: Sessions that speak of nothing else, and notes that mention it.
FILES = {
    **{f"memory/s-{n:02}.md": f"heron heron heron canal, turn {n}\n" for n in range(40)},
    **{f"memory/note-{n}.md": f"heron note {n} of other things, and the ferry was late\n" for n in range(8)},
    "memory/other.md": "the ferry was late\n",
}


@pytest.fixture
def fill(workspace, index, tiny, change):
    """Index files, of which those named s- are sessions."""

    def run(files=FILES):
        index(workspace(files), tiny)
        change(*(f"update {table} set source = 'sessions' where path like 'memory/s-%'" for table in TABLES))

    return run


TABLES = ("files", "chunks", "chunks_fts")


@pytest.fixture
def find(database):
    def run(q="heron", **given):
        with open_readonly(database) as conn:
            return ask(conn, q, given)

    return run


def kinds(answer):
    return Counter(hit.source for hit in answer.hits)


MODES = [
    {},
    {"mode": "keyword"},
    {"mode": "vector"},
    {"text_norm": "coverage"},
    {"text_norm": "rank"},
    {"text_norm": "max"},
    {"fusion": "rrf", "min_score": 0},
    {"rescore": 0},
    {"match": "any"},
    {"match": "all"},
    {"mmr": 1},
    {"mmr": 1, "mode": "keyword"},
    {"decay": 1, "now": "2026-06-01"},
    {"path": "memory/[ns]*"},
    {"candidate_multiplier": 1},
]
NAMES = [",".join(f"{name}={value}" for name, value in given.items()) or "none" for given in MODES]


@pytest.mark.parametrize("given", MODES, ids=NAMES)
def test_notes_have_their_share(fill, find, given):
    fill()
    given = {"min_score": 0, **given}
    assert kinds(find(**given)) == {"sessions": 3, "memory": 3}
    assert kinds(find(session_share=1, **given))["sessions"] > 3


@pytest.mark.parametrize("given", MODES, ids=NAMES)
def test_so_they_have_without_sqlite_vec(fill, find, given, no_sqlite_vec):
    fill()
    assert kinds(find(**{"min_score": 0, **given})) == {"sessions": 3, "memory": 3}


@pytest.mark.parametrize("given", MODES, ids=NAMES)
def test_the_first_results_are_those_of_fewer(fill, find, database, given):
    """The page cuts what it has run once: LIMIT takes the first of one order."""
    fill()
    answer = find(**{"min_score": 0, **given})
    with open_readonly(database) as conn:
        everything = conn.execute(answer.sql, {**answer.params, "k": 1000}).fetchall()
        limited = conn.execute(answer.sql, answer.params).fetchall()
    assert [tuple(row) for row in everything[:6]] == [tuple(row) for row in limited]
    assert [row["id"] for row in limited] == [hit.id for hit in answer.hits]


@pytest.mark.needs_sqlite_vec
@pytest.mark.parametrize("q", ["heron", "ferry late", "turn 7"])
@pytest.mark.parametrize("given", MODES, ids=NAMES)
def test_the_shortcut_by_the_nearest_finds_the_same(fill, find, given, q, monkeypatch):
    """Notes are looked for by themselves only where too few are among the nearest of all."""
    fill()
    given = {"min_score": 0, "k": 4, **given}
    for for_notes in (1, 4):
        monkeypatch.setattr(fused_sql, "_FOR_NOTES", for_notes)
        with_vec = find(q, **given)
        with monkeypatch.context() as patched:
            patched.setattr("datasette_agent_memory.connections.load_sqlite_vec", lambda conn: False)
            without = find(q, **given)
        scores, expected = ([hit.score for hit in answer.hits] for answer in (with_vec, without))
        assert without.sides.scan == without.sides.vector
        assert scores == pytest.approx(expected, abs=1e-4)
        assert kinds(with_vec) == kinds(without)


def test_with_passages(fill, find, tiny, monkeypatch):
    monkeypatch.setattr(type(tiny), "has_passages", True)
    monkeypatch.setattr("datasette_agent_memory.notices._NEAREST", 30)
    fill()
    for mode in ("hybrid", "vector"):
        answer = find(mode=mode, min_score=0)
        assert answer.sides.passages and kinds(answer) == {"sessions": 3, "memory": 3}


def test_words_inside_words(fill, find, change):
    """Of an index whose full-text table has runs of CJK whole."""
    sessions = {f"memory/s-{n:02}.md": f"港湾项目的灯塔 {n}\n" for n in range(40)}
    fill({**sessions, **{f"memory/note-{n}.md": f"说到灯塔和很多别的事情 {n}\n" for n in range(6)}})
    columns = "text, id unindexed, path unindexed, source unindexed"
    change(
        "drop table chunks_fts",
        f"create virtual table chunks_fts using fts5({columns})",
        "insert into chunks_fts (text, id, path, source) select text, id, path, source from chunks",
    )
    answer = find("灯塔", mode="keyword", min_score=0)
    assert answer.sides.substring and kinds(answer) == {"sessions": 3, "memory": 3}


@pytest.mark.parametrize("k, share, most", [(6, 0.5, 3), (5, 0.5, 2), (1, 0.5, 1), (6, 0, 1), (10, 0.29, 2)])
def test_the_share_is_rounded_down_and_one_at_least(fill, find, k, share, most):
    fill()
    assert kinds(find(k=k, session_share=share, min_score=0))["sessions"] == max(most, k - 9)


def test_a_whole_number_is_not_rounded_below_itself():
    assert resolve_options({"k": 100, "session_share": 0.29}).most_sessions == 29


def test_places_that_notes_leave_free_are_filled(fill, find):
    fill()
    answer = find("canal", mode="keyword", min_score=0)
    assert kinds(answer) == {"sessions": 6}
    answer = find("heron", mode="keyword", k=20, min_score=0)
    assert [hit.source for hit in answer.hits[18:]] == ["sessions"] * 2
    assert kinds(answer) == {"sessions": 12, "memory": 8}


def test_a_note_below_the_minimum_takes_no_place_of_a_session(fill, find):
    fill()
    scores = [hit.score for hit in find(min_score=0, k=48, session_share=1).hits if hit.source == "memory"]
    answer = find(min_score=max(scores) + 0.001)
    assert kinds(answer) == {"sessions": 6}


def test_a_filter_by_source_has_all_of_it(fill, find):
    fill()
    for source in ("sessions", "memory"):
        answer = find(source=source, min_score=0)
        assert kinds(answer) == {source: 6} and not answer.statement.has("shared")


def test_the_statement_of_other_indexes_does_not_know_of_it(fill, find, change):
    fill()
    shared = find().sql
    change(*(f"update {table} set source = 'memory'" for table in TABLES))
    answer = find()
    assert "sessions" in shared and "session" not in answer.sql + str(answer.params)
    change(*(f"update {table} set source = 'sessions'" for table in TABLES))
    assert find().sql == answer.sql and len(find().hits) == 6


def test_openclaw_has_no_such_rule(fill, find):
    fill()
    answer = find(preset="openclaw", min_score=0)
    assert answer.options.session_share == 1 and answer.options.is_replay
    assert kinds(answer) == {"sessions": 6}
    answer = find(preset="openclaw", min_score=0, session_share=0.5)
    assert not answer.options.is_replay and kinds(answer) == {"sessions": 3, "memory": 3}


# Why


@pytest.fixture
def why(database):
    def run(place, q="heron", **given):
        with open_readonly(database) as conn:
            answer = ask(conn, q, given)
            explainer = Explainer(conn, answer, lambda settings: ask(conn, q, {**given, **settings}))
            (found,) = explainer.place(*parse_place(place))
        return found

    return run


def test_a_session_falls_out_by_its_share(fill, find, why):
    fill()
    given = {"mode": "keyword", "min_score": 0}
    shown = [hit.path for hit in find(session_share=1, **given).hits]
    left = [path for path in shown if path not in {hit.path for hit in find(**given).hits}]
    assert len(left) == 3
    for path in left:
        found = why(path, **given)
        assert found.fell_out.name == "session_share" and found.settings == {"session_share": 1}
        assert "3 are returned" in found.fell_out.detail and "without this rule" in found.fell_out.detail


def test_what_would_be_shown_neither_way_falls_out_by_k(fill, find, why):
    fill()
    given = {"mode": "keyword", "min_score": 0}
    last = find(k=24, session_share=1, **given).hits[-1].path
    found = why(last, **given)
    assert found.fell_out.name == "k"
    assert last in {hit.path for hit in find(**given, **found.settings).hits}


@pytest.mark.parametrize("given", MODES, ids=NAMES)
def test_what_would_have_shown_a_chunk_shows_it(fill, find, why, given):
    fill()
    given = {"min_score": 0, "k": 4, **given}
    returned = {hit.path for hit in find(**given).hits}
    for path in ("memory/s-00.md", "memory/s-39.md", "memory/note-0.md", "memory/note-7.md"):
        found = why(path, **given)
        assert found.returned == (path in returned)
        assert (found.fell_out is None) == found.returned
        if found.settings is not None:
            assert path in {hit.path for hit in find(**{**given, **found.settings}).hits}
        else:
            assert found.returned


def test_a_result_says_so(fill, find, why):
    fill()
    steps = {step.name: step for step in why(find(min_score=0).hits[0].path, min_score=0).steps}
    assert steps["session_share"].passed and steps["candidates"].detail.endswith("as many sessions")
    found = why("memory/s-00.md", "canal", mode="keyword", k=50, session_share=0.1, min_score=0)
    assert found.returned and all(step.passed for step in found.steps)


def test_places_are_those_among_their_own_kind(fill, find, why):
    fill()
    best = next(hit for hit in find(min_score=0, mode="keyword").hits if hit.source == "memory")
    assert why(best.path, mode="keyword", min_score=0).text_place == 1
