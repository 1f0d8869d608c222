"""The page of a file and the page of a chunk."""

import dataclasses
import hashlib
import html
import json
import os
import re
from contextlib import contextmanager
from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest
from conftest import HAS_SQLITE_VEC
from test_markdown import FRAGMENTS
from test_views import SEARCH, get, links

from datasette_agent_memory import neighbours
from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.context import heading_trail
from datasette_agent_memory.dates import moment_in_words
from datasette_agent_memory.files import (
    LINE_CHARS,
    PAGE_CHARS,
    chunks_of_file,
    file_href,
    index_of,
    page_of,
    page_starts,
)
from datasette_agent_memory.layouts import OPENCLAW_AGENT, SIX_TABLES

LONG = "# Long\n\n" + "".join(f"## Part {number}\n\n{'heron ' * 40}\n\n" for number in range(1, 21))
NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns [billing](memory/2026-01-05.md#L3).\n",
    "memory/2026-01-05.md": "# Monday\n\nThe heron nests by the canal.\n",
    "memory/copy.md": "# Monday\n\nThe heron nests by the canal.\n",
    "memory/long.md": LONG,
}

pytestmark = pytest.mark.asyncio


@pytest.fixture
def root(workspace, index, tiny):
    root = workspace(NOTES)
    index(root, tiny)
    return root


@pytest.fixture
def datasette(root, database, make_datasette):
    return make_datasette(database)


@pytest.fixture
def serve(workspace, index, database, make_datasette, tiny):
    """A server of some notes."""

    def run(notes):
        index(workspace(notes), tiny)
        return make_datasette(database)

    return run


async def page_of_file(datasette, path, **params):
    page = await get(datasette, f"{SEARCH}/file", path=path, **params)
    assert page.status_code == 200
    return page


async def file_json(datasette, path, **params):
    return (await get(datasette, f"{SEARCH}/file.json", path=path, **params)).json()


def blocks(page):
    """Each block's rows and text."""
    found = re.findall(
        r'<div class="am-block" dir="auto" style="grid-row: (\d+) / (\d+)">(.*?)</div>\n',
        page.text,
        re.DOTALL,
    )
    return [(int(start), int(end), html.unescape(re.sub("<[^>]+>", "", text))) for start, end, text in found]


def bars(page):
    return [
        (lane, anchor, label, rows)
        for lane, anchor, label, rows in re.findall(
            r'<a class="am-chunk am-lane-(\d)"(?: id="([^"]+)")? href="[^"]+" title="([^"]+)".*?'
            r'style="grid-row: ([^"]+)"',
            page.text,
        )
    ]


# The file


async def test_markdown_is_rendered_beside_its_chunks(datasette):
    page = await page_of_file(datasette, "MEMORY.md")
    assert [(start, end) for start, end, _ in blocks(page)] == [(1, 2), (3, 4)]
    assert "<h2>Long-term</h2>" in page.text and page.text.count("<h1>") == 1
    assert links(page, "billing") == [f"{SEARCH}/file?path=memory%2F2026-01-05.md#L3"]
    # The chunk counts the line after the last newline; its id is as it is cited.
    assert bars(page) == [("0", "L1-L4", "chunk 1, lines 1–3", "1 / 4")]


async def test_neighbours_stand_in_two_lanes(datasette):
    page = await page_of_file(datasette, "memory/long.md")
    chunks = (await file_json(datasette, "memory/long.md"))["chunks"]
    assert len(chunks) > 2 and chunks[1]["start_line"] <= chunks[0]["end_line"]
    assert [lane for lane, *_ in bars(page)] == [str(place % 2) for place in range(len(chunks))]
    assert [anchor for _, anchor, *_ in bars(page)] == [
        f"L{chunk['start_line']}-L{chunk['end_line']}" for chunk in chunks
    ]
    assert set(re.findall(r'id="L(\d+)"', page.text)) == {str(line) for line in range(1, 83)}


