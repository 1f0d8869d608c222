"""The cells of a memory on Datasette's own pages, and what it lists of its tables."""

import json
import math
import re
import struct
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
import pytest_asyncio
from datasette.app import Datasette
from datasette.utils import parse_metadata

from datasette_agent_memory.cells import css_urls, render_cell
from datasette_agent_memory.connections import open_readonly, open_writable
from datasette_agent_memory.ready_queries import stores_queries

HOSTILE = 'memory/<img src=x onerror="alert(1)"> & "x".md'
NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns billing.\n",
    "memory/2026-01-05.md": "# Monday\n\nThe heron nests by the canal.\n" + "word " * 300,
    HOSTILE: "<script>alert('heron')</script> \u202egnp.exe <img src=x onerror=alert(1)>\n",
}

pytestmark = pytest.mark.asyncio


@pytest.fixture
def memory(workspace, index, database, tiny):
    index(workspace(NOTES), tiny)
    return database


@pytest_asyncio.fixture
async def datasette(memory, make_datasette):
    datasette = make_datasette(memory)
    await datasette.invoke_startup()
    return datasette


def change(database, *statements):
    with open_writable(database) as conn:
        for statement in statements:
            conn.execute(statement)


async def get(datasette, url, /, **params):
    response = await datasette.client.get(url + ("?" + urlencode(params) if params else ""))
    assert response.status_code == 200, response.text
    return response.text


async def ask(datasette, sql):
    page = "/memory/-/query" if stores_queries(datasette) else "/memory"
    return await get(datasette, page, sql=sql)


def cell(datasette, value, column="embedding", table="chunks", **row):
    return render_cell(datasette, {**row, column: value}, value, column, table, "memory")


def blob(*numbers):
    return struct.pack(f"<{len(numbers)}f", *numbers)


@pytest.mark.parametrize(
    "value, said",
    [
        ("[0.6, 0.8]", "2 numbers, length 1.00[0.6, 0.8]"),
        (json.dumps([1 / 16] * 256), "256 numbers, length 1.00[0.0625, 0.0625, 0.0625, …]"),
        (blob(0.6, -0.8), "2 numbers, length 1.00[0.6, -0.8]"),
        ("[1]", "1 number, length 1.00[1]"),
        ("[]", "none"),
        (b"", "none"),
        ("[0, 0, 0]", "3 numbers, all 0[0, 0, 0]"),
        ("[1, NaN, Infinity]", "3 numbers, 2 not finite[1, nan, inf]"),
        (blob(math.nan, 1), "2 numbers, 1 not finite[nan, 1]"),
        ("[null, null]", "2 numbers, 2 not finite[nan, nan]"),
        (blob(3e38, 3e38), "2 numbers, length 4.2e+38[3e+38, 3e+38]"),
        ("[1e400, 1]", "2 numbers, 1 not finite[inf, 1]"),
        (f"[{10**400}]", "no vector: 403 characters of text"),
        ("<b>garbage</b>", "no vector: 14 characters of text"),
        ('["1"]', "no vector: 5 characters of text"),
        ("[true]", "no vector: 6 characters of text"),
        ("[[1], [2]]", "no vector: 10 characters of text"),
        ("[" * 100_000, "no vector: 100,000 characters of text"),
        ("[1, 2", "no vector: 5 characters of text"),
        ("", "no vector: 0 characters of text"),
        (b"abc", "no vector: 3 bytes"),
    ],
)
async def test_a_vector_is_summed_up(datasette, value, said):
    shown = cell(datasette, value)
    assert re.sub(r"<[^>]+>", "", shown).strip().replace("  ", " ") == said
    if "number" in said:
        assert 'aria-hidden="true"' in shown and not re.search(r"nan|inf", re.search(r'd="[^"]*"', shown)[0])


async def test_what_is_no_vector_is_left_alone(datasette):
    assert cell(datasette, None) is None and cell(datasette, 5) is None
    for value in ("garbage", b"abc", "[true]"):
        assert cell(datasette, value, table=None) is None
    assert cell(datasette, "[1, 2]", table=None) and cell(datasette, "[1, 2]", table="other") is None


