"""One file as it is indexed."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from datasette.utils.asgi import Response

from ..connections import snapshot
from ..file_page import RENDERED, VIEWS, FilePage, read_page
from ..files import IndexedFile, index_of, read_file
from ..neighbours import Neighbours, nearest_files
from ..web import (
    BadRequest,
    flag,
    line_number,
    may_execute_sql,
    memory_path,
    readable_database,
    render,
    sql_path,
    view,
)


@view
async def file_page(request: Any, datasette: Any) -> Response:
    """One file as it is indexed, with its chunks, and what is near to it."""
    database = await readable_database(request, datasette)
    path = request.args.get("path")
    if not path:
        raise BadRequest("path must be given")
    start = line_number(request, "from") or 1
    time_limit_ms = datasette.setting("sql_time_limit_ms")
    if request.url_vars["format"]:
        return await _file_json(request, database, path, start, time_limit_ms)
    shown_as = request.args.get("view") or RENDERED
    if shown_as not in VIEWS:
        raise BadRequest(f"view must be one of {', '.join(VIEWS)}")
    q = (request.args.get("q") or "").encode("utf-8", "replace").decode()
    page_path = memory_path(datasette, database)

    def read(conn: Any) -> tuple[IndexedFile, FilePage, Neighbours]:
        with snapshot(conn):
            index = index_of(conn)
            file = read_file(conn, path)
            page = read_page(conn, index, file, page_path, q, shown_as, start)
            return file, page, nearest_files(conn, index, file.chunks, time_limit_ms)

    file, page, neighbours = await database.execute_fn(read)
    may_edit = neighbours.sql and await may_execute_sql(datasette, request.actor, database.name)
    query = {"path": file.path, **({"q": q} if q else {})}
    return await render(
        datasette,
        request,
        "agent_memory_file.html",
        {
            "database": database.name,
            "file": file,
            "page": page,
            "neighbours": neighbours,
            "q": q,
            "page_path": page_path,
            "json_path": f"{page_path}/file.json?{urlencode({'path': file.path})}",
            "explain_path": f"{page_path}/explain?{urlencode({'q': q, 'place': file.path})}",
            # This page with other parameters; those that are none are left out.
            "with_parameters": lambda **given: (
                "?" + urlencode({**query, **{name: value for name, value in given.items() if value}})
            ),
            "sql_path": (
                sql_path(datasette, database, neighbours.sql, neighbours.params)
                if may_edit and neighbours.sql
                else None
            ),
        },
    )


async def _file_json(request: Any, database: Any, path: str, start: int, time_limit_ms: int) -> Response:
    count = line_number(request, "lines")
    with_neighbours = flag(request, "neighbours")

    def read(conn: Any) -> tuple[IndexedFile, Neighbours | None]:
        with snapshot(conn):
            file = read_file(conn, path)
            if not with_neighbours:
                return file, None
            return file, nearest_files(conn, index_of(conn), file.chunks, time_limit_ms)

    file, neighbours = await database.execute_fn(read)
    return Response.json(
        {
            "ok": True,
            "path": file.path,
            "source": file.source,
            "text": file.text(start, count),
            "from": start,
            "lines": len(file.lines[start - 1 :][:count]),
            "total_lines": len(file.lines),
            "exact": file.is_exact,
            "chunks": [{"start_line": chunk.start_line, "end_line": chunk.end_line} for chunk in file.chunks],
            "indexed_at": file.indexed_at,
            "hash": file.hash,
            "size": file.size,
            "mtime": file.mtime,
            "on_disk": file.on_disk,
            **({"neighbours": neighbours.as_json()} if neighbours else {}),
        }
    )
