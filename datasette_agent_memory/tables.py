"""How Datasette lists the tables of a memory: which it hides, and what it says of the others."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from .known import KnownMemory, known_memories, known_memory
from .layouts import SIX_TABLES, Layout


def descriptions(layout: Layout) -> dict[str, str]:
    """A line on each table that is there to be read."""
    own = "What their chunks do not hold of some files: front matter, and where the lines of transcripts are."
    return {
        **({"file_details": own} if layout == SIX_TABLES else {}),
        layout.files: "The files that are indexed, as they were then.",
        layout.chunks: "The parts of the files that a search finds, each with its vector.",
        layout.embedding_cache: "Vectors that were made before, so that no text is embedded twice.",
    }


def table_metadata(datasette: Any, key: str | None, database: str | None) -> dict[str, Any]:
    """For 0.65: metadata of the memory databases, which what is configured is laid over."""
    if key is None and database is None:
        # That is the page of all metadata, and the names of private databases are none of it.
        return {}
    return {
        "databases": {
            name: {
                "tables": _tables(known),
                # Datasette adds its plugins' queries to those that are configured, in place:
                # these are made anew each time.
                "queries": {},
            }
            for name, known in known_memories(datasette).items()
        }
    }


def _tables(known: KnownMemory) -> dict[str, Any]:
    tables: dict[str, Any] = {
        table: {"description": description} for table, description in descriptions(known.layout).items()
    }
    return tables | {table: {"hidden": True} for table in known.hidden_tables}


async def configure_tables(datasette: Any, database: Any, known: KnownMemory) -> None:
    """For 1.0a, which has no such hook: the same, and nothing over what is configured."""
    if not hasattr(datasette, "set_resource_metadata"):
        return
    if database not in _HIDING:
        _HIDING.add(database)
        _hide_tables(datasette, database)
    for table, description in descriptions(known.layout).items():
        metadata = await datasette.get_resource_metadata(database.name, table)
        if not {"description", "description_html"} & set(metadata):
            await datasette.set_resource_metadata(database.name, table, "description", description)


#: The databases that have been told what to hide.
_HIDING: WeakSet[Any] = WeakSet()


def _hide_tables(datasette: Any, database: Any) -> None:
    """Add the hidden tables to those that a database names itself.

    The way to configure it is no way: the configuration is shown to visitors, and would name
    private databases to them.
    """
    hidden_table_names = database.hidden_table_names

    async def with_ours() -> list[str]:
        names: list[str] = await hidden_table_names()
        known = known_memory(datasette, database.name)
        tables = datasette.config.get("databases", {}).get(database.name, {}).get("tables", {})
        shown = {table for table, settings in tables.items() if settings.get("hidden") is False}
        return [*names, *(set(known.hidden_tables) - set(names) - shown if known else ())]

    database.hidden_table_names = with_ours
