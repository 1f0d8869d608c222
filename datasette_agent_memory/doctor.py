"""Finding out what is wrong with an index, and mending it.

What can be made again from the chunks is; an embedding that is damaged is taken from the
cache, from another chunk of the same text, or from the vector table. All of that is one
transaction. What only the files know is read again after it, by a run of the indexer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .compact_form import cache_chunks
from .connections import (
    Connection,
    DatabaseError,
    has_sqlite_vec,
    open_readonly,
    open_writable,
    snapshot,
    sqlite3,
    transaction,
    use_wal,
)
from .disk import look_at_disk, root_of
from .embeddings.base import Vectors, to_json, unit_length
from .embeddings.cache import NO_EMBEDDING
from .errors import AgentMemoryError
from .ingest import update_index
from .integrity import Findings, Problem, VecTable, inspect, is_ours, vector_of
from .layouts import SIX_TABLES
from .locks import embedding_turn
from .remembered import settings_of, writer_of
from .report import Listener
from .schema import MemoryIndex, read_meta
from .search import NotAMemoryDatabase
from .writer import IndexWriter

#: A look at the disk that nobody waits for on a page.
_LIMIT_S = 60.0
#: How often an index is inspected that others write meanwhile, before they have to wait.
_INSPECTIONS = 3

_FTS = {"fts_missing", "fts_damaged", "chunks_without_fts", "fts_of_no_chunk", "fts_differ"}
_VEC = {"vec_missing", "vec_damaged", "vec_width", "chunks_without_vec", "vec_of_no_chunk", "vec_differ"}
#: What a run of the indexer mends, beside the files to be read again.
_BY_A_RUN = {"tables_missing", "meta_damaged", "passages_missing", "passages_damaged"}

Progress = Callable[[int, int], None]


@dataclass
class Diagnosis:
    """What is wrong with an index, and what was done about it."""

    problems: list[Problem]
    #: What could not be looked at, in plain words.
    unchecked: list[str]
    #: Whether the index is of this project's making; another's is only looked at.
    is_ours: bool
    done: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": not self.problems,
            "problems": [problem.as_json() for problem in self.problems],
            "unchecked": self.unchecked,
            "done": self.done,
        }


def diagnose(database: Path, progress: Progress = lambda done, total: None) -> Diagnosis:
    """Inspect an index and its files; raises DatabaseError and NotAMemoryDatabase."""
    with _readable(database), open_readonly(database) as conn:
        with snapshot(conn):
            index = MemoryIndex.read(conn)
            if index is None:
                return _without_chunks(conn)
            found = inspect(conn, index, progress)
            found.name_chunks(conn)
        disk = look_at_disk(conn, index, _LIMIT_S, with_extra=True)
    problems = found.problems() + (list(disk.problems()) if disk else [])
    if found.is_ours and disk is None and index.meta.get("root"):
        found.unchecked.append("the files on disk: the folder that was indexed is not there")
    return Diagnosis(problems, found.unchecked, found.is_ours)


def mend(
    database: Path, listener: Listener | None = None, progress: Progress = lambda done, total: None
) -> Diagnosis:
    """Mend an index of ours as far as that needs no embedding, and inspect it again.

    Raises DatabaseError where it cannot be written, is another program's or another run's.
    """
    before = diagnose(database, progress)
    if not before.problems:
        return before
    if not before.is_ours:
        raise DatabaseError(f"{database}: holds an index that another program made, which is left as it is")
    with open_writable(database) as conn:
        done, needs_run = _mend_tables(conn, database, progress)
        meta = read_meta(conn)
    if needs_run:
        done += _run(database, meta, listener)
    after = diagnose(database, progress)
    after.done += done
    return after


@contextmanager
def _readable(database: Path) -> Iterator[None]:
    """Say what to do with a file that SQLite cannot read."""
    try:
        yield
    except DatabaseError as error:
        cause = error.__cause__
        if not isinstance(cause, sqlite3.DatabaseError) or isinstance(cause, sqlite3.OperationalError):
            raise
        raise DatabaseError(
            f"{database}: SQLite cannot read it: {cause}. An index is made of files, which are safe: move "
            f"this one away, and make it again by datasette agent-memory index FOLDER -d {database} "
            "(a moved one that can still be read in part is of use with --cache-from)"
        ) from error


def _without_chunks(conn: Connection) -> Diagnosis:
    """Of an index of ours that has lost its chunks; raises NotAMemoryDatabase for any other database."""
    if not is_ours(conn, read_meta(conn)):
        raise NotAMemoryDatabase
    return Diagnosis([Problem.of("tables_missing", 1, (SIX_TABLES.chunks,))], [], is_ours=True)


def _mend_tables(conn: Connection, database: Path, progress: Progress) -> tuple[list[str], bool]:
    """What was done in the database, and whether files are to be read again."""
    with embedding_turn(database) as is_turn:
        if not is_turn:
            raise DatabaseError(f"{database}: another run is writing this index; try again when it has ended")
        writer = writer_of(conn, database, read_meta(conn))
        use_wal(conn)
        for number in range(_INSPECTIONS):
            version = _version(conn)
            index = MemoryIndex.read(conn)
            if index is None or writer.needs_rebuild:
                return [], True
            found = None if number == _INSPECTIONS - 1 else inspect(conn, index, progress)
            with transaction(conn):
                if found is None:
                    found = inspect(conn, index, progress)
                elif _version(conn) != version:
                    continue
                mending = _Mending(conn, writer, index, found)
                mending.run()
            return mending.done, mending.needs_run
    raise AssertionError("the last inspection is not overtaken")


def _version(conn: Connection) -> int:
    """Another number after each change by another connection."""
    version: int = conn.execute("pragma data_version").fetchone()[0]
    return version


def _run(database: Path, meta: dict[str, Any], listener: Listener | None) -> list[str]:
    """Read the files again that need it; what could not be done is found by the next inspection."""
    if root_of(meta) is None:
        return []
    try:
        report = update_index(database, settings_of(database), listener)
    except AgentMemoryError as error:
        if error.is_interruption:
            raise
        return [f"read the folder again, but: {error}"]
    what = "made the whole index again" if report.is_rebuilt else "read the folder again"
    return [
        f"{what}: {report.files_added} files added, {report.files_updated} updated, "
        f"{report.files_removed} removed; {report.embeddings_computed} texts embedded"
    ]


class _Mending:
    """The changes of one transaction."""

    def __init__(self, conn: Connection, writer: IndexWriter, index: MemoryIndex, found: Findings) -> None:
        self._conn = conn
        self._writer = writer
        self._index = index
        self._found = found
        self._dims = writer.dims
        meta = index.meta
        self._key = (meta.get("provider"), meta.get("model"), meta.get("providerKey"))
        self._vectors = (
            VecTable.read(conn, SIX_TABLES.chunks_vec) if "vec_damaged" not in found.counts else None
        )
        #: Whether chunks were removed, or have got other embeddings.
        self._has_other_chunks = self._has_other_embeddings = False
        self.done: list[str] = []
        self.needs_run = bool(_BY_A_RUN & found.counts.keys() or found.read_again)

    def run(self) -> None:
        self._reindex()
        self._mend_embeddings()
        self._mend_cache()
        self._prepare_reading()
        self._mend_details()
        self._mend_passages()
        self._fill()

    def _reindex(self) -> None:
        if "indexes_damaged" in self._found.counts:
            for table in ("meta", "files", "chunks", "embedding_cache"):
                self._conn.execute(f"reindex {table}")
            self.done.append("made SQLite's indexes again")

    def _mend_embeddings(self) -> None:
        sources = {"the cache": 0, "another chunk": 0, "the vector table": 0}
        waiting = 0
        for rowid in sorted(self._found.bad_embeddings):
            identifier, hash = self._conn.execute(
                "select id, hash from chunks where rowid = ?", (rowid,)
            ).fetchone()
            for source, vector in (
                ("the cache", self._of_cache(hash)),
                ("another chunk", self._of_twin(hash)),
                ("the vector table", self._of_table(identifier)),
            ):
                if vector is not None:
                    sources[source] += 1
                    self._set_embedding(rowid, vector)
                    break
            else:
                waiting += 1
                self._set_embedding(rowid, None)
        for source, count in sources.items():
            if count:
                self.done.append(f"took {count:,} embeddings from {source}")
        if waiting:
            self.done.append(f"marked {waiting:,} chunks as waiting for their vector")
        for rowid in sorted(self._found.not_unit):
            (embedding,) = self._conn.execute(
                "select embedding from chunks where rowid = ?", (rowid,)
            ).fetchone()
            self._set_embedding(rowid, vector_of(embedding, self._dims))
        if self._found.not_unit:
            self.done.append(f"brought {len(self._found.not_unit):,} embeddings to unit length")

    def _set_embedding(self, rowid: int, vector: Vectors | None) -> None:
        embedding = NO_EMBEDDING if vector is None else to_json(unit_length(vector[None])[0])
        self._conn.execute("update chunks set embedding = ? where rowid = ?", (embedding, rowid))
        self._has_other_embeddings = True

    def _of_cache(self, hash: str) -> Vectors | None:
        rows = self._conn.execute(
            "select rowid, embedding from embedding_cache"
            " where provider = ? and model = ? and provider_key = ? and hash = ?",
            (*self._key, hash),
        )
        return self._first(embedding for rowid, embedding in rows if rowid not in self._found.bad_cache)

    def _of_twin(self, hash: str) -> Vectors | None:
        rows = self._conn.execute(
            "select rowid, embedding from chunks where hash = ? and model = ?", (hash, self._key[1])
        )
        return self._first(embedding for rowid, embedding in rows if rowid not in self._found.bad_embeddings)

    def _of_table(self, identifier: str) -> Vectors | None:
        vector = self._vectors.vector(identifier) if self._vectors else None
        return None if vector is None else vector_of(vector.tobytes(), self._dims)

    def _first(self, embeddings: Iterable[Any]) -> Vectors | None:
        vectors = (vector_of(embedding, self._dims) for embedding in embeddings)
        return next((vector for vector in vectors if vector is not None), None)

    def _mend_cache(self) -> None:
        for rowid in self._found.bad_cache:
            key = self._conn.execute(
                "select provider, model, provider_key, hash from embedding_cache where rowid = ?", (rowid,)
            ).fetchone()
            vector = self._of_twin(key[3]) if tuple(key)[:3] == self._key else None
            if vector is None:
                self._conn.execute("delete from embedding_cache where rowid = ?", (rowid,))
            else:
                self._conn.execute(
                    "update embedding_cache set embedding = ?, dims = ? where rowid = ?",
                    (to_json(vector), len(vector), rowid),
                )
        if self._found.bad_cache:
            self.done.append(f"mended or removed {len(self._found.bad_cache):,} rows of the cache")

    def _prepare_reading(self) -> None:
        """Have files read again whose chunks are not as they were made, where their folder is there."""
        if not self._found.read_again or root_of(self._index.meta) is None:
            return
        self._keep_embeddings()
        for rowid in self._found.bad_chunks:
            self._conn.execute("delete from chunks where rowid = ?", (rowid,))
        self._has_other_chunks = bool(self._found.bad_chunks)
        for path in self._found.read_again:
            self._conn.execute("update files set hash = '' where path = ?", (path,))
        self.done.append(f"marked {len(self._found.read_again):,} files to be read again")

    def _keep_embeddings(self) -> None:
        """Have what is known of these files' texts in the cache, since their chunks are to go."""
        bad = ", ".join(map(str, self._found.bad_chunks))
        for path in self._found.read_again:
            cache_chunks(self._conn, self._index.meta, f"path = ? and rowid not in ({bad})", path)

    def _mend_details(self) -> None:
        if "details_of_no_file" in self._found.counts:
            self._conn.execute("delete from file_details where path not in (select path from files)")
            self.done.append("removed rows of file_details")

    def _mend_passages(self) -> None:
        if not {"passages_of_no_chunk", "passages_damaged"} & self._found.counts.keys():
            return
        removed = self._conn.execute(
            "delete from passages where hash not in (select hash from chunks where embedding <> ?)"
            " or typeof(embeddings) <> 'blob' or length(embeddings) % ? <> 0",
            (NO_EMBEDDING, self._dims or 1),
        ).rowcount
        self.done.append(f"removed {removed:,} rows of passages")

    def _fill(self) -> None:
        codes = self._found.counts.keys()
        fts = bool(codes & _FTS) or self._has_other_chunks
        vec = bool(codes & _VEC) or self._has_other_chunks or self._has_other_embeddings
        vec = vec and has_sqlite_vec(self._conn) and self._dims is not None
        if fts or vec or "pending_wrong" in codes:
            self._writer.fill_tables(fts, vec)
        if fts:
            self.done.append("made the full-text table again")
        if vec:
            self.done.append("made the vector table again")
        if "pending_wrong" in codes:
            self.done.append("counted the waiting chunks again")
