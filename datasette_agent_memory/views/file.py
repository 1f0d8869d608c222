"""One file as it is indexed."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from datasette.utils.asgi import Response

from ..files import IndexedFile, read_file
from ..web import BadRequest, line_number, memory_path, readable_database, render, view


@view
async def file_page(request: Any, datasette: Any) -> Response:
    """One file as it is indexed, with its chunks."""
    database = await readable_database(request, datasette)
    path = request.args.get("path")
    if not path:
        raise BadRequest("path must be given")
    start = line_number(request, "from") or 1
    count = line_number(request, "lines")
    file: IndexedFile = await database.execute_fn(lambda conn: read_file(conn, path))
    if request.url_vars["format"]:
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
                "chunks": [
                    {"start_line": chunk.start_line, "end_line": chunk.end_line} for chunk in file.chunks
                ],
            }
        )
    page_path = memory_path(datasette, database)
    return await render(
        datasette,
        request,
        "agent_memory_file.html",
        {
            "database": database.name,
            "file": file,
            "starts": {chunk.start_line for chunk in file.chunks},
            # The last chunk counts the empty line that a newline at the end begins.
            "ranges": dict.fromkeys(
                (chunk.start_line, min(chunk.end_line, len(file.lines))) for chunk in file.chunks
            ),
            "page_path": page_path,
            "json_path": f"{page_path}/file.json?{urlencode({'path': path})}",
        },
    )
