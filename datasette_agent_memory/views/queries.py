"""The ready queries of one memory."""

from __future__ import annotations

from typing import Any

from datasette.utils.asgi import Response

from ..databases import furnish
from ..known import look_at
from ..ready_queries import may_run
from ..search import NotAMemoryDatabase
from ..web import memory_path, readable_database, render, view


@view
async def queries_page(request: Any, datasette: Any) -> Response:
    """What there is to ask of a memory in SQL, and the way to run it."""
    database = await readable_database(request, datasette)
    index = await look_at(database)
    if index is None:  # since a moment ago
        raise NotAMemoryDatabase
    queries = [
        {
            "name": query.name,
            "title": query.title,
            "description": query.description,
            "sql": query.sql,
            "asks": query.asks,
            "is_long": query.is_long,
            "href": (
                str(datasette.urls.query(database.name, query.name))
                if await may_run(datasette, request.actor, database.name, query)
                else None
            ),
        }
        for query in await furnish(datasette, database, index)
    ]
    if request.url_vars["format"]:
        names = ("name", "title", "description", "sql", "href")
        listed = [{name: query[name] for name in names} for query in queries]
        return Response.json({"ok": True, "queries": listed})
    path = memory_path(datasette, database)
    return await render(
        datasette,
        request,
        "agent_memory_queries.html",
        {
            "tab": "queries",
            "database": database.name,
            "queries": queries,
            "page_path": path,
            "json_path": f"{path}/queries.json",
        },
    )
