"""Searching one memory, and why it found or missed something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

from datasette.utils.asgi import Response

from ..config import (
    PARAMETERS,
    PRESETS,
    configured_options,
    embedding_settings,
)
from ..connections import snapshot
from ..dates import age_in_words, date_in_words
from ..embeddings.queries import NOT_ASKED
from ..embeddings.server import fetch_query_vector, load_secrets, providers_of
from ..explain import Explainer
from ..explanation import Explanation, NothingToExplain, explanations_as_json, parse_place
from ..exports import as_csv, as_markdown
from ..facets import facets_of
from ..files import ListedFile, list_files
from ..fused_sql import FILTERS
from ..search import Answer, query_provider, search
from ..titles import titles_of_files, titles_of_hits
from ..web import (
    BadRequest,
    flag,
    may_execute_sql,
    memory_path,
    readable_database,
    render,
    sql_path,
    view,
)

#: What a search may be put beside: a preset, or no setting at all.
_BESIDE = {
    "openclaw": "OpenClaw 2026.3.31",
    "rank": "Keyword hits by their position",
    "defaults": "The defaults",
}
#: The parameters that have sliders beside the results.
_TUNED = ("vector_weight", "text_weight", "min_score", "decay", "half_life", "mmr", "lambda")


@view
async def search_page(request: Any, datasette: Any) -> Response:
    """The search page of one database, and the same as JSON, CSV and Markdown."""
    found = await run_search(request, datasette)
    database, answer = found.database, found.answer
    format = request.url_vars["format"]
    if format == ".json":
        return await _search_json(request, found)
    if format:
        body, kind = (as_csv(answer), "csv") if format == ".csv" else (as_markdown(answer), "markdown")
        return Response(body, content_type=f"text/{kind}; charset=utf-8")
    path = memory_path(datasette, database)
    is_search = bool(answer.q.strip())

    def listed(conn: Any) -> tuple[list[ListedFile], dict[str, str]]:
        files = list_files(conn, answer.options)
        paths = [file.path for file in files]
        return files, titles_of_files(conn, answer.index.layout, paths)

    files, titles = ([], await found.titles()) if is_search else await database.execute_fn(listed)
    return await render(
        datasette,
        request,
        "agent_memory_search.html",
        {
            "tab": "search",
            "database": database.name,
            "answer": answer,
            "files": files,
            "filters": [name for name in FILTERS if name in found.given_values],
            "titles": titles,
            "facets": facets_of(
                answer.found if is_search else [(file.path, file.source) for file in files],
                found.given_values,
            ),
            "groups": [
                (group, [parameter for parameter in parameters if parameter.name not in _TUNED])
                for group, parameters in groupby(PARAMETERS.values(), lambda parameter: parameter.group)
            ],
            "tuned": [PARAMETERS[name] for name in _TUNED],
            "given": found.given_values,
            "query_with": found.query_with,
            "date_in_words": date_in_words,
            "age_in_words": lambda path: age_in_words(path, answer.options.now),
            "defaults": answer.defaults.as_parameters(),
            "page_path": path,
            "sql_path": (
                sql_path(datasette, database, answer.sql, answer.params)
                if await may_execute_sql(datasette, request.actor, database.name)
                else None
            ),
        },
    )


async def _search_json(request: Any, found: Search) -> Response:
    answer, explanations = found.answer, list[Explanation]()
    shape = request.args.get("_shape") or "objects"
    if shape not in ("objects", "openclaw"):
        raise BadRequest("_shape must be one of objects, openclaw")
    if shape == "openclaw":
        return Response.json(answer.as_openclaw())
    if flag(request, "explain"):
        answer, explanations = await found.explained(lambda explainer: explainer.hits())
    return Response.json(answer.as_json(explanations))


@view
async def explain_page(request: Any, datasette: Any) -> Response:
    """What a search made of the chunks at one place."""
    found = await run_search(request, datasette)
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
            "query_with": found.query_with,
            "json_path": f"{page_path}/explain.json?{request.query_string}",
        },
    )


@view
async def agent_page(request: Any, datasette: Any) -> Response:
    """The same question as this search answers it, and as OpenClaw or another preset does."""
    beside = request.args.get("beside") or "openclaw"
    if beside not in _BESIDE:
        raise BadRequest(f"beside must be one of {', '.join(_BESIDE)}, not {beside[:40]!r}")
    ours = await run_search(request, datasette)
    # By its own rules, whatever this search is told: only what is asked, and of which notes.
    rules = {name: None for name in PARAMETERS if name not in (*FILTERS, "k", "now")}
    preset = beside if beside in PRESETS else None
    theirs = await run_search(request, datasette, {**rules, "preset": preset})
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
            "titles": {**await ours.titles(), **await theirs.titles()},
            "beside": beside,
            "headings": _BESIDE,
            "page_path": page_path,
            "query_with": ours.query_with,
            "date_in_words": date_in_words,
            "age_in_words": lambda path: age_in_words(path, ours.answer.options.now),
            "json_path": f"{page_path}/agent.json?{request.query_string}",
        },
    )


@dataclass(frozen=True)
class Search:
    """One search of a request, and what it takes to run it again."""

    database: Any
    answer: Answer
    given: dict[str, Any]
    run: Callable[[Any, Mapping[str, object]], Answer]
    time_limit_ms: int

    @property
    def given_values(self) -> dict[str, Any]:
        return {name: value for name, value in self.given.items() if value}

    def query_with(self, changes: Mapping[str, Any] = MappingProxyType({})) -> str:
        """The query string of this search with some parameters changed, and without those of None."""
        values = {"q": self.answer.q, **self.given_values, **changes}
        return urlencode({name: value for name, value in values.items() if value is not None})

    async def titles(self) -> dict[str, str]:
        """What each result is about, by its id."""
        layout, hits = self.answer.index.layout, self.answer.hits
        titles: dict[str, str] = await self.database.execute_fn(
            lambda conn: titles_of_hits(conn, layout, hits)
        )
        return titles

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


async def run_search(
    request: Any, datasette: Any, more: Mapping[str, str | None] = MappingProxyType({})
) -> Search:
    """The search that a request asks for, with `more` parameters in place of its own."""
    return await search_in(await readable_database(request, datasette), request, datasette, more)


async def search_in(
    database: Any, request: Any, datasette: Any, more: Mapping[str, str | None] = MappingProxyType({})
) -> Search:
    """The search of a request in a database that its actor may read."""
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
    return Search(database, answer, given, run, time_limit_ms)
