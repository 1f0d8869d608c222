"""What the pages share: errors as pages and as JSON, permissions, links."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from datasette.utils import add_cors_headers, tilde_decode, tilde_encode
from datasette.utils.asgi import Forbidden, NotFound, Response

from .config import FALSE, TRUE, ParameterError
from .connections import sqlite3
from .content_security import policy_of
from .errors import AgentMemoryError
from .files import AmbiguousId, FileNotIndexed, UnknownChunk
from .layouts import find_layout
from .search import NotAMemoryDatabase

View = Callable[[Any, Any], Awaitable[Response]]


class BadRequest(AgentMemoryError):
    """The request cannot be answered as it is; the message says why."""


def view(function: View) -> View:
    """Turn what a view raises into a page, or into JSON where JSON was asked for."""

    @wraps(function)
    async def wrapped(request: Any, datasette: Any) -> Response:
        as_json = bool(request.url_vars.get("format"))
        try:
            response = await function(request, datasette)
        except (BadRequest, ParameterError, AmbiguousId) as error:
            response = await _error(datasette, request, str(error), 400, as_json)
        except Forbidden as error:
            if not as_json:
                raise
            response = await _error(datasette, request, str(error) or "Permission denied", 403, as_json)
        except (NotFound, NotAMemoryDatabase, FileNotIndexed, UnknownChunk) as error:
            response = await _error(datasette, request, str(error), 404, as_json)
        except sqlite3.Error as error:
            message = f"This database cannot be read: {error}"
            response = await _error(datasette, request, message, 503, as_json)
        if as_json and datasette.cors:
            add_cors_headers(response.headers)
        return response

    return wrapped


async def readable_database(request: Any, datasette: Any) -> Any:
    """The database of the request; raises NotFound, Forbidden and NotAMemoryDatabase."""
    try:
        database = datasette.get_database(route=tilde_decode(request.url_vars["database"]))
    except KeyError:
        raise NotFound("No such database") from None
    layout = await database.execute_fn(find_layout)
    await ensure_readable(datasette, request.actor, database.name, layout.chunks if layout else None)
    if layout is None:
        raise NotAMemoryDatabase
    return database


def is_1_0(datasette: Any) -> bool:
    """Whether this is the line of Datasette with resources in its permission checks."""
    return hasattr(datasette, "ensure_permission")


async def ensure_readable(datasette: Any, actor: Any, database: str, table: str | None) -> None:
    """Raise Forbidden unless the actor may view the table, or with no table the database."""
    if is_1_0(datasette):
        from datasette.resources import DatabaseResource, TableResource

        if table is None:
            await datasette.ensure_permission(
                action="view-database", resource=DatabaseResource(database), actor=actor
            )
        else:
            await datasette.ensure_permission(
                action="view-table", resource=TableResource(database, table), actor=actor
            )
    else:
        table_first = [("view-table", (database, table))] if table else []
        await datasette.ensure_permissions(
            actor, [*table_first, ("view-database", database), "view-instance"]
        )


async def may_execute_sql(datasette: Any, actor: Any, database: str) -> bool:
    """Whether the actor may use Datasette's SQL editor."""
    if is_1_0(datasette):
        from datasette.resources import DatabaseResource

        allowed = await datasette.allowed(
            action="execute-sql", resource=DatabaseResource(database), actor=actor
        )
    else:
        # The editor is on the database's own page.
        allowed = await datasette.permission_allowed(
            actor, "execute-sql", resource=database, default=True
        ) and await datasette.permission_allowed(actor, "view-database", resource=database, default=True)
    return bool(allowed)


def memory_path(datasette: Any, database: Any) -> str:
    """The search page of a database."""
    return str(datasette.urls.path(f"/{tilde_encode(database.route)}/-/agent-memory"))


def sql_path(datasette: Any, database: Any, sql: str, params: Mapping[str, Any]) -> str:
    """Datasette's SQL editor with a statement and its parameters."""
    page = datasette.urls.database(database.name)
    if is_1_0(datasette):
        page = f"{page}/-/query"
    return f"{page}?{urlencode({'sql': sql, **params})}"


def line_number(request: Any, name: str) -> int | None:
    """A line's number, or a number of lines; raises BadRequest."""
    text = request.args.get(name)
    if not text:
        return None
    # No file has more lines than 18 digits can say.
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) > 0):
        raise BadRequest(f"{name} must be a whole number from 1")
    return int(text)


async def render(
    datasette: Any, request: Any, template: str, context: dict[str, Any], status: int = 200
) -> Response:
    """A page of a template that extends agent_memory_base.html."""
    # Nothing in a memory can know it, and so none can pretend to end the content.
    mark = secrets.token_hex(16)
    html = await datasette.render_template(template, {**context, "content_mark": mark}, request=request)
    before, _, rest = html.partition(mark)
    frame = before + rest.rpartition(mark)[2]
    # 0.65 does not say it, and a screen reader would have to guess.
    html = html.replace(f"<!-- {mark} -->", "").replace("<html>", '<html lang="en">', 1)
    headers = {
        "Content-Security-Policy": policy_of(frame),
        "X-Content-Type-Options": "nosniff",
        # A link in a memory does not tell where it was followed from: addresses have queries.
        "Referrer-Policy": "same-origin",
    }
    return Response.html(html, status=status, headers=headers)


async def _error(datasette: Any, request: Any, message: str, status: int, as_json: bool) -> Response:
    if as_json:
        body = {"ok": False, "error": message, "errors": [message], "status": status}
        return Response(json.dumps(body), status=status, content_type="application/json; charset=utf-8")
    context = {"message": message, "status": status}
    return await render(datasette, request, "agent_memory_error.html", context, status)


def flag(request: Any, name: str) -> bool:
    """A parameter that is 0 or 1; raises BadRequest."""
    value = (request.args.get(name) or "0").strip().lower()
    if value not in TRUE | FALSE:
        raise BadRequest(f"{name} must be 0 or 1, not {value[:40]!r}")
    return value in TRUE
