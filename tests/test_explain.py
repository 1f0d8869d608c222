"""Why a chunk was found or missed: every number, the step at which it fell out, and what shows it."""

import json
import re

import pytest
from click.testing import CliRunner
from datasette.cli import cli

from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.explain import Explainer
from datasette_agent_memory.explanation import NothingToExplain, parse_place
from datasette_agent_memory.search import ask

NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns billing. The heron is hers.\n",
    "memory/2026-01-05.md": "# Monday\n\nheron heron at the canal\n",
    "memory/2026-02-05.md": "# Thursday\n\nheron heron at the canal\n",
    "memory/2026-03-05.md": "# Visit\n\nThe ferry to the island was late.\n",
    "memory/canal.md": "The canal was drained, and a heron stood in it.\n",
    "memory/empty.md": "\n",
    **{f"memory/heron-{n}.md": f"heron note number {n}, of a heron\n" for n in range(20)},
}


@pytest.fixture
def explain(workspace, index, database, tiny):
    index(workspace(NOTES), tiny)

    def run(q, place=None, **given):
        with open_readonly(database) as conn:
            answer = ask(conn, q, given)
            explainer = Explainer(conn, answer, lambda settings: ask(conn, q, {**given, **settings}))
            return explainer.place(*parse_place(place)) if place else (answer, explainer.hits())

    return run


def found_with(database, q, settings, given=None):
    with open_readonly(database) as conn:
        return {hit.path for hit in ask(conn, q, {**(given or {}), **settings}).hits}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"text_norm": "coverage"},
        {"text_norm": "max", "decay": 1, "now": "2026-06-01"},
        {"text_norm": "rank"},
        {"fusion": "rrf"},
        {"mode": "keyword"},
        {"mode": "vector", "min_score": 0},
        {"mmr": 1},
        {"preset": "openclaw", "min_score": 0},
        {"match": "all"},
        {"match": "any", "path": "memory/*"},
    ],
)
def test_the_numbers_of_a_hit_are_those_of_its_row(explain, given):
    answer, explanations = explain("heron canal", **given)
    assert len(explanations) == len(answer.hits) > 0
    for place, (hit, found) in enumerate(zip(answer.hits, explanations, strict=True), 1):
        assert (found.path, found.start_line, found.position) == (hit.path, hit.start_line, place)
        assert found.score == pytest.approx(hit.score)
        assert found.vector_score == pytest.approx(hit.vector_score)
        assert found.text_score == pytest.approx(hit.text_score)
        assert found.fell_out is None and found.settings is None
        if found.parts:
            assert sum(part.contribution for part in found.parts) == pytest.approx(hit.score)
        if "'" not in str(given) and answer.options.mode != "vector":
            assert {word.term.strip('"') for word in found.words} == {"heron", "canal"}


def test_a_text_score_follows_from_its_words(explain):
    _, (first, *_) = explain("heron canal", text_norm="coverage")
    ceiling = sum(word.weight for word in first.words)
    assert first.every_word and all(word.in_chunk for word in first.words)
    assert first.text_score == pytest.approx((1 - first.bm25 / ceiling) / 2)
    assert [rule for rule in first.rules if "coverage" in rule]
    by_term = {word.term: word.chunks for word in first.words}
    assert by_term == {'"heron"': 24, '"canal"': 3}


def test_what_is_not_in_the_index(explain):
    (gone,) = explain("heron", "memory/nowhere.md:3")
    assert (gone.fell_out.name, gone.returned, gone.settings) == ("indexed", False, None)
    assert "no such file" in gone.fell_out.detail
    (beyond,) = explain("heron", "MEMORY.md:99")
    assert "up to line" in beyond.fell_out.detail
    (blank,) = explain("heron", "memory/empty.md")
    assert "no text" in blank.fell_out.detail


def test_a_path_may_be_given_by_its_end(explain, workspace, index, tiny):
    for place in ("canal.md:1", "./memory/canal.md#L1-L2", f"{workspace()}/memory/canal.md"):
        (found,) = explain("canal", place)
        assert found.path == "memory/canal.md" and found.returned
    index(workspace({"memory/a/canal.md": "canal"}), tiny)
    (found,) = explain("canal", "canal.md")
    assert found.fell_out.name == "indexed"
    assert "several files end so: memory/a/canal.md, memory/canal.md" in found.fell_out.detail


