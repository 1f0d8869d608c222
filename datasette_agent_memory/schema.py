"""The six tables: making them, and reading what an index says of itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from .connections import Connection, has_sqlite_vec, sqlite3
from .layouts import SIX_TABLES, Layout, find_layout
from .passages import has_passages
from .sources import SESSIONS

_MAX_SHOWN_CHARS = 500

META_KEY = "memory_index_meta_v1"
#: What of `meta` says who made the vectors, and is compared with columns: a text, if anything.
_MAKER = {"provider", "model", "providerKey"}
#: In `meta`, the number of chunks that wait for their vector.
PENDING_KEY = "memory_index_pending_v1"
FTS_TOKENIZER = "porter unicode61 remove_diacritics 2"


@dataclass(frozen=True)
class MemoryIndex:
    """What a database holds of an index, and what of it this connection can use."""

    layout: Layout
    meta: dict[str, Any]
    has_files: bool
    #: Whether the full-text table is there, and not empty beside chunks.
    has_fts: bool
    #: Whether the full-text table has the terms of CJK text.
    has_cjk: bool
    #: How the full-text table cuts words, as its DDL says it.
    tokenizer: str
    #: Whether there are vectors of passages.
    has_passages: bool
    #: Whether the vector table is there, and not empty beside chunks.
    has_vec_table: bool
    has_sqlite_vec: bool
    chunk_count: int
    has_embeddings: bool
    #: The width of its vectors, None where there are none.
    dims: int | None
    #: How many chunks wait for their vector.
    pending: int
    #: Whether some of its chunks are of sessions, and others of notes.
    has_sessions: bool

    @property
    def has_chunks(self) -> bool:
        return self.chunk_count > 0

    @property
    def failure(self) -> str | None:
        """What ended the last run before it was through."""
        failure = self.meta.get("failure")
        return _short(failure) if isinstance(failure, str) else None

    @property
    def asked_for(self) -> str | None:
        """The names of the providers that the index was to be made with."""
        asked = self.meta.get("asked")
        return _short(asked.get("names")) if isinstance(asked, dict) else None

    @property
    def address(self) -> str | None:
        """Where the model was that made the vectors: an address, or a file."""
        address = self.meta.get("baseUrl") or self.meta.get("modelPath")
        return None if address is None else _short(address)

    @property
    def refused(self) -> int:
        """How many of the chunks without a vector have a text that the model has refused."""
        refused = self.meta.get("refusedChunks")
        return refused if isinstance(refused, int) else 0

    @property
    def passed_over(self) -> list[dict[str, str]]:
        """The providers that were to make the vectors, and why they did not."""
        return passed_over_in(self.meta)

    @property
    def provider(self) -> str:
        return _short(self.meta.get("provider") or "none")

    @property
    def model(self) -> str:
        return _short(self.meta.get("model") or "")

    @classmethod
    def read(cls, conn: Connection) -> MemoryIndex | None:
        """None where the database holds no memory index."""
        layout = find_layout(conn)
        if layout is None:
            return None
        tables = dict(conn.execute("select name, sql from sqlite_master where type = 'table'").fetchall())
        vec_sql = tables.get(layout.chunks_vec)
        # In an index of another program's all chunks have an embedding or none has, but for a few
        # that it could not embed: to look at some is enough, and to look at all would take
        # longer than a search. An index of ours says how many have none.
        embedding = conn.execute(
            f"select embedding from (select embedding from {layout.chunks} limit 100)"
            " where length(embedding) > 2 limit 1"
        ).fetchone()
        meta, pending = read_meta(conn, layout), read_pending(conn, layout)
        chunk_count = conn.execute(f"select count(*) from {layout.chunks}").fetchone()[0]
        return cls(
            layout=layout,
            meta=meta,
            has_files=layout.files in tables,
            has_fts=layout.chunks_fts in tables and not _is_empty(conn, f"{layout.chunks_fts}_docsize"),
            has_cjk=has_cjk_column(conn, layout),
            tokenizer=_tokenizer(tables.get(layout.chunks_fts)),
            has_passages=layout == SIX_TABLES and has_passages(conn),
            has_vec_table=vec_sql is not None and not _is_empty(conn, f"{layout.chunks_vec}_rowids"),
            has_sqlite_vec=has_sqlite_vec(conn),
            chunk_count=chunk_count,
            has_embeddings=embedding is not None or 0 < pending < chunk_count,
            dims=_width(vec_sql, embedding, meta),
            pending=pending,
            has_sessions=_has_sessions(conn, layout),
        )


def _has_sessions(conn: Connection, layout: Layout) -> bool:
    # One step of an index each, where there is idx_chunks_source.
    query = (
        f"select exists (select 1 from {layout.chunks} where source = '{SESSIONS}')"
        f" and exists (select 1 from {layout.chunks} where source < '{SESSIONS}' or source > '{SESSIONS}')"
    )
    try:
        return bool(conn.execute(query).fetchone()[0])
    except sqlite3.Error:  # a column is missing
        return False


def passed_over_in(meta: Mapping[str, Any]) -> list[dict[str, str]]:
    """The providers that were to make an index's vectors, and why they did not."""
    passed_over = meta.get("passedOver")
    return [
        {"provider": _short(one.get("provider")), "reason": _short(one.get("reason"))}
        for one in (passed_over[:10] if isinstance(passed_over, list) else [])
        if isinstance(one, dict)
    ]


