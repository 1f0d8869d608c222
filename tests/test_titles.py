"""The titles of results and files."""

import pytest
from test_views import SEARCH, get

from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.layouts import SIX_TABLES
from datasette_agent_memory.search import search
from datasette_agent_memory.titles import titles_of_files, titles_of_hits

NOTES = {
    "MEMORY.md": "# Long-term\n\n## Garden\n\n" + "filler words here\n" * 100 + "\n## Birds\n\nThe heron.\n",
    "memory/2026-01-05.md": "plain\n\n# Later heading\n\nkingfisher\n",
    "memory/none.md": "an osprey without a heading\n",
    "memory/long.md": "# Far above\n\n" + "some words of a line\n" * 300 + "a cormorant at the end\n",
}


@pytest.fixture
def conn(workspace, index, database):
    index(workspace(NOTES))
    with open_readonly(database) as conn:
        yield conn


@pytest.mark.parametrize(
    "q, title",
    [
        ("heron", "Long-term › Birds"),
        ("garden filler", "Long-term › Garden"),
        ("kingfisher", "Later heading"),
        ("osprey", None),
        ("cormorant", "Far above"),
    ],
)
def test_the_nearest_heading_above_what_is_shown(conn, q, title):
    hits = search(conn, q, {"k": "1"}).hits
    assert titles_of_hits(conn, SIX_TABLES, hits) == ({hits[0].id: title} if title else {})


def test_the_first_heading_of_a_file(conn):
    assert titles_of_files(conn, SIX_TABLES, NOTES) == {
        "MEMORY.md": "Long-term",
        "memory/2026-01-05.md": "Later heading",
        "memory/long.md": "Far above",
    }


@pytest.mark.asyncio
async def test_a_title_is_the_link(conn, database, make_datasette):
    page = await get(make_datasette(database), SEARCH, q="heron")
    assert ">Long-term › Birds</a>" in page.text
    page = await get(make_datasette(database), SEARCH, q="osprey")
    assert ">memory/none.md</a>" in page.text