def test_why_a_file_is_not_indexed(explain):
    assert "end in .md" in explain("x", "memory/notes.txt")[0].fell_out.detail
    assert "--extra" in explain("x", "AGENTS.md")[0].fell_out.detail


def test_a_hit_that_an_index_run_removed_meanwhile(workspace, index, database, tiny):
    index(workspace(NOTES), tiny)
    with open_readonly(database) as conn:
        answer = ask(conn, "canal", {})
        (workspace() / "memory/canal.md").unlink()
        index(workspace(), tiny)
        explanations = Explainer(conn, answer, lambda settings: ask(conn, "canal", settings)).hits()
    gone = next(found for found in explanations if found.path == "memory/canal.md")
    assert "gone from the index" in gone.steps[0].detail


def test_what_could_not_be_had_in_time_is_not_known(workspace, index, database, tiny, monkeypatch):
    index(workspace(NOTES), tiny)
    with open_readonly(database) as conn:
        answer = ask(conn, "heron canal", {})
        explainer = Explainer(conn, answer, lambda settings: ask(conn, "heron canal", settings))

        def interrupted(sql, params):
            explainer._is_cut_short = True
            return []

        monkeypatch.setattr(explainer, "_run", interrupted)
        hits = explainer.hits()
        (missed,) = explainer.place("memory/2026-03-05.md")
    for hit, found in zip(answer.hits, hits, strict=True):
        assert found.score == hit.score and found.fell_out is None and found.returned
    assert "too long" in missed.fell_out.detail


def test_whether_a_chunk_has_every_word_is_looked_for_by_auto_alone(explain):
    answer, explanations = explain("heron canal", match="any", mode="keyword", text_norm="coverage")
    assert all(found.every_word is None for found in explanations)
    scores = [hit.score for hit in answer.hits]
    assert scores == sorted(scores, reverse=True)


def test_a_word_adds_what_bm25_is_made_of(explain):
    _, explanations = explain("heron canal ferry")
    for found in explanations:
        assert sum(word.adds for word in found.words if word.in_chunk) == pytest.approx(-found.bm25)
    _, explanations = explain("2026-01-05 heron")
    first = next(found for found in explanations if found.path == "memory/2026-01-05.md")
    assert [(word.term, word.in_text) for word in first.words] == [('"2026-01-05"', False), ('"heron"', True)]


@pytest.mark.needs_sqlite_vec
def test_passages_are_compared_of_the_nearest_alone(workspace, index, database, tiny, monkeypatch):
    monkeypatch.setattr(type(tiny), "has_passages", True)
    monkeypatch.setattr("datasette_agent_memory.notices._NEAREST", 2)
    long = {f"memory/long-{n}.md": f"- {'word ' * 30}{n}\n" * 5 + "- zebra\n" for n in range(8)}
    index(workspace(long), tiny)
    with open_readonly(database) as conn:
        given = {"mode": "vector", "k": 1, "candidate_multiplier": 1, "min_score": 0}
        again = lambda settings: ask(conn, "zebra", {**given, **settings})  # noqa: E731
        explainer = Explainer(conn, again({}), again)
        found = [one for path in long for one in explainer.place(path)]
    outside = [one for one in found if one.vector_place is None]
    assert outside and all(one.nearest_place > 2 for one in outside)
    assert all("passages of the 2 nearest" in one.fell_out.detail for one in outside)
    assert all(one.settings for one in found if not one.returned)


