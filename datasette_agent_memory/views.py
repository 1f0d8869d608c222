"""Pages and JSON."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

import click
from datasette.utils.asgi import Forbidden, Response

from .config import (
    PARAMETERS,
    PLUGIN_NAME,
    ParameterError,
    configured_options,
    embedding_settings,
    resolve_options,
)
from .connections import snapshot, sqlite3
from .embeddings.base import EmbeddingError, Provider
from .embeddings.queries import NOT_ASKED
from .embeddings.server import fetch_query_vector, load_secrets, providers_of
from .explain import Explainer
from .explanation import Explanation, NothingToExplain, explanations_as_json, parse_place
from .files import IndexedFile, list_paths, read_file
from .fused_sql import FILTERS
from .schema import MemoryIndex
from .search import Answer, query_provider, search
from .status import read_status
from .web import (
    BadRequest,
    ensure_readable,
    flag,
    is_1_0,
    line_number,
    may_execute_sql,
    memory_path,
    readable_database,
    render,
    sql_path,
    view,
)


@view
async def search_page(request: Any, datasette: Any) -> Response:
    """The search page of one database, and the same as JSON."""
    found = await _search(request, datasette)
    database, answer = found.database, found.answer
    if request.url_vars["format"]:
        shape = request.args.get("_shape") or "objects"
        if shape not in ("objects", "openclaw"):
            raise BadRequest("_shape must be one of objects, openclaw")
        if shape == "openclaw":
            return Response.json(answer.as_openclaw())
        explanations: list[Explanation] = []
        if flag(request, "explain"):
            answer, explanations = await found.explained(lambda explainer: explainer.hits())
        return Response.json(answer.as_json(explanations))
    path = memory_path(datasette, database)
    return await render(
        datasette,
        request,
        "agent_memory_search.html",
        {
            "database": database.name,
            "answer": answer,
            "paths": [] if answer.q.strip() else await database.execute_fn(list_paths),
            "groups": [
                (group, list(parameters))
                for group, parameters in groupby(PARAMETERS.values(), lambda parameter: parameter.group)
            ],
            "given": found.given_values,
            "place_query": urlencode({"q": answer.q, **found.given_values}),
            "defaults": answer.defaults.as_parameters(),
            "page_path": path,
            "json_path": f"{path}.json?{request.query_string}",
            "sql_path": (
                sql_path(datasette, database, answer)
                if await may_execute_sql(datasette, request.actor, database.name)
                else None
            ),
        },
    )


@view
async def explain_page(request: Any, datasette: Any) -> Response:
    """What a search made of the chunks at one place."""
    found = await _search(request, datasette)
    try:
        path, line = parse_place(request.args.get("place") or "")
    except NothingToExplain as error:
        raise BadRequest(f"place: {error}") from error
    answer, explanations = await found.explained(lambda explainer: explainer.place(path, line))
    if request.url_vars["format"]:
        return Response.json(explanations_as_json(answer, explanations))
    page_path = memory_path(datasette, found.database)
    return await render(
        datasette,
        request,
        "agent_memory_explain.html",
        {
            "database": found.database.name,
            "answer": answer,
            "path": path,
            "line": line,
            "explanations": explanations,
            "page_path": page_path,
            "search_query": urlencode({"q": answer.q, **found.given_values}),
            "with_settings": lambda settings: urlencode(
                {
                    name: value
                    for name, value in {"q": answer.q, **found.given_values, **settings}.items()
                    if value is not None
                }
            ),
            "given": found.given_values,
            "json_path": f"{page_path}/explain.json?{request.query_string}",
        },
    )


@view
async def agent_page(request: Any, datasette: Any) -> Response:
    """The same question as this search answers it, and as OpenClaw did, side by side."""
    ours = await _search(request, datasette)
    # By its own rules, whatever this search is told: only what is asked, and of which notes.
    rules = {name: None for name in PARAMETERS if name not in (*FILTERS, "k", "now")}
    theirs = await _search(request, datasette, {**rules, "preset": "openclaw"})
    if request.url_vars["format"]:
        return Response.json({"ok": True, "search": ours.answer.as_json(), "agent": theirs.answer.as_json()})
    page_path = memory_path(datasette, ours.database)
    return await render(
        datasette,
        request,
        "agent_memory_agent.html",
        {
            "database": ours.database.name,
            "ours": ours.answer,
            "theirs": theirs.answer,
            "page_path": page_path,
            "search_query": urlencode({"q": ours.answer.q, **ours.given_values}),
            "json_path": f"{page_path}/agent.json?{request.query_string}",
        },
    )


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


@view
async def status_page(request: Any, datasette: Any) -> Response:
    """What the index of one database holds."""
    database = await readable_database(request, datasette)
    await load_secrets(datasette)
    status = await database.execute_fn(lambda conn: read_status(conn, providers_of(datasette)))
    if request.url_vars["format"]:
        return Response.json(status)
    path = memory_path(datasette, database)
    return await render(
        datasette,
        request,
        "agent_memory_status.html",
        {
            "database": database.name,
            "status": status,
            "page_path": path,
            "json_path": f"{path}/status.json",
        },
    )


@view
async def home_page(request: Any, datasette: Any) -> Response:
    """The memory databases that the visitor may read."""
    if is_1_0(datasette):
        await datasette.ensure_permission(action="view-instance", actor=request.actor)
    else:
        await datasette.ensure_permissions(request.actor, ["view-instance"])
    databases = []
    for database, index in await _memory_databases(datasette, request.actor):
        try:
            files = len(await database.execute_fn(list_paths))
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
        datasette, request, "agent_memory_home.html", {"databases": databases, "page_path": ""}
    )


async def start(datasette: Any) -> None:
    """Refuse a bad configuration at once, and load the model that queries will need."""
    try:
        embedding_settings(datasette)
        for database in _attached(datasette):
            resolve_options({}, configured_options(datasette, database.name))
    except ParameterError as error:
        raise click.ClickException(f"{PLUGIN_NAME}: {error}") from error
    for _, index in await _indexes(_attached(datasette)):
        try:
            provider = providers_of(datasette).of_index(index.meta) if index.has_embeddings else None
        except EmbeddingError:
            continue
        if provider is not None and provider.in_process:
            # In the background: the server answers meanwhile, and a failure is told by the search.
            threading.Thread(target=_load_quietly, args=(provider,), daemon=True).start()


def _load_quietly(provider: Provider) -> None:
    with suppress(EmbeddingError):
        provider.load()


def memory_menu_links(datasette: Any, actor: Any) -> Callable[[], Awaitable[list[dict[str, str]]]]:
    async def links() -> list[dict[str, str]]:
        found = await _memory_databases(datasette, actor)
        if not found:
            return []
        path = (
            memory_path(datasette, found[0][0]) if len(found) == 1 else datasette.urls.path("/-/agent-memory")
        )
        return [{"href": path, "label": "Agent memory"}]

    return links


def memory_database_actions(
    datasette: Any, actor: Any, database: str
) -> Callable[[], Awaitable[list[dict[str, str]]]]:
    async def actions() -> list[dict[str, str]]:
        return [
            {
                "href": memory_path(datasette, found),
                "label": "Search agent memory",
                "description": "What the agent remembers, with every score explained",
            }
            for found, _ in await _memory_databases(datasette, actor, [datasette.get_database(database)])
        ]

    return actions


@dataclass(frozen=True)
class _Search:
    """One search of a request, and what it takes to run it again."""

    database: Any
    answer: Answer
    given: dict[str, Any]
    run: Callable[[Any, Mapping[str, object]], Answer]
    time_limit_ms: int

    @property
    def given_values(self) -> dict[str, Any]:
        return {name: value for name, value in self.given.items() if value}

    async def explained(
        self, explain: Callable[[Explainer], list[Explanation]]
    ) -> tuple[Answer, list[Explanation]]:
        """The answer with what there is to say of it, both of one state of the database."""

        def both(conn: Any) -> tuple[Answer, list[Explanation]]:
            with snapshot(conn):
                answer = self.run(conn, self.given)
                explainer = Explainer(
                    conn,
                    answer,
                    lambda settings: self.run(conn, {**self.given, **settings}),
                    self.time_limit_ms,
                )
                return answer, explain(explainer)

        answer, explanations = await self.database.execute_fn(both)
        return answer, explanations


async def _search(
    request: Any, datasette: Any, more: Mapping[str, str | None] = MappingProxyType({})
) -> _Search:
    """The search that a request asks for, with `more` parameters in place of its own."""
    database = await readable_database(request, datasette)
    q = request.args.get("q") or ""
    given = {**{name: request.args.get(name) for name in PARAMETERS}, **more}
    configured = configured_options(datasette, database.name)
    time_limit_ms = datasette.setting("sql_time_limit_ms")
    await load_secrets(datasette)
    providers = providers_of(datasette)
    # The provider is asked before the SQL is run: meanwhile no connection is held.
    provider = await database.execute_fn(lambda conn: query_provider(conn, q, given, configured, providers))
    asked = NOT_ASKED
    if provider is not None:
        asked = await fetch_query_vector(provider, q, embedding_settings(datasette), request.actor)

    def run(conn: Any, given: Mapping[str, object]) -> Answer:
        return search(conn, q, given, configured, time_limit_ms, providers, asked)

    answer = await database.execute_fn(lambda conn: run(conn, given))
    return _Search(database, answer, given, run, time_limit_ms)


def _attached(datasette: Any) -> list[Any]:
    # 0.65 lists its own _internal database among the others.
    return [database for name, database in datasette.databases.items() if name != "_internal"]


async def _indexes(databases: list[Any]) -> list[tuple[Any, MemoryIndex]]:
    found = []
    for database in databases:
        try:
            index = await database.execute_fn(MemoryIndex.read)
        except sqlite3.Error:  # a database that cannot be read hides no other
            continue
        if index is not None:
            found.append((database, index))
    return found


async def _memory_databases(
    datasette: Any, actor: Any, databases: list[Any] | None = None
) -> list[tuple[Any, MemoryIndex]]:
    """The databases, of those given or all, with an index that the actor may read."""
    readable = []
    for database, index in await _indexes(_attached(datasette) if databases is None else databases):
        try:
            await ensure_readable(datasette, actor, database.name, index.layout.chunks)
        except Forbidden:
            continue
        readable.append((database, index))
    return readable
