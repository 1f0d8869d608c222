"""The map and the timeline: what is computed, and the page without a browser."""

import html
import json
import re
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest

import datasette_agent_memory
from datasette_agent_memory import points
from datasette_agent_memory.connections import open_writable, sqlite3
from datasette_agent_memory.points import Timeline, map_of, two_directions, unique_length

NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns billing.\n",
    "memory/2026-01-05.md": "# Monday\n\nThe heron nests by the canal.\n",
    "memory/2026-01-06.md": "# Tuesday\n\nThe stork nests on the roof.\n",
    "memory/2026-03-01-trip.md": "# Trip\n\nBy train to the sea.\n",
    "memory/projects/roof.md": "# Roof\n\nNew tiles before winter.\n",
}
HOSTILE = {
    "memory/<img src=x onerror=alert(1)>.md": "<img src=x onerror=alert(2)>\n",
    "memory/\u202egnp.md": "turned \u202e round\n",
}
MAP = "/memory/-/agent-memory/map"


@pytest.fixture
def datasette(workspace, index, database, tiny, make_datasette):
    index(workspace(NOTES), tiny)
    return make_datasette(database)


async def get(datasette, url, /, **params):
    return await datasette.client.get(f"{url}?{urlencode(params)}" if params else url)


async def get_map(datasette, **params):
    response = await get(datasette, f"{MAP}.json", **params)
    assert response.status_code == 200, response.text
    return response.json()


def change(database, *statements):
    with open_writable(database) as conn:
        for statement in statements:
            conn.execute(*statement) if isinstance(statement, tuple) else conn.execute(statement)


# The two directions


def clustered(count=300, width=24):
    rng = np.random.default_rng(5)
    centres = rng.standard_normal((4, width)) * [[3], [2], [1], [0.5]]
    return (centres[np.arange(count) % 4] + rng.standard_normal((count, width)) * 0.3).astype(np.float32)


def test_the_directions_are_those_of_most_variance():
    vectors = clustered()
    x, y, explained = two_directions(vectors)
    centred = vectors - vectors.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)
    expected = centred @ directions[:, :-3:-1]
    expected /= np.abs(expected).max()
    for found, wanted in zip((x, y), expected.T, strict=True):
        assert min(np.abs(found - wanted).max(), np.abs(found + wanted).max()) < 1e-3
    assert explained == pytest.approx(values[-2:].sum() / values.sum(), rel=1e-4)
    assert max(map(abs, x + y)) == 1


def test_the_picture_is_the_same_each_time_and_whatever_the_order():
    vectors = clustered()
    x, y, _ = two_directions(vectors)
    assert (x, y) == two_directions(vectors)[:2]
    turned = two_directions(vectors[::-1].copy())
    assert np.allclose(x, turned[0][::-1], atol=2e-4) and np.allclose(y, turned[1][::-1], atol=2e-4)


@pytest.mark.parametrize(
    "vectors",
    [
        [[1, 0, 0]],
        [[0.6, 0.8, 0]] * 5,
        [[1.0]] * 3,
    ],
)
def test_vectors_that_do_not_differ_have_one_place(vectors):
    assert two_directions(np.array(vectors, dtype=np.float32)) == (
        [0] * len(vectors),
        [0] * len(vectors),
        None,
    )


@pytest.mark.parametrize("vectors", [[[1, 0], [0, 1]], [[1], [-1]], [[1, 0, 0, 0]] * 3 + [[0, 1, 0, 0]]])
def test_few_and_narrow_vectors(vectors):
    x, y, explained = two_directions(np.array(vectors, dtype=np.float32))
    assert len(set(x)) == 2 and np.allclose(y, 0) and explained == pytest.approx(1)


def test_what_is_no_vector_is_passed_over():
    values = [
        np.array([1, 2], dtype="<f4").tobytes(),
        "[3.0, 4.0]",
        "[]",
        "",
        None,
        7,
        1.5,
        b"abc",
        "[1, 2",
        '["a", "b"]',
        "[[1], [2]]",
        "[1, 2, 3]",
        "[0, 0]",
        "[NaN, 1]",
        "[1e300, 1]",
        "[" * 100_000,
        "[1e38, 1e38]",
    ]
    rows, vectors = points._usable([points.as_vector(value) for value in values])
    assert rows == [0, 1]
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)


