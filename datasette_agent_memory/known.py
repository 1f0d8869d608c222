"""What is known of the attached memory databases without asking them: Datasette's own pages ask
for each cell and each table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from .connections import Connection
from .layouts import Layout
from .schema import MemoryIndex


@dataclass(frozen=True)
class KnownMemory:
    layout: Layout
    #: The width of its vectors, None where there are none.
    dims: int | None
    #: The tables that nobody comes to read.
    hidden_tables: tuple[str, ...]


#: By Datasette's database, whose end is theirs.
_KNOWN: WeakKeyDictionary[Any, KnownMemory] = WeakKeyDictionary()


def known_memory(datasette: Any, database: str | None) -> KnownMemory | None:
    """What was last seen of a database, None for one that is no memory as far as is known."""
    return _KNOWN.get(datasette.databases.get(database)) if database in datasette.databases else None


def known_memories(datasette: Any) -> dict[str, KnownMemory]:
    """What was last seen of all memory databases, by their names."""
    found = {name: _KNOWN.get(database) for name, database in datasette.databases.items()}
    return {name: known for name, known in found.items() if known is not None}


async def look_at(database: Any) -> MemoryIndex | None:
    """The index of a database, None where it is no memory; what is known of it is renewed."""
    index, known = await database.execute_fn(_read)
    if known is None:
        _KNOWN.pop(database, None)
    else:
        _KNOWN[database] = known
    return index  # type: ignore[no-any-return]


def _read(conn: Connection) -> tuple[MemoryIndex | None, KnownMemory | None]:
    index = MemoryIndex.read(conn)
    if index is None:
        return None, None
    return index, KnownMemory(index.layout, index.dims, _hidden_tables(conn, index))


def _hidden_tables(conn: Connection, index: MemoryIndex) -> tuple[str, ...]:
    layout = index.layout
    derived = (layout.chunks_fts, layout.chunks_vec)
    hidden = {layout.meta, "sqlite_sequence", *derived}
    if index.has_passages:
        hidden.add("passages")
    return tuple(
        name
        for (name,) in conn.execute("select name from main.sqlite_master where type = 'table' order by name")
        if name in hidden or name.startswith(tuple(f"{table}_" for table in derived))
    )