async def test_a_vector_of_doubles_is_known_by_its_width(datasette):
    assert "32 numbers, length 1.00" in cell(datasette, struct.pack("<32d", 1, *[0] * 31))


async def test_the_vectors_of_passages(datasette, memory):
    assert cell(datasette, b"x" * 64, "embeddings", "passages") is None  # there is no such table
    change(memory, "create table passages (hash text, maker text, embeddings blob)")
    await get(datasette, "/memory")
    assert "2 passages of 32 numbers" in cell(datasette, b"x" * 64, "embeddings", "passages")
    assert "no vectors: 3 bytes" in cell(datasette, b"xyz", "embeddings", "passages")
    assert "none" in cell(datasette, b"", "embeddings", "passages")


async def test_a_text_is_cut_and_leads_to_its_lines(datasette):
    place = {"path": "memory/a b.md", "start_line": 3, "end_line": 9}
    shown = cell(datasette, "x" * 700, "text", **place)
    assert "x" * 600 in shown and "x" * 601 not in shown and "… 100 more characters" in shown
    assert 'href="/memory/-/agent-memory/file?path=memory%2Fa+b.md#L3-L9"' in shown
    many_lines = cell(datasette, "line\n" * 60, "text", **place)
    assert many_lines.count("line") < 30 and "more characters" in many_lines
    assert "more" not in cell(datasette, "x" * 600, "text", **place)
    assert len(cell(datasette, "x" * 2_000_000, "text", **place)) < 1000
    hostile = cell(datasette, "<script>\u202e\x1b", "text", **place)
    assert "&lt;script&gt;‹U+202E›␛" in hostile
    for odd in (5, b"text", None):
        assert cell(datasette, odd, "text", **place) is None


async def test_the_other_columns(datasette):
    assert "<bdi>a&lt;b.md</bdi>" in cell(datasette, "a<b.md", "path", start_line="x", end_line=None)
    assert 'href="/memory/-/agent-memory/chunk?id=f%3C0123456789"' in cell(datasette, "f<0123456789", "id")
    assert ">f&lt;01234567…</a>" in cell(datasette, "f<0123456789", "id")
    assert cell(datasette, "0123456789ab", "hash") == '<span title="0123456789ab">0123456789…</span>'
    time = '<time datetime="2026-01-05T00:00:00Z" title="1767571200000">2026-01-05 00:00:00</time>'
    assert time == cell(datasette, 1767571200000, "updated_at")
    assert "2026-01-05 00:00:00" in cell(datasette, 1767571200000.5, "mtime", "files")
    assert ">4.5 kB<" in cell(datasette, 4516, "size", "files", path="a.md")
    assert ">12 bytes<" in cell(datasette, 12, "size", "files", path="a.md")
    for column, value in (
        ("updated_at", 10**30),
        ("updated_at", math.nan),
        ("updated_at", True),
        ("size", -1),
    ):
        assert cell(datasette, value, column, "files") is None
    for column in ("path", "id", "hash", "text", "updated_at", "size"):
        for value in (None, b"\xff", [], {"value": 1, "label": "x"}):
            assert cell(datasette, value, column) is None


async def test_a_lone_surrogate_breaks_no_link(datasette):
    assert "file?path=%3F" in cell(datasette, "\ud800", "path")


async def test_other_tables_and_other_queries_are_left_alone(datasette):
    for column, value in (("path", "a.md"), ("text", "x"), ("id", "1"), ("hash", "x"), ("size", 1)):
        assert cell(datasette, value, column, "other") is None
        assert cell(datasette, value, column, None) is None
        assert render_cell(datasette, {column: value}, value, column, "chunks", "nowhere") is None
    chunk = {"path": "a.md", "start_line": 1, "end_line": 2}
    assert "file?path=a.md#L1-L2" in cell(datasette, "a.md", "path", None, **chunk)
    assert "file?path=a.md" in cell(datasette, "a.md", "path", None, source="memory")
    assert cell(datasette, "f" * 64, "id", None, **chunk)
    assert cell(datasette, "f" * 64, "id", None, path="a.md", source="memory") is None