def test_short_ids_are_the_shortest_that_are_unique():
    assert unique_length([]) == unique_length(["a"]) == unique_length(["b", "b"]) == 10
    ids = ["0123456789abcX", "0123456789abcY", "zzz", "0123"]
    length = unique_length(ids)
    assert length == 14 and len({id[:length] for id in ids}) == 4


# The timeline


def bars(*paths):
    timeline = Timeline.of_paths(dict.fromkeys(paths, 1))
    return (
        timeline.unit,
        [(str(bar.since), str(bar.until), bar.chunks) for bar in timeline.bars],
        timeline.undated,
    )


def test_days_are_bars_and_days_without_notes_have_none():
    assert bars("2026-01-05.md", "a/2026-01-05-b.md", "2026-01-09.md", "MEMORY.md", "2026-02-30.md") == (
        "day",
        [("2026-01-05", "2026-01-05", 2), ("2026-01-09", "2026-01-09", 1)],
        2,
    )
    assert bars("MEMORY.md") == ("day", [], 1)


def test_years_are_weeks_and_ages_are_months():
    assert bars("2024-12-31.md", "2026-03-04.md", "2026-03-08.md") == (
        "week",
        [("2024-12-30", "2025-01-05", 1), ("2026-03-02", "2026-03-08", 2)],
        0,
    )
    assert bars("1970-01-01.md", "2024-02-29.md", "2100-12-31.md") == (
        "month",
        [("1970-01-01", "1970-01-31", 1), ("2024-02-01", "2024-02-29", 1), ("2100-12-01", "2100-12-31", 1)],
        0,
    )
    assert Timeline.of_paths({"2024-12-31.md": 1, "2026-03-04.md": 1}).days == (
        date(2024, 12, 31),
        date(2026, 3, 4),
    )
    # One slip in a name leaves the others their room.
    timeline = Timeline.of_paths({"0001-01-01.md": 2, "2024-02-29.md": 1, "9999-12-31.md": 1})
    assert (timeline.unit, timeline.far, len(timeline.bars)) == ("day", 3, 1)
    timeline = Timeline.of_paths({"0001-01-01.md": 2, "9999-12-31.md": 1})
    assert (timeline.unit, timeline.far, len(timeline.bars)) == ("month", 0, 2)
    assert points._bounds(date.max, "week") == (date(9999, 12, 27), date.max)


# JSON


@pytest.mark.asyncio
async def test_the_columns_are_of_one_length_and_say_what_is_where(datasette, rows):
    answer = await get_map(datasette)
    columns = answer["points"]
    assert set(columns) == {"x", "y", "id", "start_line", "end_line", "path", "source", "folder", "month"}
    assert {len(column) for column in columns.values()} == {5} and answer["chunks"] == answer["sampled"] == 5
    places = {
        answer["paths"][columns["path"][n]]: (
            answer["folders"][columns["folder"][n]],
            answer["months"][columns["month"][n]],
            answer["sources"][columns["source"][n]],
        )
        for n in range(5)
    }
    assert places == {
        "MEMORY.md": ("", "", "memory"),
        "memory/2026-01-05.md": ("memory", "2026-01", "memory"),
        "memory/2026-01-06.md": ("memory", "2026-01", "memory"),
        "memory/2026-03-01-trip.md": ("memory", "2026-03", "memory"),
        "memory/projects/roof.md": ("memory/projects", "", "memory"),
    }
    full = {path: id for id, path in rows("select id, path from chunks")}
    assert [full[answer["paths"][path]][:10] for path in columns["path"]] == columns["id"]
    assert 0 < answer["explained"] < 1 and answer["problem"] is None and answer["skipped"] == 0
    assert answer["results"] is None


@pytest.mark.asyncio
async def test_results_are_the_points_of_the_search_in_its_order(datasette):
    search = (await get(datasette, "/memory/-/agent-memory.json", q="nests roof", min_score=0, k=3)).json()
    answer = await get_map(datasette, q="nests roof", min_score=0, k=3)
    paths = [answer["paths"][answer["points"]["path"][point]] for point in answer["results"]]
    assert paths == [hit["path"] for hit in search["results"]] and len(paths) == 3


