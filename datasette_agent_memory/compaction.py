"""The compact form of an index: each embedding once, in fewer digits, and no free pages.

`chunks.embedding` stays a JSON array, so that OpenClaw can read it. What a chunk holds is not in
the cache as well; it goes there when its chunk is removed, so that nothing is embedded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .compact_form import COMPACT_DECIMALS, cache_chunks, drop_held, is_compact, set_compact
from .connections import Connection, DatabaseError, open_writable, transaction, use_wal
from .embeddings.base import to_json
from .embeddings.cache import NO_EMBEDDING
from .files import index_of
from .integrity import INDEX, vector_of
from .locks import embedding_turn
from .remembered import writer_of
from .schema import read_meta, width_in
from .writer import IndexWriter

#: To write the file again takes a moment, and pays where more than this share of it is free.
_FREE_SHARE = 0.05
_BATCH_ROWS = 1000

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Sizes:
    """The bytes of a database file, before and after."""

    before: int
    after: int


def compact(database: Path, progress: Progress = lambda done, total: None) -> Sizes:
    """Bring an index of ours into its compact form, in which later runs keep it; may be repeated."""
    with _ours(database) as (conn, writer):
        before = _size(conn)
        dims = width_in(writer.meta)
        with transaction(conn):
            was_compact = is_compact(conn)
            set_compact(conn, True)
            if not was_compact and dims is not None:
                _shorten(conn, dims, progress)
            drop_held(conn, writer.meta)
            conn.execute("insert into chunks_fts (chunks_fts) values ('optimize')")
        if _free_share(conn) > _FREE_SHARE:
            conn.execute("vacuum")
            # It may give the rows of chunks other numbers, by which chunks_fts finds them.
            if not _are_aligned(conn):
                writer.fill_tables(vec=False)
        _end_log(conn)
        return Sizes(before, _size(conn))


def undo(database: Path) -> Sizes:
    """Keep all embeddings in the cache again; the digits that are gone stay so."""
    with _ours(database) as (conn, writer):
        before = _size(conn)
        with transaction(conn):
            if is_compact(conn):
                cache_chunks(conn, writer.meta)
                set_compact(conn, False)
        _end_log(conn)
        return Sizes(before, _size(conn))


@contextmanager
def _ours(database: Path) -> Iterator[tuple[Connection, IndexWriter]]:
    """An index of ours that no other run is writing, and a writer for it."""
    if not database.is_file():
        raise DatabaseError(f"{database}: no such database file")
    with embedding_turn(database) as is_turn, open_writable(database) as conn:
        if not is_turn:
            raise DatabaseError(f"{database}: another run is writing this index; try again when it has ended")
        index_of(conn)
        writer = writer_of(conn, database, read_meta(conn))
        if not writer.is_ours or writer.needs_rebuild:
            raise DatabaseError(
                f"{database}: is damaged or of an older version; {INDEX} first makes it again"
            )
        use_wal(conn)
        yield conn, writer


def _shorten(conn: Connection, dims: int, progress: Progress) -> None:
    total = conn.execute("select max(rowid) from chunks").fetchone()[0] or 0
    for first in range(0, total + 1, _BATCH_ROWS):
        progress(first, total)
        rows = conn.execute(
            "select rowid, embedding from chunks where rowid >= ? and rowid < ? and embedding <> ?",
            (first, first + _BATCH_ROWS, NO_EMBEDDING),
        ).fetchall()
        for rowid, embedding in rows:
            vector = vector_of(embedding, dims)
            # A damaged one is the doctor's.
            if vector is not None:
                shorter = to_json(vector, COMPACT_DECIMALS)
                conn.execute("update chunks set embedding = ? where rowid = ?", (shorter, rowid))
    progress(total, total)


def _are_aligned(conn: Connection) -> bool:
    query = "select 1 from chunks_fts f join chunks on chunks.rowid = f.rowid where f.id <> chunks.id"
    without = "select 1 from chunks where rowid not in (select id from chunks_fts_docsize)"
    return not any(conn.execute(f"{one} limit 1").fetchone() for one in (query, without))


def _free_share(conn: Connection) -> float:
    pages, free = (conn.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "freelist_count"))
    share: float = free / max(1, pages)
    return share


def _size(conn: Connection) -> int:
    pages, page_size = (conn.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "page_size"))
    size: int = pages * page_size
    return size


def _end_log(conn: Connection) -> None:
    """Bring the file itself to its size; where somebody reads, that comes later by itself."""
    conn.execute("pragma wal_checkpoint(truncate)").fetchone()