def read_meta(conn: Connection, layout: Layout = SIX_TABLES) -> dict[str, Any]:
    """The JSON of `meta`, empty where it is missing or garbled."""
    try:
        row = conn.execute(f"select value from {layout.meta} where key = ?", (META_KEY,)).fetchone()
        meta = json.loads(row[0]) if row else {}
    except (sqlite3.Error, ValueError, TypeError, RecursionError):
        return {}
    if not isinstance(meta, dict):
        return {}
    for name in _MAKER & meta.keys():
        value = meta[name]
        meta[name] = value.encode("utf-8", "replace").decode() if isinstance(value, str) else None
    return meta


def read_pending(conn: Connection, layout: Layout = SIX_TABLES) -> int:
    """How many chunks of an index wait for their vector."""
    try:
        row = conn.execute(f"select value from {layout.meta} where key = ?", (PENDING_KEY,)).fetchone()
        return max(0, int(row[0])) if row else 0
    except (sqlite3.Error, ValueError, TypeError, OverflowError):
        return 0


def write_meta(conn: Connection, meta: dict[str, Any]) -> None:
    conn.execute(
        "insert into meta (key, value) values (?, ?) on conflict (key) do update set value = excluded.value",
        # In ASCII: a folder's name may have bytes that are not UTF-8.
        (META_KEY, json.dumps(meta)),
    )