@pytest.mark.asyncio
async def test_decay_is_as_the_search_has_it(datasette):
    timeline = (await get_map(datasette, half_life="7.5", now="2026-02-01T12:00:00+02:00"))["timeline"]
    assert (timeline["half_life"], timeline["now"]) == (7.5, "2026-02-01T10:00:00Z")
    assert timeline["since"] == timeline["until"] == ["2026-01-05", "2026-01-06", "2026-03-01"]
    assert timeline["chunks"] == [1, 1, 1] and timeline["undated"] == 2 and timeline["unit"] == "day"


@pytest.mark.asyncio
@pytest.mark.parametrize("name, value", [("colour", "red"), ("half_life", "0"), ("now", "soon"), ("k", "x")])
async def test_a_bad_value_is_400_and_named(datasette, name, value):
    response = await get(datasette, f"{MAP}.json", **{name: value})
    assert response.status_code == 400 and response.json()["error"].startswith(f"{name} must be ")
    assert (await get(datasette, MAP, **{name: value})).status_code == 400


@pytest.mark.asyncio
async def test_an_even_sample_of_a_large_memory(
    workspace, index, database, rows, tiny, make_datasette, monkeypatch
):
    monkeypatch.setattr(points, "MAX_POINTS", 4)
    index(workspace({f"memory/{n:02}.md": f"note number {n}" for n in range(12)}), tiny)
    datasette = make_datasette(database)
    answer = await get_map(datasette, q="number", min_score=0, k=12)
    assert (answer["chunks"], answer["sampled"], len(answer["points"]["x"])) == (12, 4, 4)
    order = [path for (path,) in rows("select path from chunks order by rowid")]
    assert answer["paths"] == sorted(order[2::3])
    shown = [point for point in answer["results"] if point is not None]
    assert len(answer["results"]) == 12 and sorted(shown) == [0, 1, 2, 3]
    page = (await get(datasette, MAP, q="number", min_score=0, k=12)).text
    assert "The memory has 12 chunks: this is an even sample of 4." in page
    assert page.count("not on the map") == 8


# The cache


@pytest.mark.asyncio
async def test_a_map_is_made_once_for_each_state_of_the_index(datasette, workspace, index, database, tiny):
    served = datasette.get_database("memory")
    first = await map_of(datasette, served)
    assert await map_of(datasette, served) is first
    index(workspace({"memory/2026-04-01.md": "A new note on otters."}), tiny)
    second = await map_of(datasette, served)
    assert len(second.places) == 6 and second is not first
    (workspace() / "MEMORY.md").unlink()
    index(workspace(), tiny)
    assert len((await map_of(datasette, served)).places) == 5


@pytest.mark.asyncio
async def test_a_changed_note_is_a_new_state(datasette, workspace, index, tiny):
    served = datasette.get_database("memory")
    before = await map_of(datasette, served)
    index(workspace({"memory/projects/roof.md": "# Roof\n\nThe tiles are on.\n"}), tiny)
    after = await map_of(datasette, served)
    assert len(after.places) == len(before.places) and after.x != before.x


# What is missing or damaged


@pytest.mark.asyncio
async def test_the_same_picture_without_sqlite_vec(
    workspace, index, database, tiny, make_datasette, monkeypatch
):
    index(workspace(NOTES), tiny)
    with_vec = await get_map(make_datasette(database))
    monkeypatch.setattr("datasette_agent_memory.connections.load_sqlite_vec", lambda conn: False)
    database.unlink()
    index(workspace(), tiny)
    without = await get_map(make_datasette(database))
    assert np.allclose(with_vec["points"]["x"], without["points"]["x"], atol=1e-3)
    assert np.allclose(with_vec["points"]["y"], without["points"]["y"], atol=1e-3)


@pytest.fixture
def peer_layout(workspace, index, database, tiny):
    """The other table names, with no table but that of the chunks."""
    index(workspace(NOTES), tiny)
    change(
        database,
        "create table memory_index_chunks as select * from chunks",
        "drop table chunks",
        "drop table meta",
    )


