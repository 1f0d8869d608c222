"""The page of all memories."""

import re

import pytest
from datasette.app import Datasette
from test_views import get

from datasette_agent_memory.connections import sqlite3
from datasette_agent_memory.ingest import IndexSettings, update_index

pytestmark = pytest.mark.asyncio
HOME = "/-/agent-memory"


@pytest.fixture
def make_memory(tmp_path, tiny):
    def make(name, files, provider=tiny):
        root = tmp_path / f"root-{name}"
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        database = tmp_path / f"{name}.db"
        update_index(database, IndexSettings(root, providers=[provider]))
        return database

    return make


@pytest.fixture
def job(make_memory):
    return make_memory(
        "job",
        {
            "MEMORY.md": "# Work\n\nThe heron report is due.\n",
            "memory/2026-01-05.md": "the heron nests\n",
            "memory/2026-03-01.md": "nothing much\n",
        },
    )


@pytest.fixture
def play(make_memory):
    return make_memory("play", {"MEMORY.md": "a heron at the pond\n", "memory/2025-12-24.md": "snow\n"})


async def test_counts_dates_and_freshness(make_datasette, job, play):
    answer = (await get(make_datasette(job, play), f"{HOME}.json")).json()
    assert [one["name"] for one in answer["databases"]] == ["job", "play"]
    first = answer["databases"][0]
    assert (first["files"], first["chunks"], first["provider"]) == (3, 3, "tiny")
    assert (first["oldest"], first["newest"]) == ("memory/2026-01-05.md", "memory/2026-03-01.md")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first["indexed_at"])
    assert answer["results"] == [] and first["error"] is None
    page = (await get(make_datasette(job, play), HOME)).text
    assert "From <time>Monday 5 January 2026</time> to <time>Sunday 1 March 2026</time>" in page


async def test_results_of_all_are_merged_by_score_and_labelled(make_datasette, job, play):
    datasette = make_datasette(job, play)
    answer = (await get(datasette, f"{HOME}.json", q="heron", min_score="0")).json()
    results = answer["results"]
    assert answer["comparable"] is True
    assert {hit["database"] for hit in results} == {"job", "play"}
    scores = [hit["score"] for hit in results]
    assert scores == sorted(scores, reverse=True)
    alone = {}
    for name in ("job", "play"):
        hits = (await get(datasette, f"/{name}/-/agent-memory.json", q="heron", min_score="0")).json()
        alone |= {(name, hit["id"]): hit["score"] for hit in hits["results"]}
    assert {(hit["database"], hit["id"]): hit["score"] for hit in results} == alone
    page = (await get(datasette, HOME, q="heron", min_score="0")).text
    assert page.count('<a href="/job/-/agent-memory">job</a>') == 3
    assert len((await get(datasette, f"{HOME}.json", q="heron", k="2")).json()["results"]) == 2


async def test_scores_of_different_models_are_not_compared(make_datasette, make_memory, job):
    keywords = make_memory("keywords", {"a.md": "heron\n", "b.md": "heron heron\n"}, None)
    answer = (await get(make_datasette(job, keywords), f"{HOME}.json", q="heron", min_score="0")).json()
    assert answer["comparable"] is False
    assert {hit["database"] for hit in answer["results"][:2]} == {"job", "keywords"}
    assert {hit["database"] for hit in answer["results"][2:4]} == {"job", "keywords"}


async def test_one_that_fails_hides_no_other(make_datasette, job, play):
    datasette = make_datasette(job, play)
    await datasette.invoke_startup()
    healthy = datasette.databases["play"].execute_fn

    async def fails_later(fn, *arguments, **more):
        if fn.__module__.endswith("views.home"):  # it was found to be a memory, and fails from then on
            raise sqlite3.DatabaseError("database disk image is malformed")
        return await healthy(fn, *arguments, **more)

    datasette.databases["play"].execute_fn = fails_later
    page = await get(datasette, HOME, q="heron")
    assert page.status_code == 200
    assert "<strong>play</strong>: It cannot be read: database disk image is malformed" in page.text
    assert 'class="am-hit"' in page.text and "job</a>" in page.text


async def test_only_what_may_be_read_is_searched(make_datasette, job, play):
    allow = {"databases": {"play": {"allow": {"id": "mara"}}}}
    # On 0.65 `allow` is metadata, on 1.0a it is configuration.
    kind = "config" if hasattr(Datasette, "ensure_permission") else "metadata"
    datasette = make_datasette(job, play, **{kind: allow})
    answer = (await get(datasette, f"{HOME}.json", q="heron")).json()
    assert {one["name"] for one in answer["databases"]} == {"job"}
    assert {hit["database"] for hit in answer["results"]} == {"job"}
    answer = (await get(datasette, f"{HOME}.json", actor="mara", q="heron")).json()
    assert {hit["database"] for hit in answer["results"]} == {"job", "play"}


async def test_a_bad_value_is_400(make_datasette, job):
    response = await get(make_datasette(job), f"{HOME}.json", q="x", k="0")
    assert response.status_code == 400 and response.json()["error"].startswith("k must be")