def create_tables(conn: Connection) -> None:
    """Make what is missing of the tables, except chunks_vec, whose width is not known yet.

    Inside a transaction of the caller's.
    """
    import sqlite_utils

    db = sqlite_utils.Database(conn)
    for name, columns, primary_key, nullable, defaults in (
        ("meta", {"key": str, "value": str}, "key", {"key"}, {}),
        (
            "files",
            {"path": str, "source": str, "hash": str, "mtime": int, "size": int},
            "path",
            {"path"},
            {"source": "memory"},
        ),
        (
            "chunks",
            {
                "id": str,
                "path": str,
                "source": str,
                "start_line": int,
                "end_line": int,
                "hash": str,
                "model": str,
                "text": str,
                "embedding": str,
                "updated_at": int,
            },
            "id",
            {"id"},
            {"source": "memory"},
        ),
        (
            "embedding_cache",
            {
                "provider": str,
                "model": str,
                "provider_key": str,
                "hash": str,
                "embedding": str,
                "dims": int,
                "updated_at": int,
            },
            ("provider", "model", "provider_key", "hash"),
            {"provider", "model", "provider_key", "hash", "dims"},
            {},
        ),
        # One of our own: what chunks do not hold of a file, see chunked.py.
        (
            "file_details",
            {"path": str, "front_matter": str, "properties": str, "lines": str, "whole": bytes},
            "path",
            {"path", "front_matter", "properties", "lines", "whole"},
            {},
        ),
    ):
        conn.execute(
            db.create_table_sql(
                name,
                columns,
                pk=primary_key,
                not_null=set(columns) - nullable,
                defaults=defaults,
                if_not_exists=True,
            )
        )
    for table, column in (("chunks", "path"), ("chunks", "source"), ("embedding_cache", "updated_at")):
        conn.execute(f"create index if not exists idx_{table}_{column} on {table} ({column})")
    # `cjk` holds what keywords.cjk_terms makes of the text, and `context` what context.py finds
    # around it, so that `text` stays as it is.
    conn.execute(
        f"""
        create virtual table if not exists chunks_fts using fts5(
          text, id unindexed, path unindexed, source unindexed, model unindexed,
          start_line unindexed, end_line unindexed,
          cjk, context,
          tokenize = '{FTS_TOKENIZER}'
        )
        """
    )


def create_vec_table(conn: Connection, dims: int) -> None:
    """Make an empty chunks_vec of this width, in place of one that is there."""
    conn.execute("drop table if exists chunks_vec")
    conn.execute(
        f"create virtual table chunks_vec using vec0(id text primary key, embedding float[{int(dims)}])"
    )


def has_cjk_column(conn: Connection, layout: Layout) -> bool:
    """Whether the full-text table is of this project's making, with the terms of CJK text."""
    query = "select 1 from sqlite_master where name = ? and sql like '%using fts5(%cjk,%'"
    return conn.execute(query, (layout.chunks_fts,)).fetchone() is not None


def as_text(value: Any) -> str:
    """The text of a column, which in a damaged database may be of any type."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def as_line(value: Any) -> int:
    """The line number of a column, 1 where a damaged database has none."""
    return value if isinstance(value, int) and value > 0 else 1


def as_time(milliseconds: Any) -> str | None:
    """The time of a column in ISO 8601, None where there is none."""
    if not isinstance(milliseconds, (int, float)):
        return None
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _tokenizer(fts_sql: str | None) -> str:
    declared = re.search(r"""\btokenize\s*=\s*['"]\s*(\w+)""", fts_sql or "", re.IGNORECASE)
    return declared[1].lower() if declared else "unicode61"


def _is_empty(conn: Connection, table: str) -> bool:
    """Whether a table has no row; not so for one that is not there."""
    try:
        return conn.execute(f"select 1 from {table} limit 1").fetchone() is None
    except sqlite3.Error:
        return False


def _short(value: Any) -> str:
    """What a database says of itself, for people: it may be anybody's, and of any length."""
    text = str(value).encode("utf-8", "replace").decode()
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"


def width_in(meta: Mapping[str, Any]) -> int | None:
    """The width of the vectors that `meta` speaks of, None where it says none that can be."""
    from .config import MAX_DIMENSIONS  # which needs this module

    dims = meta.get("vectorDims")
    return dims if isinstance(dims, int) and 0 < dims <= MAX_DIMENSIONS else None


def declared_width(vec_sql: str | None) -> int | None:
    """The width of a vec0 table's vectors, by its DDL."""
    declared = re.search(r"\bfloat\s*\[\s*(\d+)\s*\]", vec_sql or "", re.IGNORECASE)
    return int(declared[1]) if declared else None


def _width(vec_sql: str | None, embedding: Any, meta: dict[str, Any]) -> int | None:
    declared = declared_width(vec_sql)
    if declared is not None:
        return declared
    if embedding is None or not isinstance(embedding[0], str):
        return width_in(meta)
    return embedding[0].count(",") + 1
