"""How large the parts of an index are."""

from __future__ import annotations

from typing import Any

from .connections import Connection, sqlite3
from .schema import MemoryIndex

#: So many rows of a table are weighed; of a larger one the rest is reckoned from these.
_SAMPLE_ROWS = 1000


def read_sizes(conn: Connection, index: MemoryIndex) -> dict[str, Any]:
    """The bytes of the file, of its free pages, and about those of the content of each table.

    `dbstat` would read the whole file, and few builds of SQLite have it: so the columns are
    measured, in a sample of the rows of large tables.
    """
    layout = index.layout
    pages, page_size, free = (
        conn.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "page_size", "freelist_count")
    )
    tables = {name: _weigh(conn, name) for name in (layout.files, layout.chunks, layout.embedding_cache)}
    tables |= {name: _weigh(conn, name) for name in ("passages", "file_details")}
    fts = layout.chunks_fts
    tables[fts] = _sum(
        [
            _weigh(conn, f"{fts}_data"),
            _weigh(conn, f"{fts}_idx"),
            _weigh(conn, f"{fts}_docsize"),
            _weigh(conn, f"{fts}_content", counted=f"{fts}_docsize"),
        ]
    )
    vectors = _sum(_weigh(conn, f"{layout.chunks_vec}_{part}") for part in ("rowids", "vector_chunks00"))
    tables[layout.chunks_vec] = vectors
    return {
        "file": pages * page_size,
        "free": free * page_size,
        "tables": {name: size for name, size in tables.items() if size is not None},
    }


def _weigh(conn: Connection, table: str, counted: str | None = None) -> int | None:
    """The bytes of a table's values, None where it is not there. `counted` is a narrower table of as
    many rows."""
    try:
        columns = [row[1] for row in conn.execute(f"pragma main.table_info({table})")]
        if not columns:
            return None
        # Of a blob SQLite knows the length without reading it; of a text it reads the bytes.
        lengths = " + ".join(
            f'case typeof("{column}") when \'blob\' then length("{column}")'
            f' else coalesce(length(cast("{column}" as blob)), 0) end'
            for column in columns
        )
        weighed, size = conn.execute(
            f"select count(*), sum({lengths}) from (select * from {table} limit {_SAMPLE_ROWS})"
        ).fetchone()
        if weighed == _SAMPLE_ROWS:
            rows = conn.execute(f"select count(*) from {counted or table}").fetchone()[0]
        else:
            rows = weighed
    except sqlite3.Error:
        return None
    return int(size * rows / weighed) if weighed else 0


def _sum(sizes: Any) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def readable(size: int) -> str:
    """Bytes for people."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1000  # type: ignore[assignment]
    return f"{size:,.1f} GB"