@pytest.mark.parametrize(
    "q, place, given, step, setting",
    [
        ("heron", "MEMORY.md:3", {"path": "memory/*"}, "filters", "path"),
        ("heron", "memory/2026-01-05.md", {"since": "2026-02-01", "k": 20}, "filters", "since"),
        ("heron", "MEMORY.md", {"mode": "keyword", "k": 1, "candidate_multiplier": 1}, "candidates", None),
        (
            "heron",
            "MEMORY.md",
            {"mode": "keyword", "k": 2, "candidate_multiplier": 20, "min_score": 0},
            "k",
            "k",
        ),
        ("ferry", "MEMORY.md", {"min_score": 0.9, "k": 50}, "min_score", "min_score"),
        ("heron canal", "memory/2026-03-05.md", {"mode": "keyword"}, "candidates", None),
        ("heron ferry", "memory/2026-03-05.md", {"match": "all", "mode": "keyword"}, "candidates", "match"),
        (
            "heron ferry",
            "memory/2026-03-05.md",
            {"preset": "openclaw", "mode": "keyword"},
            "candidates",
            None,
        ),
    ],
)
def test_the_first_step_at_which_a_chunk_fell_out_and_what_shows_it(
    explain, database, q, place, given, step, setting
):
    (found,) = explain(q, place, **given)
    assert not found.returned and found.fell_out.name == step
    assert all(earlier.passed for earlier in found.steps[:-1]), "the last step is the first that failed"
    if setting:
        assert setting in found.settings
    if found.settings:
        assert found.path in found_with(database, q, found.settings, given)


def test_a_chunk_that_mmr_dropped(explain, database):
    given = {"mmr": 1, "lambda": 0.1, "k": 2, "min_score": 0, "candidate_multiplier": 20}
    answer, _ = explain("heron heron at the canal", **{**given, "mmr": 0})
    second = answer.hits[1].path
    (found,) = explain("heron heron at the canal", second, **given)
    assert found.fell_out.name == "mmr" and found.settings == {"mmr": 0}


def test_only_the_settings_that_are_needed(explain):
    (found,) = explain("heron", "MEMORY.md", mode="keyword", k=1, candidate_multiplier=1)
    assert set(found.settings) <= {"k", "candidate_multiplier"}
    assert found.settings["k"] == found.text_place


@pytest.mark.parametrize(
    "text, place",
    [
        ("a.md", ("a.md", None)),
        ("a.md:3", ("a.md", 3)),
        ("c:/x.md", ("c:/x.md", None)),
        ("a:b.md:7", ("a:b.md", 7)),
        ("a.md:3-9", ("a.md", 3)),
        ("a.md#L3", ("a.md", 3)),
        ("a.md#L3-L9", ("a.md", 3)),
        ("a.md:abc", ("a.md:abc", None)),
    ],
)
def test_places(text, place):
    assert parse_place(text) == place


@pytest.mark.parametrize("text", ["", "  ", ":3", "a.md:0", "#L2"])
def test_a_place_that_is_none(text):
    with pytest.raises(NothingToExplain):
        parse_place(text)


# The command line, the JSON and the page


def test_the_command_line(workspace, index, database, tiny):
    index(workspace(NOTES), tiny)
    run = CliRunner().invoke
    explained = run(cli, ["agent-memory", "search", "heron canal", "-d", str(database), "--explain"])
    assert explained.exit_code == 0 and "text score" in explained.output
    why = ["agent-memory", "search", "heron", "-d", str(database), "--why", "MEMORY.md:3", "-k", "1"]
    told = run(cli, [*why, "--mode", "keyword", "--candidate-multiplier", "1"])
    assert told.exit_code == 0
    assert "MEMORY.md:1-4 not returned" in told.output and "which has been tried" in told.output
    body = json.loads(run(cli, [*why, "--json"]).stdout)
    assert body["explanations"][0]["path"] == "MEMORY.md"
    bad = run(cli, [*why[:-3], "", "-k", "1"])
    assert bad.exit_code == 2 and "--why must be a path" in bad.output
    explained = run(cli, ["agent-memory", "search", "heron", "-d", str(database), "--explain", "--json"])
    assert json.loads(explained.stdout)["results"][0]["explanation"]["position"] == 1


async def get(datasette, page, **params):
    return await datasette.client.get(f"/memory/-/agent-memory{page}", params=params)


