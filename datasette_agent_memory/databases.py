"""The attached databases that hold an agent's memory, and the ways that lead to them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import click
from datasette.utils.asgi import Forbidden

from .config import (
    PLUGIN_NAME,
    ParameterError,
    configured_options,
    embedding_settings,
    is_to_be_watched,
    resolve_options,
)
from .connections import sqlite3
from .embeddings.base import EmbeddingError, Provider
from .embeddings.server import providers_of
from .known import known_memory, look_at
from .ready_queries import ReadyQuery, drop_queries, queries_of, store_queries
from .schema import MemoryIndex
from .tables import configure_tables
from .watchers import watch
from .web import ensure_readable, memory_path


async def start(datasette: Any) -> None:
    """Refuse a bad configuration at once, and load the model that queries will need."""
    try:
        embedding_settings(datasette)
        for database in attached(datasette):
            resolve_options({}, configured_options(datasette, database.name))
            is_to_be_watched(datasette, database.name)
    except ParameterError as error:
        raise click.ClickException(f"{PLUGIN_NAME}: {error}") from error
    found = await indexes(attached(datasette))
    await drop_queries(datasette, {database.name for database, _ in found})
    for database, index in found:
        with suppress(sqlite3.Error):  # a database that cannot be read hides no other
            await furnish(datasette, database, index)
        try:
            provider = providers_of(datasette).of_index(index.meta) if index.has_embeddings else None
        except EmbeddingError:
            continue
        if provider is not None and provider.in_process:
            # In the background: the server answers meanwhile, and a failure is told by the search.
            threading.Thread(target=_load_quietly, args=(provider,), daemon=True).start()


#: The databases whose own pages in Datasette have what they need.
_FURNISHED: WeakSet[Any] = WeakSet()


async def furnish(datasette: Any, database: Any, index: MemoryIndex) -> list[ReadyQuery]:
    """Give Datasette's own pages of a memory what they lack, the queries among it, and a memory that is
    to be kept fresh its watcher."""
    _FURNISHED.add(database)
    if is_to_be_watched(datasette, database.name):
        watch(datasette, database, index)
    if known := known_memory(datasette, database.name):
        await configure_tables(datasette, database, known)
    queries = await queries_of(datasette, database, index)
    await store_queries(datasette, database.name, queries)
    return queries


def _load_quietly(provider: Provider) -> None:
    with suppress(EmbeddingError):
        provider.load()


def memory_menu_links(datasette: Any, actor: Any) -> Callable[[], Awaitable[list[dict[str, str]]]]:
    async def links() -> list[dict[str, str]]:
        found = await memory_databases(datasette, actor)
        if not found:
            return []
        path = (
            memory_path(datasette, found[0][0]) if len(found) == 1 else datasette.urls.path("/-/agent-memory")
        )
        return [{"href": path, "label": "Agent memory"}]

    return links


def memory_actions(
    datasette: Any, actor: Any, database: str
) -> Callable[[], Awaitable[list[dict[str, str]]]]:
    async def actions() -> list[dict[str, str]]:
        return [
            {
                "href": memory_path(datasette, found),
                "label": "Search agent memory",
                "description": "What the agent remembers, with every score explained",
            }
            for found, _ in await memory_databases(datasette, actor, [datasette.get_database(database)])
        ]

    return actions


def attached(datasette: Any) -> list[Any]:
    # 0.65 lists its own _internal database among the others.
    return [database for name, database in datasette.databases.items() if name != "_internal"]


async def indexes(databases: list[Any]) -> list[tuple[Any, MemoryIndex]]:
    # At once: each may be locked, and wait.
    looks = await asyncio.gather(*(_look_quietly(database) for database in databases))
    return [(database, index) for database, index in zip(databases, looks, strict=True) if index is not None]


async def _look_quietly(database: Any) -> MemoryIndex | None:
    try:
        return await look_at(database)
    except sqlite3.Error:  # a database that cannot be read hides no other
        return None


async def memory_databases(
    datasette: Any, actor: Any, databases: list[Any] | None = None
) -> list[tuple[Any, MemoryIndex]]:
    """The databases, of those given or all, with an index that the actor may read."""
    readable = []
    for database, index in await indexes(attached(datasette) if databases is None else databases):
        if database not in _FURNISHED:  # it has become a memory since the start
            with suppress(sqlite3.Error, ParameterError):
                await furnish(datasette, database, index)
        try:
            await ensure_readable(datasette, actor, database.name, index.layout.chunks)
        except Forbidden:
            continue
        readable.append((database, index))
    return readable
