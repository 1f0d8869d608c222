"""Facets, and the dates of memories in words."""

import pytest
from test_views import SEARCH, get

from datasette_agent_memory.dates import age_in_words, date_in_words, month_of
from datasette_agent_memory.facets import facets_of

FOUND = [
    ("MEMORY.md", "memory"),
    ("memory/2026-01-05.md", "memory"),
    ("memory/2026-01-31.md", "memory"),
    ("memory/2025-12-24.md", "memory"),
    ("memory/a[b]*c?/2024-02-29.md", "sessions"),
]


def values(facet):
    return [(value.label, value.count, value.filters, value.is_selected) for value in facet.values]


def test_counts_and_the_filters_that_lead_there():
    source, month, folder = facets_of(FOUND, {})
    assert values(source) == [
        ("memory", 4, {"source": "memory"}, False),
        ("sessions", 1, {"source": "sessions"}, False),
    ]
    assert values(month)[:3] == [
        ("2026-01", 2, {"since": "2026-01-01", "until": "2026-01-31"}, False),
        ("2025-12", 1, {"since": "2025-12-01", "until": "2025-12-31"}, False),
        ("2024-02", 1, {"since": "2024-02-01", "until": "2024-02-29"}, False),
    ]
    assert values(month)[3] == ("", 1, None, False)
    assert values(folder) == [
        ("memory", 4, {"path": "memory/*"}, False),
        ("", 1, None, False),
        ("memory/a[b]*c?", 1, {"path": "memory/a[[]b][*]c[?]/*"}, False),
    ]


def test_what_is_chosen_can_be_taken_away():
    (month,) = facets_of(
        [("memory/2026-01-05.md", "memory")], {"since": "2026-01-01", "until": "2026-01-31", "k": "3"}
    )
    assert values(month) == [("2026-01", 1, {"since": None, "until": None}, True)]
    assert facets_of([], {}) == []


def test_only_the_newest_months_are_listed():
    days = [
        (f"memory/{year}-0{month}-01.md", "memory") for year in range(2000, 2005) for month in range(1, 5)
    ]
    (month,) = facets_of(days, {})
    assert [value.label for value in month.values][:2] == ["2004-04", "2004-03"]
    assert (len(month.values), month.more) == (12, 8)


@pytest.mark.asyncio
async def test_each_facet_leads_to_as_many_as_it_says(workspace, index, database, tiny, make_datasette):
    index(workspace({path: f"heron {path}\n" for path, _ in FOUND}), tiny)
    datasette = make_datasette(database)
    found = [(path, "memory") for path, _ in FOUND]
    for facet in facets_of(found, {}):
        for value in facet.values:
            if value.filters:
                answer = await get(datasette, f"{SEARCH}.json", q="heron", min_score="0", **value.filters)
                assert len(answer.json()["results"]) == value.count, value
    # Without a question they lead to the files.
    page = await get(datasette, SEARCH, since="2026-01-01", until="2026-01-31")
    assert page.text.count("/file?path=") == 2 and "2 files" in page.text


@pytest.mark.parametrize(
    "path, month, day",
    [
        ("memory/2026-01-05.md", "2026-01", "Monday 5 January 2026"),
        ("x/2024-02-29-standup.md", "2024-02", "Thursday 29 February 2024"),
        ("0001-01-01.md", "0001-01", "Monday 1 January 1"),
        ("9999-12-31.md", "9999-12", "Friday 31 December 9999"),
        ("2026-02-30.md", "", ""),
        ("MEMORY.md", "", ""),
    ],
)
def test_dates(path, month, day):
    assert (month_of(path), date_in_words(path)) == (month, day)
    assert facets_of([(path, "a"), (path, "b")], {})[0].name == "Source"


@pytest.mark.parametrize(
    "now, said",
    [
        ("2026-01-05", "today"),
        ("2026-01-05T23:59:00Z", "today"),
        ("2026-01-06", "1 day ago"),
        ("2026-01-18", "13 days ago"),
        ("2026-01-19", "2 weeks ago"),
        ("2026-03-06", "2 months ago"),
        ("2026-12-31", "12 months ago"),
        ("2028-01-05", "2 years ago"),
        ("2026-01-04", "in 1 day"),
        ("2025-12-01", "in 5 weeks"),
    ],
)
def test_ages(now, said):
    assert age_in_words("memory/2026-01-05.md", now) == said
    assert age_in_words("MEMORY.md", now) == ""