@pytest.mark.asyncio
async def test_the_other_layout_with_chunks_alone(peer_layout, database, make_datasette):
    datasette = make_datasette(database)
    answer = await get_map(datasette, q="nests")
    assert len(answer["points"]["x"]) == 5 and answer["problem"] is None
    assert (await get(datasette, MAP, q="nests")).status_code == 200


@pytest.mark.asyncio
async def test_without_vectors_the_page_says_why_and_has_the_timeline(
    workspace, index, database, make_datasette
):
    index(workspace(NOTES))
    datasette = make_datasette(database)
    answer = await get_map(datasette, q="nests")
    assert "no vectors" in answer["problem"] and answer["points"]["x"] == []
    assert answer["results"] == [None, None] and answer["timeline"]["chunks"] == [1, 1, 1]
    page = (await get(datasette, MAP, q="nests")).text
    assert "so there is no map; datasette agent-memory index --provider embedded adds them" in page
    assert "3 chunks by the dates of their files, from 2026-01-05 to 2026-03-01" in page
    assert 'id="am-map"' not in page and "not on the map" not in page


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [0, 1, 2])
async def test_hardly_any_chunks(workspace, index, database, tiny, make_datasette, count):
    index(workspace({f"{n}.md": f"note {n}" for n in range(count)} or {"empty.md": ""}), tiny)
    datasette = make_datasette(database)
    answer = await get_map(datasette)
    assert len(answer["points"]["x"]) == count and "NaN" not in json.dumps(answer)
    assert (await get(datasette, MAP)).status_code == 200


@pytest.mark.asyncio
async def test_columns_of_any_type(workspace, index, database, tiny, make_datasette, no_sqlite_vec):
    index(workspace(NOTES), tiny)
    damage = [
        "path = null",
        "path = x'ff2f61'",
        "start_line = 'x', end_line = null",
        "start_line = -3, end_line = 1e300",
        "embedding = 7",
        "embedding = 'nonsense'",
        "source = 1.5, updated_at = 'x'",
    ]
    with open_writable(database) as conn:
        conn.execute("create table whole as select * from chunks")
        conn.execute("drop table chunks")
        conn.execute("alter table whole rename to chunks")
        for number, columns in enumerate(damage):
            conn.execute(
                "insert into chunks select id || ?, path, source, start_line, end_line, hash, model, text,"
                " embedding, updated_at from chunks where path = 'MEMORY.md' and length(id) = 64",
                (f"-{number}",),
            )
            conn.execute(f"update chunks set {columns} where id like ?", (f"%-{number}",))
    datasette = make_datasette(database)
    answer = await get_map(datasette, q="billing")
    assert (answer["chunks"], answer["skipped"], len(answer["points"]["x"])) == (12, 2, 10)
    assert len(set(answer["points"]["id"])) == 10
    page = await get(datasette, MAP, q="billing")
    assert page.status_code == 200 and "2 chunks have no vector that can be compared" in page.text


@pytest.mark.asyncio
async def test_a_read_that_takes_too_long_is_said_and_tried_again(datasette, monkeypatch):
    limits = []

    @contextmanager
    def interrupted(conn, limit_ms):
        limits.append(limit_ms)
        raise sqlite3.OperationalError("interrupted")
        yield

    with monkeypatch.context() as patched:
        patched.setattr(points, "sqlite_timelimit", interrupted)
        answer = await get_map(datasette)
        page = await get(datasette, MAP)
    assert limits[0] == datasette.setting("sql_time_limit_ms")
    assert "took more than" in answer["problem"] and answer["points"]["x"] == []
    assert page.status_code == 200 and "took more than" in page.text
    assert len((await get_map(datasette))["points"]["x"]) == 5


# The page


@pytest.mark.asyncio
async def test_the_page_says_in_words_and_tables_what_the_picture_shows(datasette):
    page = (await get(datasette, MAP, q="nests", min_score=0, k=2, half_life=9)).text
    assert 'aria-current="page">Map</a>' in page and "Each of 5 chunks is a point" in page
    assert re.search(r"these two directions hold \d+% of the differences", page)
    assert "2 chunks are in files without a date" in page
    found = re.search(r'<ol class="am-map-results">(.*?)</ol>', page, re.DOTALL)[1]
    assert found.count("<li>") == 2 and "/file?path=memory%2F2026-01-0" in found and "#L1-L4" in found
    tables = [
        re.findall(r"<td[^>]*>([\d,]+)</td>", table)
        for table in re.findall(r"<table.*?</table>", page, re.DOTALL)
    ]
    assert tables == [["2", "1", "2"], ["3", "1", "1"]]
    (january,) = [html.unescape(href) for href in re.findall(r'<a href="([^"]+)">2026-01</a>', page)]
    assert january.endswith("&since=2026-01-01&until=2026-01-31") and "q=nests" in january
    # What a form without JavaScript sends along.
    assert '<input type="hidden" name="k" value="2">' in page
    assert re.search(r'name="half_life"[^>]* value="9"', page)


