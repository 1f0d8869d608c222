"""What is nearest in meaning to a file or to a chunk, by the vectors of the index."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from datasette.utils import sqlite_timelimit

from .chunking import Chunk
from .connections import Connection, sqlite3
from .files import IndexedChunk
from .fused_sql import Statement
from .notices import Notice
from .schema import MemoryIndex, as_line

#: How many are shown.
NEIGHBOURS = 6
#: So many chunks of a file are compared, evenly taken from it.
_MAX_CHUNKS = 16
#: How many pairs of vectors are compared at most, for a page to be there soon: by sqlite-vec, and
#: one by one.
_MAX_PAIRS, _MAX_SCANNED_PAIRS = 400_000, 20_000
#: sqlite-vec gives no more nearest ones.
_MAX_K = 4096


@dataclass(frozen=True)
class Neighbour:
    """A chunk, and the chunk that it is near to."""

    chunk: IndexedChunk
    near_to: Chunk
    cosine: float
    #: Whether the two texts are the same to the letter.
    is_copy: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.chunk.id,
            "path": self.chunk.path,
            "start_line": self.chunk.start_line,
            "end_line": self.chunk.end_line,
            "source": self.chunk.source,
            "cosine": self.cosine,
            "copy": self.is_copy,
            "near_to": {"start_line": self.near_to.start_line, "end_line": self.near_to.end_line},
        }


@dataclass(frozen=True)
class Neighbours:
    """The nearest first, or a notice that says why there are none, and the statement that found them."""

    found: list[Neighbour] = field(default_factory=list)
    notice: Notice | None = None
    sql: str | None = None
    params: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "results": [neighbour.as_json() for neighbour in self.found],
            "notices": [{"code": self.notice.code, "message": self.notice.message}] if self.notice else [],
            "sql": self.sql,
            "params": self.params,
        }


def nearest_files(
    conn: Connection, index: MemoryIndex, chunks: list[IndexedChunk], time_limit_ms: int
) -> Neighbours:
    """The files nearest to one, each by its nearest pair of chunks; `chunks` are all of the file."""
    if not chunks:
        return Neighbours()
    pairs = _MAX_PAIRS if _has_knn(index) else _MAX_SCANNED_PAIRS
    count = max(1, min(_MAX_CHUNKS, len(chunks), pairs // max(1, index.chunk_count)))
    ids = [chunks[place * len(chunks) // count].id for place in range(count)]
    # All of the file's own may be nearer than what is looked for.
    nearest = min(_MAX_K, len(chunks) + 4 * NEIGHBOURS)
    return _run(
        conn,
        index,
        ids,
        nearest,
        # SQLite takes the other columns from the row that has the maximum.
        "max(cosine) AS cosine",
        "chunks.path <> here.path\nGROUP BY chunks.path",
        time_limit_ms,
    )


def nearest_chunks(
    conn: Connection, index: MemoryIndex, chunk: IndexedChunk, time_limit_ms: int
) -> Neighbours:
    """The chunks nearest to one, without those that overlap it."""
    return _run(
        conn,
        index,
        [chunk.id],
        # Parts of one long line overlap, and there may be many.
        8 * NEIGHBOURS,
        "cosine",
        "NOT (chunks.path = here.path AND chunks.start_line <= here.end_line"
        " AND chunks.end_line >= here.start_line)",
        time_limit_ms,
    )


def _has_knn(index: MemoryIndex) -> bool:
    return index.has_vec_table and index.has_sqlite_vec


def _run(
    conn: Connection,
    index: MemoryIndex,
    ids: list[str],
    nearest: int,
    cosine: str,
    condition: str,
    time_limit_ms: int,
) -> Neighbours:
    if not index.has_embeddings:
        return Neighbours(
            notice=Notice("no_vectors", "This index has no vectors, so what is near in meaning is not known.")
        )
    statement = _statement(index, ids, nearest, cosine, condition)
    started = time.perf_counter()
    try:
        with sqlite_timelimit(conn, time_limit_ms):
            rows = conn.execute(statement.sql, statement.params).fetchall()
    except sqlite3.Error as error:
        if (time.perf_counter() - started) * 1000 >= time_limit_ms:
            notice = Notice("timeout", f"To find what is near took more than {time_limit_ms} ms.")
        else:
            notice = Notice("search_failed", f"SQLite could not find what is near: {error}.")
        return Neighbours([], notice, statement.sql, statement.params)
    return Neighbours([_neighbour(row) for row in rows], None, statement.sql, statement.params)


def _statement(index: MemoryIndex, ids: list[str], nearest: int, cosine: str, condition: str) -> Statement:
    chunks, vectors = index.layout.chunks, index.layout.chunks_vec
    params: dict[str, Any] = {"ids": json.dumps(ids), "neighbours": NEIGHBOURS}
    if _has_knn(index):
        params["nearest"] = nearest
        embedding, join = "vectors.embedding", f"\nJOIN {vectors} AS vectors ON vectors.id = chunks.id"
        near = (
            # The vectors have unit length.
            "SELECT here.id AS here_id, vectors.id, 1 - distance * distance / 2 AS cosine\n"
            f"FROM here\nCROSS JOIN {vectors} AS vectors\n"
            "WHERE vectors.embedding MATCH here.embedding AND k = :nearest"
        )
    else:
        embedding, join = "chunks.embedding", ""
        near = (
            "SELECT here.id AS here_id, chunks.id,"
            " cosine_similarity(chunks.embedding, here.embedding) AS cosine\n"
            f"FROM here\nCROSS JOIN {chunks} AS chunks\n"
            # Blobs are of any kind of number.
            "WHERE typeof(chunks.embedding) = 'text' AND length(chunks.embedding) > 2"
        )
    here = (
        "SELECT chunks.id, chunks.path, chunks.start_line, chunks.end_line, chunks.text,"
        f" {embedding} AS embedding\n"
        f"FROM json_each(:ids)\nCROSS JOIN {chunks} AS chunks ON chunks.id = value{join}"
    )
    select = (
        "SELECT chunks.id, chunks.path, chunks.source, chunks.start_line, chunks.end_line,\n"
        f"  {cosine}, chunks.text = here.text AS is_copy,\n"
        "  here.start_line AS here_start_line, here.end_line AS here_end_line, chunks.text\n"
        f"FROM near\nJOIN here ON here.id = near.here_id\nJOIN {chunks} AS chunks ON chunks.id = near.id\n"
        f"WHERE cosine IS NOT NULL AND {condition}\n"
        "ORDER BY cosine DESC, chunks.path, chunks.start_line, chunks.id\nLIMIT :neighbours"
    )
    return Statement(
        [("here AS MATERIALIZED", here), ("near AS MATERIALIZED", near)],
        select,
        params,
    )


def _neighbour(row: Any) -> Neighbour:
    return Neighbour(
        IndexedChunk.of_row(row),
        Chunk(as_line(row["here_start_line"]), as_line(row["here_end_line"]), ""),
        row["cosine"],
        bool(row["is_copy"]),
    )
