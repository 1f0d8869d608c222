"""The health of one memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasette.utils.asgi import Response

from ..embeddings.server import load_secrets, providers_of
from ..status import read_status, watching_in_words
from ..watchers import watch_status
from ..web import memory_path, readable_database, render, view


@view
async def status_page(request: Any, datasette: Any) -> Response:
    """What the index of one database holds."""
    database = await readable_database(request, datasette)
    await load_secrets(datasette)
    watch = watch_status(database)
    status = await database.execute_fn(lambda conn: read_status(conn, providers_of(datasette), watch))
    if request.url_vars["format"]:
        return Response.json(status)
    path = memory_path(datasette, database)
    return await render(
        datasette,
        request,
        "agent_memory_status.html",
        {
            "tab": "status",
            "database": database.name,
            "status": status,
            "watching": watching_in_words(status["watch"]),
            "file_name": Path(database.path).name if database.path else "memory.db",
            "page_path": path,
            "json_path": f"{path}/status.json",
        },
    )
