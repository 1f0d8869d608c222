"""Which table names a memory database uses."""

from __future__ import annotations

from dataclasses import dataclass

from .connections import Connection


@dataclass(frozen=True)
class Layout:
    """The names of the six tables; their columns are alike in all layouts."""

    meta: str
    files: str
    chunks: str
    embedding_cache: str
    chunks_vec: str
    chunks_fts: str


SIX_TABLES = Layout("meta", "files", "chunks", "embedding_cache", "chunks_vec", "chunks_fts")
OPENCLAW_AGENT = Layout(
    "memory_index_meta",
    "memory_index_sources",
    "memory_index_chunks",
    "memory_embedding_cache",
    "memory_index_chunks_vec",
    "memory_index_chunks_fts",
)

_CHUNK_COLUMNS = {"id", "path", "source", "start_line", "end_line", "text", "embedding"}


def find_layout(conn: Connection) -> Layout | None:
    """The layout of the memory index in a database, None where there is none."""
    for layout in (SIX_TABLES, OPENCLAW_AGENT):
        # In `main` alone: a database that is attached has permissions of its own.
        columns = {
            row[0]
            for row in conn.execute(
                "select pragma_table_info.name from main.sqlite_master"
                " join pragma_table_info(sqlite_master.name, 'main')"
                " where sqlite_master.name = ? and sqlite_master.type = 'table'",
                (layout.chunks,),
            )
        }
        if columns >= _CHUNK_COLUMNS:
            return layout
    return None
