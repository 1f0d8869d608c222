"""All memories: what each holds, and a search across them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from datasette.utils.asgi import Response

from ..config import PARAMETERS, resolve_options
from ..connections import Connection, sqlite3
from ..databases import memory_databases
from ..dates import age_in_words, date_in_words
from ..embeddings.server import providers_of
from ..errors import AgentMemoryError
from ..files import list_files
from ..merged import are_comparable, merge
from ..status import read_status
from ..web import is_1_0, memory_path, render, view
from .search import Search, search_in


@dataclass
class _Memory:
    """One of the memory databases, and what it answered."""

    database: Any
    page_path: str
    #: Counts, dates and model; None where the database cannot be read.
    holds: dict[str, Any] | None = None
    found: Search | None = None
    titles: dict[str, str] = field(default_factory=dict)
    #: Why it is not, or did not answer.
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.database.name,
            "path": self.page_path,
            **(self.holds or {}),
            "error": self.error,
        }


@view
async def home_page(request: Any, datasette: Any) -> Response:
    """The memory databases that the visitor may read, and what they answer."""
    if is_1_0(datasette):
        await datasette.ensure_permission(action="view-instance", actor=request.actor)
    else:
        await datasette.ensure_permissions(request.actor, ["view-instance"])
    q = (request.args.get("q") or "").strip()
    given = {name: request.args.get(name) for name in PARAMETERS}
    options = resolve_options(given)
    readable = await memory_databases(datasette, request.actor)
    memories = await asyncio.gather(
        *(_memory(database, request, datasette, bool(q)) for database, _ in readable)
    )
    answered = [memory for memory in memories if memory.found is not None]
    answers = [memory.found.answer for memory in answered if memory.found is not None]
    comparable = are_comparable(answers)
    merged = [(answered[number], hit) for number, hit in merge(answers, options.k)]
    if request.url_vars["format"]:
        return Response.json(
            {
                "ok": True,
                "q": q,
                "k": options.k,
                "databases": [memory.as_json() for memory in memories],
                "comparable": comparable,
                "results": [{"database": memory.database.name, **hit.as_json()} for memory, hit in merged],
            }
        )
    return await render(
        datasette,
        request,
        "agent_memory_home.html",
        {
            "q": q,
            "memories": memories,
            "merged": merged,
            "comparable": comparable,
            "date_in_words": date_in_words,
            "age_in_words": lambda path: age_in_words(path, given["now"]),
            "home_path": datasette.urls.path("/-/agent-memory"),
        },
    )


async def _memory(database: Any, request: Any, datasette: Any, is_search: bool) -> _Memory:
    """What one database holds and answers: one that fails hides no other."""
    memory = _Memory(database, memory_path(datasette, database))
    try:
        memory.holds = await database.execute_fn(lambda conn: _holdings(conn, datasette))
        if is_search:
            memory.found = await search_in(database, request, datasette)
            memory.titles = await memory.found.titles()
    except AgentMemoryError as error:
        memory.error = f"It did not answer: {error}"
    except sqlite3.Error as error:
        memory.error = f"It cannot be read: {error}"
    return memory


def _holdings(conn: Connection, datasette: Any) -> dict[str, Any]:
    status = read_status(conn, providers_of(datasette))
    # The dated ones come last, the newest of them first.
    dated = [file.path for file in list_files(conn) if file.date]
    return {
        **{name: status[name] for name in ("files", "chunks", "provider", "model", "searches", "indexed_at")},
        "newest": dated[0] if dated else None,
        "oldest": dated[-1] if dated else None,
        "notices": status["notices"],
    }