@pytest.mark.asyncio
async def test_hostile_names_are_text(workspace, index, database, tiny, make_datasette):
    index(workspace(HOSTILE), tiny)
    datasette = make_datasette(database)
    page = await get(datasette, MAP, q="turned round <script>alert(3)</script>", min_score=0)
    assert page.status_code == 200
    assert "<img" not in page.text and "<script>alert" not in page.text
    assert "\u202e" not in page.text and "‹U+202E›gnp.md" in page.text
    assert "memory/\u202egnp.md" in (await get_map(datasette))["paths"]


@pytest.mark.asyncio
async def test_under_a_base_url_and_an_odd_name(workspace, index, database, tmp_path, tiny, make_datasette):
    index(workspace(NOTES), tiny)
    odd = database.rename(tmp_path / "my agent's.mem.db")
    datasette = make_datasette(odd, settings={"base_url": "/sub/"})
    page = await get(datasette, "/my+agent~27s~2Emem/-/agent-memory/map", q="nests")
    assert page.status_code == 200
    assert 'data-page="/sub/my+agent~27s~2Emem/-/agent-memory"' in page.text
    assert 'src="/sub/-/static-plugins/datasette_agent_memory/map.js"' in page.text


@pytest.mark.asyncio
async def test_a_read_only_database(workspace, index, database, tiny, make_datasette):
    index(workspace(NOTES), tiny)
    assert len((await get_map(make_datasette(immutables=[str(database)])))["points"]["x"]) == 5


@pytest.mark.asyncio
async def test_the_map_is_for_those_who_may_view_the_memory(workspace, index, database, tiny, make_datasette):
    index(workspace(NOTES), tiny)
    block = {"databases": {"memory": {"allow": {"id": "owner"}}}}
    datasette = make_datasette(database, metadata=block)
    if hasattr(datasette, "ensure_permission"):
        datasette = make_datasette(database, config=block)
    for path in (MAP, f"{MAP}.json"):
        refused = await get(datasette, path)
        assert refused.status_code == 403 and "MEMORY.md" not in refused.text


# The colours


CSS = (Path(datasette_agent_memory.__file__).parent / "static" / "map.css").read_text()
#: What deuteranopes and protanopes see of linear RGB (Machado, Oliveira and Fernandes, 2009).
VISIONS = [
    np.eye(3),
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
]
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)


def linear(color):
    values = np.array([int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = XYZ @ np.clip(rgb, 0, 1) / [0.95047, 1, 1.08883]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("side, surface", [(0, "#ffffff"), (1, "#1c212c")], ids=["light", "dark"])
def test_the_colours_can_be_seen_and_told_apart(side, surface):
    block = CSS.split("@media (prefers-color-scheme: dark)")[side]
    colors = dict(re.findall(r"--am-map-([\w-]+): (#\w{6})", block))
    assert len(colors) == 8 + 1 + 8
    ground = XYZ[1] @ linear(surface)
    for name, color in colors.items():
        darker, lighter = sorted((ground, XYZ[1] @ linear(color)))
        assert (lighter + 0.05) / (darker + 0.05) >= 3, name
    kinds = [color for name, color in colors.items() if not name.startswith("month")]
    for vision in VISIONS:
        seen = [lab(vision @ linear(color)) for color in kinds]
        assert min(np.linalg.norm(a - b) for n, a in enumerate(seen) for b in seen[:n]) > 14
    scale = [lab(linear(colors[f"month-{n}"]))[0] for n in range(1, 9)]
    assert scale == sorted(scale, reverse=side == 0), "from far from the ground's lightness to near, or back"
