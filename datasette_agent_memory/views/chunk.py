"""One chunk: its text, what stands around it, and what is like it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from datasette.utils.asgi import Response

from ..connections import snapshot
from ..context import heading_trail
from ..dates import age_in_words, date_in_words
from ..files import IndexedChunk, chunks_of_file, find_chunk, index_of
from ..neighbours import Neighbours, nearest_chunks
from ..search import citation_of
from ..snippets import EXCERPT_CHARS, Snippet, best_part, find_matches
from ..sql_functions import date_of_path
from ..web import (
    BadRequest,
    may_execute_sql,
    memory_path,
    readable_database,
    render,
    sql_path,
    view,
)

#: As much of a text is on the page.
_MAX_CHARS = 100_000


@dataclass(frozen=True)
class _Chunk:
    chunk: IndexedChunk
    #: Its number in its file, from 1, None for a damaged one, and how many there are.
    number: int | None
    count: int
    headings: list[str]
    before: IndexedChunk | None
    after: IndexedChunk | None

    @property
    def title(self) -> str:
        """The heading that it stands under, or the name of its file."""
        return self.headings[-1] if self.headings else self.chunk.path.rpartition("/")[2]

    @property
    def citation(self) -> str:
        return citation_of(self.chunk.path, self.chunk.start_line, self.chunk.end_line)

    @property
    def date(self) -> str | None:
        day = date_of_path(self.chunk.path)
        return f"{day:%Y-%m-%d}" if day else None


@view
async def chunk_page(request: Any, datasette: Any) -> Response:
    """One chunk of a file, and the chunks that are nearest to it."""
    database = await readable_database(request, datasette)
    id = request.args.get("id")
    if not id:
        raise BadRequest("id must be given")
    time_limit_ms = datasette.setting("sql_time_limit_ms")

    def read(conn: Any) -> tuple[_Chunk, list[_Chunk], Neighbours]:
        with snapshot(conn):
            index = index_of(conn)
            chunk = find_chunk(conn, index, id)
            similar = nearest_chunks(conn, index, chunk, time_limit_ms)
            all_found = [chunk, *(neighbour.chunk for neighbour in similar.found)]
            files = {path: chunks_of_file(conn, index, path) for path in {one.path for one in all_found}}
            first, *others = (_in_file(one, files[one.path]) for one in all_found)
            return first, others, similar

    found, similar, neighbours = await database.execute_fn(read)
    if request.url_vars["format"]:
        return Response.json(_as_json(found, similar, neighbours))
    q = (request.args.get("q") or "").encode("utf-8", "replace").decode()
    page_path = memory_path(datasette, database)
    texts = [found.chunk.text[:_MAX_CHARS], *(one.chunk.text for one in similar)]
    matches = find_matches(texts, q) if q.strip() else [[] for _ in texts]
    may_edit = neighbours.sql and await may_execute_sql(datasette, request.actor, database.name)
    return await render(
        datasette,
        request,
        "agent_memory_chunk.html",
        {
            "database": database.name,
            "found": found,
            "pieces": Snippet(texts[0], tuple(matches[0])).segments(),
            "more": len(found.chunk.text) - len(texts[0]),
            "similar": [
                (near, one, best_part(one.chunk.text, spans, EXCERPT_CHARS))
                for near, one, spans in zip(neighbours.found, similar, matches[1:], strict=True)
            ],
            "neighbours": neighbours,
            "date_in_words": date_in_words,
            "age_in_words": lambda path: age_in_words(path, None),
            "q": q,
            "page_path": page_path,
            "chunk_path": lambda id: f"{page_path}/chunk?{urlencode({'id': id, **({'q': q} if q else {})})}",
            "json_path": f"{page_path}/chunk.json?{urlencode({'id': found.chunk.id})}",
            "explain_path": (
                f"{page_path}/explain?"
                + urlencode({"q": q, "place": f"{found.chunk.path}:{found.chunk.start_line}"})
            ),
            "sql_path": (
                sql_path(datasette, database, neighbours.sql, neighbours.params)
                if may_edit and neighbours.sql
                else None
            ),
        },
    )


def _in_file(chunk: IndexedChunk, chunks: list[IndexedChunk]) -> _Chunk:
    """A chunk with what stands around it; `chunks` are all of its file."""
    place = next((place for place, one in enumerate(chunks) if one.id == chunk.id), None)
    if place is None:
        return _Chunk(chunk, None, len(chunks), [], None, None)
    return _Chunk(
        chunk,
        place + 1,
        len(chunks),
        heading_trail([(one.start_line, one.end_line, one.text) for one in chunks], place),
        chunks[place - 1] if place else None,
        chunks[place + 1] if place + 1 < len(chunks) else None,
    )


def _as_json(found: _Chunk, similar: list[_Chunk], neighbours: Neighbours) -> dict[str, Any]:
    chunk, nearest = found.chunk, neighbours.as_json()
    return {
        "ok": True,
        "id": chunk.id,
        "path": chunk.path,
        "start_line": chunk.start_line,
        "end_line": chunk.end_line,
        "source": chunk.source,
        "title": found.title,
        "headings": found.headings,
        "text": chunk.text,
        "citation": found.citation,
        "date": found.date,
        "before": _place_as_json(found.before),
        "after": _place_as_json(found.after),
        "similar": [
            {**near, "title": one.title, "citation": one.citation, "text": one.chunk.text}
            for near, one in zip(nearest["results"], similar, strict=True)
        ],
        "notices": nearest["notices"],
        "sql": nearest["sql"],
        "params": nearest["params"],
    }


def _place_as_json(chunk: IndexedChunk | None) -> dict[str, Any] | None:
    if chunk is None:
        return None
    return {
        "id": chunk.id,
        "start_line": chunk.start_line,
        "end_line": chunk.end_line,
        "text": chunk.text,
    }