async def test_source(datasette):
    page = await page_of_file(datasette, "memory/2026-01-05.md", view="source", q="herons")
    assert blocks(page) == [(1, 2, "# Monday"), (2, 3, ""), (3, 4, "The heron nests by the canal.")]
    assert "<mark>heron</mark>" in page.text
    rendered = await page_of_file(datasette, "memory/2026-01-05.md", q="herons")
    assert "<p>The <mark>heron</mark> nests" in rendered.text
    (why,) = links(page, "Why was this not found")
    assert why == f"{SEARCH}/explain?q=herons&place=memory%2F2026-01-05.md"
    assert (await datasette.client.get(why)).status_code == 200
    assert links(page, "Rendered") == ["?path=memory%2F2026-01-05.md&q=herons"]
    assert links(rendered, "Source") == ["?path=memory%2F2026-01-05.md&q=herons&view=source"]


@pytest.mark.parametrize("params", [{"view": "x"}, {"from": "0"}, {"from": "x"}])
async def test_a_bad_parameter_is_named(datasette, params):
    page = await get(datasette, f"{SEARCH}/file", path="MEMORY.md", **params)
    assert page.status_code == 400 and f"{next(iter(params))} must be" in page.text


async def test_a_line_after_the_last_is_on_the_last_page(datasette):
    assert blocks(await page_of_file(datasette, "MEMORY.md", **{"from": "999"}))


async def test_a_hit_leads_to_its_page(serve):
    datasette = serve({"a.md": "filler\n" * 2500 + "the heron\n"})
    page = await get(datasette, SEARCH, q="heron", k=1)
    (hit,) = (await get(datasette, f"{SEARCH}.json", q="heron", k=1)).json()["results"]
    (href,) = links(page, "a.md")
    lines = f"L{hit['start_line']}-L{hit['end_line']}"
    assert href == f"{SEARCH}/file?path=a.md&from={hit['start_line']}&q=heron#{lines}"
    page = await datasette.client.get(href)
    assert 'id="L2501"' in page.text and 'id="L2000"' not in page.text and "the <mark>heron" in page.text
    assert set(links(page, "Previous")) == {"?path=a.md&q=heron&from=1"}
    first = await page_of_file(datasette, "a.md")
    assert 'id="L2000"' in first.text and 'id="L2001"' not in first.text
    assert set(links(first, "Next")) == {"?path=a.md&from=2001"}


async def test_pages_hold_so_many_lines_and_characters():
    assert page_starts([]) == [1]
    assert page_starts(["x"] * 4001) == [1, 2001, 4001]
    lines = ["x" * 500] * 3000
    starts = page_starts(lines)
    assert 2001 in starts
    for start, end in zip(starts, [*starts[1:], 3001], strict=True):
        assert sum(len(line) for line in lines[start - 1 : end - 1]) <= PAGE_CHARS
    assert [page_of([1, 2001], line) for line in (1, 2000, 2001, 9999)] == [0, 0, 1, 1]
    # One that is cut counts as it is shown.
    assert page_starts(["x" * 10**6] * 19) == [1]


async def test_addresses():
    assert file_href("/m", "a b.md") == "/m/file?path=a+b.md"
    assert file_href("/m", "a.md", 3, 9) == "/m/file?path=a.md#L3-L9"
    assert file_href("/m", "a.md", 3, 3, q="x") == "/m/file?path=a.md&q=x#L3"
    assert file_href("/m", "a.md", 2001) == "/m/file?path=a.md&from=2001#L2001"


@pytest.mark.parametrize("view", ["rendered", "source"])
async def test_a_long_line_is_cut(serve, view):
    datasette = serve({"a.md": f"{'x' * 12_345}\nend\n"})
    page = await page_of_file(datasette, "a.md", view=view)
    assert "… 2,345 characters more" in page.text and "x" * (LINE_CHARS + 1) not in page.text
    assert bars(page)[0][-1] == "1 / 2" and len(bars(page)) <= 2


@pytest.mark.parametrize("text", [("x" * 99 + "\n") * 1500, "[" * 9000])
async def test_what_is_too_much_is_shown_as_source(serve, text):
    page = await page_of_file(serve({"a.md": text}), "a.md")
    assert "shown as source" in page.text and "am-file-source" in page.text


async def test_line_ends_of_windows_are_not_shown(serve):
    page = await page_of_file(serve({"a.md": "# a\r\n\r\nb\r\n"}), "a.md")
    assert "␍" not in page.text and "<h2>a</h2>" in page.text