async def test_the_pages_of_the_tables(datasette, memory):
    page = await get(datasette, "/memory/chunks")
    assert "agent_memory_cells.css" in page
    assert "32 numbers, length 1.00" in page and "0000000000" not in page
    assert "<script>alert('heron')" not in page and "<img src=x" not in page
    assert "&lt;script&gt;alert(" in page and "‹U+202E›" in page
    (link,) = set(re.findall(r'href="(/memory/-/agent-memory/file\?path=memory%2F%3Cimg[^"]+)"', page))
    assert parse_qs(urlsplit(link).query)["path"] == [HOSTILE]
    await get(datasette, link)
    for table in ("files", "embedding_cache", "chunks_fts"):
        assert "<img src=x" not in await get(datasette, f"/memory/{table}")
    row = await get(datasette, "/memory/files/MEMORY~2Emd")
    assert "agent_memory_cells.css" in row and 'href="/memory/-/agent-memory/file?path=MEMORY.md"' in row


async def test_the_result_of_a_query(datasette):
    page = await ask(datasette, "select path, start_line, end_line, text, embedding from chunks limit 5")
    assert "agent_memory_cells.css" in page and "32 numbers" in page and "more characters" in page
    page = await ask(datasette, "select 'a.md' as path, 'x' as text, 7 as size, 'hello' as embedding")
    assert "file?path=" not in page and "no vector" not in page


async def test_another_database_is_left_alone(datasette, tmp_path, make_datasette):
    change(
        tmp_path / "other.db",
        "create table chunks (id text primary key, path text, text text, embedding text)",
        "insert into chunks values ('1', 'a.md', 'x', '[1, 2]')",
    )
    datasette = make_datasette(tmp_path / "other.db")
    page = await get(datasette, "/other/chunks")
    assert "agent_memory" not in page and "[1, 2]" in page
    assert css_urls(datasette, "other", ["id"]) == css_urls(datasette, None, None) == []


async def test_tables_that_nobody_reads_are_hidden(memory, make_datasette, tmp_path):
    shown_by_the_user = {"databases": {"other name": {"tables": {"meta": {"hidden": False}}}}}
    memory = memory.rename(tmp_path / "other name.db")
    with open_readonly(memory) as conn:
        tables = {row[0] for row in conn.execute("select name from sqlite_master where type = 'table'")}
    name = {"config" if stores_queries(Datasette) else "metadata": shown_by_the_user}
    for settings, visible in (({}, set()), (name, {"meta"})):
        datasette = make_datasette(memory, **settings)
        listed = json.loads(await get(datasette, "/other~20name.json"))["tables"]
        assert {table["name"] for table in listed if not table["hidden"]} == {
            "files",
            "chunks",
            "embedding_cache",
            "file_details",
            *visible,
        }
        assert {table["name"] for table in listed} == tables
        assert "The files that are indexed" in await get(datasette, "/other~20name/files")


async def test_the_shipped_metadata_sorts_and_counts(memory, make_datasette):
    text = (Path(__file__).parent.parent / "metadata.yml").read_text(encoding="utf-8")
    datasette = make_datasette(memory, metadata=parse_metadata(text))
    page = await get(datasette, "/memory/chunks")
    assert "facet-source" in page and "sorted by path" in page
    page = await get(datasette, "/memory/files")
    assert "sorted by mtime descending" in page and "The files that are indexed" in page
    listed = json.loads(await get(datasette, "/memory.json"))["tables"]
    assert [table["name"] for table in listed if not table["hidden"]] == [
        "chunks",
        "embedding_cache",
        "file_details",
        "files",
    ]


async def test_a_users_description_stays(memory, make_datasette):
    mine = {"databases": {"memory": {"tables": {"files": {"description": "Mine own"}}}}}
    datasette = make_datasette(memory, metadata=mine)
    for _ in range(2):
        page = await get(datasette, "/memory/files")
        assert "Mine own" in page and "The files that are indexed" not in page


async def test_the_page_of_all_metadata_names_no_memory(memory, make_datasette):
    datasette = make_datasette(memory)
    await get(datasette, "/memory")
    response = await datasette.client.get("/-/metadata.json")
    assert response.status_code == 404 or "memory" not in response.text
