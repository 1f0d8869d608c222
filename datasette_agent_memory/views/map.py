"""All chunks of one memory at a glance: by what they are about, and by their dates."""

from __future__ import annotations

import json
from typing import Any

from datasette.utils.asgi import Response

from ..dates import month_bounds
from ..files import PAGE_LINES
from ..points import MemoryMap, map_of
from ..search import Answer
from ..sql_functions import parse_moment
from ..web import BadRequest, memory_path, render, view
from .search import run_search

#: What the points may be coloured by.
_COLOURS = ("folder", "month", "source")

#: The longest tables that the page has.
_MAX_ROWS = 200


@view
async def map_page(request: Any, datasette: Any) -> Response:
    """The map and the timeline of one memory, with the results of a search."""
    found = await run_search(request, datasette)
    database, answer = found.database, found.answer
    colour = request.args.get("colour") or _COLOURS[0]
    if colour not in _COLOURS:
        raise BadRequest(f"colour must be one of {', '.join(_COLOURS)}, not {colour[:40]!r}")
    memory_map = await map_of(datasette, database)
    if request.url_vars["format"]:
        return Response(_json(memory_map, answer), content_type="application/json; charset=utf-8", status=200)
    page_path = memory_path(datasette, database)

    def between(since: object, until: object) -> str:
        return f"{page_path}?{found.query_with({'since': since, 'until': until})}"

    return await render(
        datasette,
        request,
        "agent_memory_map.html",
        {
            "tab": "map",
            "database": database.name,
            "map": memory_map,
            "answer": answer,
            "results": list(
                zip(answer.hits, memory_map.points_of(hit.id for hit in answer.hits), strict=True)
            ),
            "given": {name: value for name, value in found.given_values.items() if name != "half_life"},
            "colour": colour,
            "colours": _COLOURS,
            "max_rows": _MAX_ROWS,
            "page_lines": PAGE_LINES,
            "month_href": lambda month: between(*month_bounds(month)),
            "page_path": page_path,
            "json_path": f"{page_path}/map.json?{request.query_string}",
        },
    )


def _json(memory_map: MemoryMap, answer: Answer) -> str:
    now = parse_moment(answer.options.now)
    body = {
        "ok": True,
        "query": answer.query_as_json(),
        "chunks": memory_map.index.chunk_count,
        "sampled": memory_map.sampled,
        "skipped": memory_map.skipped,
        "explained": None if memory_map.explained is None else round(memory_map.explained, 4),
        "problem": memory_map.problem,
        "notices": answer.notices_as_json(),
        "results": memory_map.points_of(hit.id for hit in answer.hits) if answer.q.strip() else None,
        "timeline": {
            **memory_map.timeline.as_json(),
            "half_life": answer.options.half_life,
            "now": f"{now.isoformat()}Z" if now else None,
        },
    }
    # The points are the same each time, and are not written down again.
    return f"{json.dumps(body)[:-1]}, {memory_map.columns[1:]}"