# The file on disk


async def test_what_is_known_of_the_file(datasette, root):
    answer = await file_json(datasette, "MEMORY.md")
    assert answer["hash"] == hashlib.sha256(NOTES["MEMORY.md"].encode()).hexdigest()
    assert answer["size"] == len(NOTES["MEMORY.md"]) and answer["on_disk"] == "same"
    for name in ("indexed_at", "mtime"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", answer[name])
    assert "neighbours" not in answer
    page = await page_of_file(datasette, "MEMORY.md")
    assert answer["hash"] in page.text and moment_in_words(answer["indexed_at"]) in page.text
    (root / "MEMORY.md").write_text("other")
    assert (await file_json(datasette, "MEMORY.md"))["on_disk"] == "changed"
    assert "has changed since" in (await page_of_file(datasette, "MEMORY.md")).text
    (root / "MEMORY.md").unlink()
    assert (await file_json(datasette, "MEMORY.md"))["on_disk"] == "missing"
    assert "is gone" in (await page_of_file(datasette, "MEMORY.md")).text


async def test_a_link_is_not_followed(datasette, root, tmp_path):
    (tmp_path / "same.md").write_text(NOTES["MEMORY.md"])
    (root / "MEMORY.md").unlink()
    (root / "MEMORY.md").symlink_to(tmp_path / "same.md")
    assert (await file_json(datasette, "MEMORY.md"))["on_disk"] == "unknown"
    (root / "memory").rename(tmp_path / "elsewhere")
    (root / "memory").symlink_to(tmp_path / "elsewhere")
    assert (await file_json(datasette, "memory/copy.md"))["on_disk"] == "unknown"


async def test_elsewhere_than_it_was_made_nothing_is_known(datasette, root, tmp_path):
    root.rename(tmp_path / "moved")
    assert (await file_json(datasette, "MEMORY.md"))["on_disk"] == "unknown"
    assert "not on this machine" in (await page_of_file(datasette, "MEMORY.md")).text


@pytest.mark.parametrize(
    "path", ["../outside.md", "{tmp_path}/outside.md", "a\0b", "memory/../../outside.md"]
)
async def test_nothing_outside_the_folder_is_looked_at(datasette, change, tmp_path, path):
    (tmp_path / "outside.md").write_text("secret")
    path = path.format(tmp_path=tmp_path)
    digest = hashlib.sha256(b"secret").hexdigest()
    change(f"insert into files values (cast(x'{path.encode().hex()}' as text), 'memory', '{digest}', 0, 6)")
    answer = await file_json(datasette, path)
    assert (answer["on_disk"], answer["text"]) == ("unknown", "")


# What is near


def compared(conn, path="memory/2026-01-05.md", **changes):
    index = dataclasses.replace(index_of(conn), **changes)
    return neighbours.nearest_files(conn, index, chunks_of_file(conn, index, path), 60_000)


async def test_the_nearest_files(datasette):
    near = (await file_json(datasette, "memory/2026-01-05.md", neighbours=1))["neighbours"]
    first = near["results"][0]
    assert (first["path"], first["copy"], first["near_to"]) == (
        "memory/copy.md",
        True,
        {"start_line": 1, "end_line": 4},
    )
    assert first["cosine"] == pytest.approx(1, abs=1e-6)
    paths = [result["path"] for result in near["results"]]
    assert len(paths) == len(set(paths)) == 3 and "memory/2026-01-05.md" not in paths
    cosines = [result["cosine"] for result in near["results"]]
    assert cosines == sorted(cosines, reverse=True)
    page = await page_of_file(datasette, "memory/2026-01-05.md")
    assert "an exact copy of" in page.text and f"{cosines[1]:.3f}" in page.text
    (link,) = links(page, "View and edit SQL")
    assert (await datasette.client.get(link)).status_code == 200
    address, _, query = link.partition("?")
    rows = (await datasette.client.get(f"{address}.json?{query}&_shape=objects")).json()["rows"]
    assert [row["path"] for row in rows] == paths


@pytest.mark.needs_sqlite_vec
async def test_without_sqlite_vec_the_same_are_near(datasette, database):
    with open_readonly(database) as conn:
        for path in NOTES:
            fast, slow = compared(conn, path), compared(conn, path, has_sqlite_vec=False)
            assert "MATCH" in fast.sql and "cosine_similarity" in slow.sql
            assert [one.chunk.path for one in fast.found] == [one.chunk.path for one in slow.found] != []
            assert [one.cosine for one in fast.found] == pytest.approx(
                [one.cosine for one in slow.found], abs=1e-5
            )


async def test_a_file_of_many_chunks_is_compared_by_some(serve, database):
    serve({"a.md": LONG * 12, "b.md": "heron\n"})
    with open_readonly(database) as conn:
        index = index_of(conn)
        chunks = chunks_of_file(conn, index, "a.md")
        near = compared(conn, "a.md")
        ids = json.loads(near.params["ids"])
        assert len(chunks) > 16 == len(ids) and chunks[0].id == ids[0]
        assert [one.chunk.path for one in near.found] == ["b.md"]
        many = compared(conn, "a.md", chunk_count=10**6)
        assert len(json.loads(many.params["ids"])) == 1


async def test_why_nothing_is_near_is_said(datasette, database, change, monkeypatch):
    with open_readonly(database) as conn:
        assert compared(conn, has_embeddings=False).notice.code == "no_vectors"

        @contextmanager
        def at_once(conn, ms):
            conn.set_progress_handler(lambda: 1, 1)
            try:
                yield
            finally:
                conn.set_progress_handler(None, 0)

        monkeypatch.setattr(neighbours, "sqlite_timelimit", at_once)
        index = index_of(conn)
        near = neighbours.nearest_files(conn, index, chunks_of_file(conn, index, "MEMORY.md"), 0)
        assert near.notice.code == "timeout" and near.found == []
    page = await page_of_file(datasette, "MEMORY.md")
    assert 'data-code="search_failed"' in page.text


async def test_without_vectors_and_full_text(workspace, index, database, make_datasette, change):
    index(workspace(NOTES))
    change("drop table chunks_fts")
    datasette = make_datasette(database)
    page = await page_of_file(datasette, "MEMORY.md", q="billing")
    assert 'data-code="no_vectors"' in page.text and "<mark>billing</mark>" in page.text
    answer = await chunk_of(datasette, "MEMORY.md")
    assert [notice["code"] for notice in answer["notices"]] == ["no_vectors"] and answer["similar"] == []


# The chunk


async def chunk_of(datasette, path, place=0):
    found = await datasette.get_database("memory").execute(
        "select id from chunks where path = ? order by rowid limit 1 offset ?", (path, place)
    )
    return (await get(datasette, f"{SEARCH}/chunk.json", id=found.rows[0][0])).json()


async def test_a_chunk(datasette):
    answer = await chunk_of(datasette, "memory/2026-01-05.md")
    assert " ".join(answer) == (
        "ok id path start_line end_line source title headings text citation date before after"
        " similar notices sql params"
    )
    assert (answer["title"], answer["headings"], answer["date"]) == ("Monday", ["Monday"], "2026-01-05")
    assert answer["citation"] == "memory/2026-01-05.md#L1-L4" and "heron" in answer["text"]
    assert (answer["before"], answer["after"]) == (None, None)
    assert answer["similar"][0]["path"] == "memory/copy.md" and answer["similar"][0]["copy"] is True
    page = await get(datasette, f"{SEARCH}/chunk", id=answer["id"][:8], q="heron")
    assert page.status_code == 200
    for expected in ("<bdi>Monday</bdi>", "<mark>heron</mark>", "an exact copy", 'datetime="2026-01-05"'):
        assert expected in page.text
    inside = page.text[page.text.index('<div id="am-chunk">') :]
    assert re.findall(r"<h(\d)", inside)[:1] == ["3"]


async def test_a_chunk_stands_between_others(datasette):
    middle = await chunk_of(datasette, "memory/long.md", 1)
    first, last = await chunk_of(datasette, "memory/long.md"), await chunk_of(datasette, "memory/long.md", 2)
    assert (middle["before"]["id"], middle["after"]["id"]) == (first["id"], last["id"])
    assert middle["headings"][0] == "Long" and middle["title"].startswith("Part ")
    near = [(one["path"], one["start_line"]) for one in middle["similar"]]
    assert ("memory/long.md", middle["start_line"]) not in near
    assert all(
        path != "memory/long.md" or not middle["start_line"] <= line <= middle["end_line"]
        for path, line in near
    )
    page = await get(datasette, f"{SEARCH}/chunk", id=middle["id"])
    assert page.text.count("<summary>") >= 2 and "Chunk 2 of" in page.text


@pytest.mark.parametrize("id, status", [("", 400), ("abc", 400), ("f" * 20, 404), ("\ud800" * 9, 404)])
async def test_a_bad_id(datasette, id, status):
    for form in ("", ".json"):
        response = await datasette.client.get(
            f"{SEARCH}/chunk{form}?{urlencode({'id': id}, errors='surrogatepass')}"
        )
        assert response.status_code == status
    assert "id" in response.json()["error"]


async def test_an_id_of_two_is_ambiguous(datasette, change):
    change("update chunks set id = 'same-beginning-' || rowid")
    response = await get(datasette, f"{SEARCH}/chunk.json", id="same-beginning-")
    assert response.status_code == 400 and "more than one" in response.json()["error"]
    assert (await get(datasette, f"{SEARCH}/chunk.json", id="same-beginning-1")).status_code == 200


@pytest.mark.parametrize(
    "chunks, place, trail",
    [
        ([(1, 3, "# A\n\ntext")], 0, ["A"]),
        ([(1, 4, "# A\n## B\n\ntext")], 0, ["A", "B"]),
        ([(1, 2, "text\n# A")], 0, []),
        ([(1, 4, "# A\n## B\nx\n## C"), (5, 5, "y")], 1, ["A", "C"]),
        # A heading in the overlap ends the one that the text begins under, and not before.
        ([(1, 5, "# A\n## B\nx\ny\n## C"), (4, 6, "y\n## C\nz")], 1, ["A", "B"]),
        ([(1, 3, "```\n# no\n```"), (4, 4, "x")], 1, []),
        ([(1, 2, "# A\n# B")], 0, ["B"]),
    ],
)
async def test_the_headings_that_a_chunk_begins_under(chunks, place, trail):
    assert heading_trail(chunks, place) == trail


# Other databases


async def test_under_a_base_url_and_an_odd_name(root, database, tmp_path, make_datasette, rows):
    ((id,),) = rows("select id from chunks where path = 'memory/2026-01-05.md'")
    odd = database.rename(tmp_path / "my agent's.mem.db")
    datasette = make_datasette(odd, settings={"base_url": "/sub/"})
    memory = "/my+agent~27s~2Emem/-/agent-memory"
    for address in (f"{memory}/file?path=memory/2026-01-05.md", f"{memory}/chunk?id={id}"):
        page = await datasette.client.get(address)
        found = links(page, "(?:<bdi>|View and edit SQL|JSON)")
        assert len(found) > 3 and all(href.startswith("/sub/my+agent~27s~2Emem") for href in found)
        for href in found:
            assert (await datasette.client.get(href.removeprefix("/sub"))).status_code == 200


async def test_a_chunk_is_for_those_who_may_view_it(root, database, make_datasette, rows):
    ((id,),) = rows("select id from chunks where path = 'MEMORY.md'")
    block = {"databases": {"memory": {"allow": {"id": "owner"}}}}
    datasette = make_datasette(database, metadata=block)
    if hasattr(datasette, "ensure_permission"):
        datasette = make_datasette(database, config=block)
    for form in ("", ".json"):
        response = await get(datasette, f"{SEARCH}/chunk{form}", id=id)
        assert response.status_code == 403 and "Mara" not in response.text
        assert (await get(datasette, f"{SEARCH}/chunk{form}", actor="owner", id=id)).status_code == 200


@pytest.fixture
def other_layout(root, change):
    if HAS_SQLITE_VEC:
        change(
            f"create virtual table {OPENCLAW_AGENT.chunks_vec} using vec0(id text primary key,"
            " embedding float[32])",
            f"insert into {OPENCLAW_AGENT.chunks_vec} select id, embedding from chunks_vec",
            "drop table chunks_vec",
        )
    change(
        "drop table chunks_fts",
        *(
            f"alter table {getattr(SIX_TABLES, name)} rename to {getattr(OPENCLAW_AGENT, name)}"
            for name in ("meta", "files", "chunks", "embedding_cache")
        ),
    )


async def test_the_other_layout(other_layout, database, make_datasette, rows):
    datasette = make_datasette(database)
    ((id,),) = rows(f"select id from {OPENCLAW_AGENT.chunks} where path = 'MEMORY.md'")
    near = (await file_json(datasette, "MEMORY.md", neighbours=1))["neighbours"]
    assert near["results"] and near["notices"] == []
    assert (await get(datasette, f"{SEARCH}/chunk.json", id=id)).json()["similar"]
    assert links(await page_of_file(datasette, "MEMORY.md"), "billing")


DAMAGES = [
    "update chunks set start_line = 'x', end_line = x'00ff'",
    "update chunks set end_line = 1000000000000, start_line = 1",
    "update chunks set text = x'ff00fe'",
    "update chunks set path = x'4d'",
    "update chunks set embedding = x'00', updated_at = 'never'",
    "update chunks set embedding = '[1,\"x\"]', updated_at = 1e300",
    "update files set hash = x'00', size = 'x', mtime = x'01', source = 7",
    'update meta set value = \'{"root": 7, "chunkTokens": "x"}\'',
    'update meta set value = replace(value, \'"root": "\', \'"root": "\\u0000\')',
    "drop table files",
    "alter table chunks drop column updated_at",
    "delete from chunks",
]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damage_is_no_error(root, database, make_datasette, change, rows, damage):
    ids = [id for (id,) in rows("select id from chunks")]
    change(damage)
    datasette = make_datasette(database)
    for path in NOTES:
        for form in ("/file", "/file.json"):
            response = await get(datasette, SEARCH + form, path=path, neighbours=1)
            assert response.status_code in (200, 404)
    for id in ids:
        for form in ("/chunk", "/chunk.json"):
            assert (await get(datasette, SEARCH + form, id=id)).status_code in (200, 404)


# Hostile memories


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.bad = []
        self.headings = []
        self.ids = []
        self.feed(text[text.index('<main class="am-main">') : text.index("</main>")])
        self.close()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("script", "img", "svg", "iframe", "object", "style", "base", "meta", "form"):
            self.bad.append(tag)
        self.bad += [name for name in given if name.startswith("on")]
        if (given.get("href") or "").partition(":")[0].strip().lower() in ("javascript", "data", "vbscript"):
            self.bad.append(given["href"])
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if "id" in given:
            self.ids.append(given["id"])


HOSTILE = "\n\n".join(
    fragment.encode("utf-8", "replace").decode() for fragment in FRAGMENTS if fragment != "\0"
)
NAME = 'memory/<img src=x onerror=alert(1)>"\u202e.md'


@pytest.mark.skipif(os.name == "nt", reason="has no such names")
async def test_nothing_hostile_takes_effect(serve, rows):
    datasette = serve(
        {NAME: HOSTILE, "memory/2mb.md": "<b onclick=x>" * 160_000, "MEMORY.md": "# <i>x\n\n" + HOSTILE}
    )
    addresses = [
        ("/file", {"path": path, "q": "script alert", "view": view})
        for path in (NAME, "memory/2mb.md", "MEMORY.md")
        for view in ("rendered", "source")
    ]
    addresses += [
        ("/chunk", {"id": id, "q": "<script>"})
        for (id,) in rows("select id from chunks order by path, rowid limit 8")
    ]
    for address, params in addresses:
        page = await get(datasette, SEARCH + address, **params)
        assert page.status_code == 200 and len(page.text) < 2_000_000
        parsed = Page(page.text)
        assert parsed.bad == [] and parsed.headings.count(1) == 1
        assert len(parsed.ids) == len(set(parsed.ids))
        content = page.text[page.text.index('<main class="am-main">') :]
        assert not set("\x1b\u202e\0") & set(content)