@pytest.mark.asyncio
async def test_the_json(workspace, index, database, tiny, make_datasette):
    index(workspace(NOTES), tiny)
    datasette = make_datasette(database)
    body = (await get(datasette, ".json", q="heron", explain=1)).json()
    assert [row["explanation"]["position"] for row in body["results"]] == list(
        range(1, len(body["results"]) + 1)
    )
    assert "explanation" not in (await get(datasette, ".json", q="heron")).json()["results"][0]
    assert (await get(datasette, ".json", q="heron", explain="maybe")).status_code == 400
    response = await get(datasette, "/explain.json", q="heron Mara", place="MEMORY.md:3", path="memory/*")
    (found,) = response.json()["explanations"]
    assert (found["fell_out"], found["returned"], found["settings"]) == ("filters", False, {"path": None})
    for place in ("", "a.md:0"):
        assert (await get(datasette, "/explain.json", q="heron", place=place)).status_code == 400
    rules = {"match": "any", "text_norm": "rank", "vector_weight": "0.1", "path": "memory/*"}
    agent = (await get(datasette, "/agent.json", q="heron canal ferry", **rules)).json()
    assert agent["search"]["results"] and agent["search"]["query"]["match"] == "any"
    theirs = agent["agent"]["query"]
    assert (theirs["preset"], theirs["match"], theirs["text_norm"]) == ("openclaw", "all", "relevance")
    assert (theirs["vector_weight"], theirs["path"]) == (0.7, "memory/*")


@pytest.mark.asyncio
async def test_the_pages(workspace, index, database, tiny, make_datasette):
    hostile = "memory/<b>x.md"
    index(workspace({**NOTES, hostile: "heron <script>alert(1)</script>"}), tiny)
    datasette = make_datasette(database)
    page = await get(datasette, "", q="heron canal")
    why = re.search(r'href="(/memory/-/agent-memory/explain\?[^"]+)"', page.text)[1].replace("&amp;", "&")
    explained = await datasette.client.get(why)
    assert explained.status_code == 200 and "result 1" in explained.text
    missed = await get(datasette, "/explain", q="heron", place="memory/2026-03-05.md", mode="keyword")
    assert "not returned" in missed.text and "candidates" in missed.text
    link = await get(datasette, "/explain", q="heron", place="MEMORY.md", path="memory/*")
    again = re.search(r'href="([^"]+)">It is shown with no path', link.text)[1].replace("&amp;", "&")
    assert "MEMORY.md" in (await datasette.client.get(again)).text
    escaped = await get(datasette, "/explain", q="<script>", place="<script>.md")
    assert "<script>.md" not in escaped.text and "&lt;script&gt;.md" in escaped.text
    agent = await get(datasette, "/agent", q="heron")
    assert agent.status_code == 200 and "<script>alert" not in agent.text and "<b>x" not in agent.text
    assert (await get(datasette, "/explain", q="x", place="")).status_code == 400


@pytest.mark.asyncio
async def test_without_permission_nothing_is_explained(workspace, index, database, tiny, make_datasette):
    index(workspace(NOTES), tiny)
    block = {"databases": {"memory": {"tables": {"chunks": {"allow": False}}}}}
    try:
        datasette = make_datasette(database, config=block)
    except TypeError:
        datasette = make_datasette(database, metadata=block)
    else:
        if not hasattr(datasette, "ensure_permission"):
            datasette = make_datasette(database, metadata=block)
    for path in ("/explain", "/explain.json", "/agent", "/agent.json"):
        assert (await get(datasette, path, q="heron", place="MEMORY.md")).status_code == 403


def test_a_weak_match_is_called_one(explain):
    answer, _ = explain("submarine cables", mode="keyword")
    assert answer.hits == [] and answer.weak is None
    answer, _ = explain("ferry submarine cables timetable of Lisbon", mode="keyword")
    assert answer.hits and answer.weak.share < 1 / 3 and "Weak match" in answer.weak.message
    answer, _ = explain("ferry island", mode="keyword")
    assert answer.weak is None
    answer, _ = explain("heron canal")
    assert answer.weak is None


def test_what_is_late_is_not_tried(workspace, index, database, tiny):
    index(workspace(NOTES), tiny)
    tried = []

    def again(settings):
        tried.append(settings)
        return ask(conn, "heron", {"k": "2", **settings})

    for deadline, is_tried in ((None, True), (0.0, False)):
        tried.clear()
        with open_readonly(database) as conn:
            explainer = Explainer(conn, ask(conn, "heron", {"k": "2"}), again, 30_000, deadline)
            (found,) = explainer.place("memory/canal.md")
        assert bool(tried) == is_tried and not found.returned
        assert bool(found.settings) == is_tried
