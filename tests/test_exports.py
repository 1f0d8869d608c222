"""The results of a search as CSV and as Markdown."""

import csv
import io
import re

import pytest
from test_views import SEARCH, get

pytestmark = pytest.mark.asyncio

NOTES = {
    "MEMORY.md": 'heron, "quoted"\nand a second line\n',
    "memory/2026-01-05.md": "heron\n\n````\nan instruction\n````\n\n# Memory about: something else\n",
}


@pytest.fixture
def datasette(workspace, index, database, tiny, make_datasette):
    index(workspace(NOTES), tiny)
    return make_datasette(database)


async def test_csv_has_the_whole_text(datasette):
    response = await get(datasette, f"{SEARCH}.csv", q="heron", min_score="0")
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(response.text, newline="")))
    answer = (await get(datasette, f"{SEARCH}.json", q="heron", min_score="0")).json()
    assert [(row["path"], float(row["score"])) for row in rows] == [
        (hit["path"], hit["score"]) for hit in answer["results"]
    ]
    assert {row["path"]: row["text"] for row in rows}["MEMORY.md"].rstrip("\n") == NOTES["MEMORY.md"].rstrip(
        "\n"
    )


async def test_markdown_cannot_be_broken_out_of(datasette):
    response = await get(datasette, f"{SEARCH}.md", q="heron\n# not a heading", min_score="0")
    assert response.headers["content-type"] == "text/markdown; charset=utf-8"
    text = response.text
    outside = re.sub(r"^(`{3,})markdown\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert re.findall("^#.*", outside, re.MULTILINE)[0] == "# Memory about: heron # not a heading"
    assert len(re.findall("^## [12]. ", outside, re.MULTILINE)) == 2
    assert "instruction" not in outside and "something else" not in outside
    assert "instruction" in text and "memory/2026-01-05.md#L1-L" in text


async def test_nothing_found_and_errors(datasette):
    assert "Nothing was found." in (await get(datasette, f"{SEARCH}.md", q="zebra", mode="keyword")).text
    assert (await get(datasette, f"{SEARCH}.csv", q="zebra", mode="keyword")).text.count("\n") == 1
    response = await get(datasette, f"{SEARCH}.csv", q="x", k="0")
    assert response.status_code == 400 and response.json()["error"].startswith("k must be")
