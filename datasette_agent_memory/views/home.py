"""All memories."""

from __future__ import annotations

from typing import Any

from datasette.utils.asgi import Response

from ..connections import sqlite3
from ..databases import memory_databases
from ..files import list_files
from ..web import is_1_0, memory_path, render, view


@view
async def home_page(request: Any, datasette: Any) -> Response:
    """The memory databases that the visitor may read."""
    if is_1_0(datasette):
        await datasette.ensure_permission(action="view-instance", actor=request.actor)
    else:
        await datasette.ensure_permissions(request.actor, ["view-instance"])
    databases = []
    for database, index in await memory_databases(datasette, request.actor):
        try:
            files = len(await database.execute_fn(list_files))
        except sqlite3.Error:  # one that is damaged hides no other
            files = 0
        databases.append(
            {
                "name": database.name,
                "path": memory_path(datasette, database),
                "files": files,
                "model": index.model,
                "provider": index.provider,
            }
        )
    return await render(
        datasette, request, "agent_memory_home.html", {"databases": databases, "page_path": None}
    )
