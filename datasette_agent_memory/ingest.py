"""Bringing a database up to date with its sources.

Find, read, chunk and embed are steps that touch no database; one writer stands at their
end. Each file is written in one transaction, and so is a whole rebuild, so that readers
and crashes see an index before or after, and never between.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chunking import DEFAULT_OVERLAP, DEFAULT_TOKENS, Chunk, chunk_markdown
from .config import PLUGIN_NAME
from .connections import (
    INSTALL_SQLITE_VEC,
    Connection,
    DatabaseError,
    has_sqlite_vec,
    open_readonly,
    open_writable,
    sqlite3,
    transaction,
    use_wal,
)
from .embeddings import KEYWORDS_ONLY_MODEL, NO_PROVIDER
from .keywords import cjk_terms
from .layouts import SIX_TABLES, find_layout
from .schema import FTS_TOKENIZER, create_tables, create_vec_table, read_meta, write_meta
from .sources import (
    Found,
    Skipped,
    SourceError,
    SourceFile,
    SourceText,
    UnreadableFile,
    find_files,
    is_within,
    path_in_database,
    read_source,
    sha256,
)

if TYPE_CHECKING:
    from .embeddings.base import Provider

#: Chunks embedded together: enough to keep every core busy, few enough to lose little.
_BATCH_CHUNKS = 64

_CJK_TERMS = "bigrams"

#: An embedding as it is stored: JSON text.
Embedding = str


@dataclass(frozen=True)
class IndexSettings:
    """What to index and how."""

    root: Path
    paths: Sequence[Path] = ()
    extra: Sequence[Path] = ()
    provider: Provider | None = None
    chunk_tokens: int = DEFAULT_TOKENS
    chunk_overlap: int = DEFAULT_OVERLAP
    force: bool = False
    dry_run: bool = False


@dataclass
class IndexReport:
    """What a run did, or, dry, would do."""

    provider: str
    model: str
    dims: int | None
    dry_run: bool = False
    files_added: int = 0
    files_updated: int = 0
    files_unchanged: int = 0
    files_removed: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    chunks_added: int = 0
    chunks_removed: int = 0
    chunks_total: int = 0
    embeddings_computed: int = 0
    embeddings_cached: int = 0
    took_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        report: dict[str, Any] = {
            "ok": True,
            "files": {
                "added": self.files_added,
                "updated": self.files_updated,
                "unchanged": self.files_unchanged,
                "removed": self.files_removed,
                "skipped": [{"path": skipped.path, "reason": skipped.reason} for skipped in self.skipped],
            },
            "chunks": {
                "added": self.chunks_added,
                "removed": self.chunks_removed,
                "total": self.chunks_total,
            },
            "embeddings": {"computed": self.embeddings_computed, "cached": self.embeddings_cached},
            "provider": self.provider,
            "model": self.model,
            "dims": self.dims,
            "took_s": self.took_s,
        }
        return {**report, "dry_run": True} if self.dry_run else report


@dataclass(frozen=True)
class _ChunkedFile:
    """A file that is new or changed, ready to be embedded and written."""

    file: SourceFile
    content: SourceText
    chunks: list[Chunk]
    hashes: list[str]


Progress = Callable[[int, int], None]


def update_index(database: Path, settings: IndexSettings, progress: Progress | None = None) -> IndexReport:
    """Index a folder into a database file, made if it is not there.

    `progress` is called with the files done and their number. Raises SourceError,
    DatabaseError and EmbeddingError, each of which leaves the index as it was, but for
    files that were already written whole.
    """
    started = time.perf_counter()
    if not settings.root.is_dir():
        what = "is a file, not a folder" if settings.root.is_file() else "no such folder"
        raise SourceError(f"{settings.root}: {what}")
    try:
        with _opened(database, settings.dry_run) as conn:
            report = _Run(conn, database, settings, progress).run()
    except sqlite3.Error as error:
        raise DatabaseError(f"{database}: {error}") from error
    report.took_s = round(time.perf_counter() - started, 3)
    return report


def _opened(database: Path, dry_run: bool) -> AbstractContextManager[Connection]:
    if not dry_run:
        return open_writable(database)
    return open_readonly(database) if database.exists() else closing(sqlite3.connect(":memory:"))


class _Run:
    """One run of the indexer on one connection."""

    def __init__(
        self,
        conn: Connection,
        database: Path,
        settings: IndexSettings,
        progress: Progress | None,
    ) -> None:
        self.conn = conn
        self.root = settings.root.resolve()
        self.settings = settings
        self.provider = settings.provider
        self.progress = progress or (lambda done, total: None)
        self.model = self.provider.model if self.provider else KEYWORDS_ONLY_MODEL
        self.provider_name = self.provider.name if self.provider else NO_PROVIDER
        self.provider_key = self.provider.key if self.provider else ""
        self.has_vec = self.provider is not None and has_sqlite_vec(conn)
        self.report = IndexReport(
            provider=self.provider_name,
            model=self.model,
            dims=self.provider.dims if self.provider else None,
            dry_run=settings.dry_run,
        )
        self.has_index = _check_database(conn, database)
        self.old_meta = read_meta(conn) if self.has_index else {}
        self._check_root(database)
        self.extra = self._extra_paths()
        tables = _table_names(conn)
        #: Whether some of an index of ours is gone, so that what is left cannot be trusted.
        self.is_damaged = self.has_index and not tables >= {"meta", "files", "chunks", "embedding_cache"}
        self.known: dict[str, str] = {}
        if "files" in tables and self.has_index:
            self.known = dict(conn.execute("select path, hash from files").fetchall())
        # A file that has lost its chunks is read again.
        self.has_chunks: set[str] = set()
        if "chunks" in tables and self.has_index:
            self.has_chunks = {row[0] for row in conn.execute("select distinct path from chunks")}

    def run(self) -> IndexReport:
        found = find_files(self.root, self.extra)
        found.files, scopes = self._narrowed(found)
        rebuild = self._needs_rebuild()
        if rebuild and scopes != [""] and self.known:
            why = "--force makes" if self.settings.force else "the index has other settings, which makes"
            raise SourceError(f"{why} the whole index again: run without PATHs")
        if self.settings.dry_run:
            self._go_through(found, rebuild, write=lambda file, embeddings: None)
            self.report.files_removed = len(self._gone(found, scopes))
            self._count_chunks()
        elif rebuild and self.has_index:
            self._rebuild(found)
        else:
            self._prepare_tables()
            self._go_through(found, rebuild, write=self._write_file)
            for path in self._gone(found, scopes):
                with self._writing():
                    self._delete_file(path)
                self.report.files_removed += 1
            self._write_meta()
            self._count_chunks()
        self.report.skipped = sorted(found.skipped, key=lambda skipped: skipped.path)
        return self.report

    # What there is, and what is to be done

    def _check_root(self, database: Path) -> None:
        old = self.old_meta.get("root")
        if isinstance(old, str) and old != str(self.root) and Path(old).is_dir() and not self.settings.force:
            raise SourceError(
                f"{database}: is the index of {old}; choose another -d for {self.root}, "
                "or replace it with --force"
            )

    def _extra_paths(self) -> list[Path]:
        """Those of earlier runs, unless --force starts afresh, and those named now."""
        old = self.old_meta.get("extraPaths")
        if self.settings.force or not isinstance(old, list):
            old = []
        named = [_without_links_above(path.expanduser()) for path in self.settings.extra]
        for path in named:
            if not os.path.lexists(path):
                raise SourceError(f"{path}: no such file or folder")
        return list(dict.fromkeys([*(Path(path) for path in old if isinstance(path, str)), *named]))

    def _narrowed(self, found: Found) -> tuple[list[SourceFile], list[str]]:
        """The files that the PATHs name, and the paths in the database that the run speaks for."""
        if not self.settings.paths:
            return found.files, [""]
        there = [*(file.path for file in found.files), *self.known]
        scopes = [self._scope(path, there) for path in self.settings.paths]
        return [file for file in found.files if any(is_within(file.path, scope) for scope in scopes)], scopes

    def _scope(self, path: Path, there: Iterable[str]) -> str:
        """The path in the database of one of the PATHs, from where we are or from the root."""
        inside = [
            scope
            for start in (Path(), self.root)
            if (scope := path_in_database(self.root, _without_links_above(start / path))) is not None
        ]
        if not inside:
            raise SourceError(f"{path}: is not inside {self.settings.root}")
        for scope in inside:
            if any(is_within(known, scope) for known in there):
                return scope
        raise SourceError(
            f"{path}: has no memory file; memory is MEMORY.md and memory/**/*.md, "
            "and other paths need --extra"
        )

    def _needs_rebuild(self) -> bool:
        return self.settings.force or self.is_damaged or not self._is_of_this_run(self.old_meta)

    def _is_of_this_run(self, meta: dict[str, Any]) -> bool:
        return all(meta.get(name) == value for name, value in self._identity().items())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction, on an index that no other run has made with other settings meanwhile."""
        with transaction(self.conn):
            meta = read_meta(self.conn)
            if meta and meta != self.old_meta and not self._is_of_this_run(meta):
                raise DatabaseError("another run has made the index with other settings meanwhile; run again")
            yield

    def _identity(self) -> dict[str, Any]:
        """What of `meta` says how chunks, terms and vectors were made: a change needs a rebuild."""
        return {
            "model": self.model,
            "provider": self.provider_name,
            "providerKey": self.provider_key,
            "chunkTokens": self.settings.chunk_tokens,
            "chunkOverlap": self.settings.chunk_overlap,
            "ftsTokenizer": FTS_TOKENIZER,
            "cjkTerms": _CJK_TERMS,
        }

    def _gone(self, found: Found, scopes: Iterable[str]) -> list[str]:
        """Files of the index that a scan of their folder did not find."""
        there = {file.path for file in found.files}
        return [
            path
            for path in self.known
            if path not in there
            and any(is_within(path, scope) for scope in scopes)
            and not found.is_unseen(path)
        ]

    # The steps

    def _go_through(
        self,
        found: Found,
        rebuild: bool,
        write: Callable[[_ChunkedFile, list[Embedding]], None],
    ) -> None:
        """Read, chunk, embed and write the files that are new or changed."""
        for batch in self._batches(found, rebuild):
            vectors = self._embed([hash for file in batch for hash in file.hashes], batch)
            for file in batch:
                if file.file.path in self.known:
                    self.report.files_updated += 1
                else:
                    self.report.files_added += 1
                self.report.chunks_added += len(set(self._chunk_ids(file)))
                write(file, [vectors[hash] for hash in file.hashes])

    def _batches(self, found: Found, rebuild: bool) -> Iterator[list[_ChunkedFile]]:
        batch: list[_ChunkedFile] = []
        chunks = 0
        for done, file in enumerate(found.files, 1):
            try:
                content = read_source(file)
            except UnreadableFile as error:
                found.skip(file.path, str(error))
                continue
            if not rebuild and self._is_current(file.path, content):
                self.report.files_unchanged += 1
            else:
                batch.append(self._chunked(file, content))
                chunks += len(batch[-1].chunks)
            if chunks >= _BATCH_CHUNKS or len(batch) >= _BATCH_CHUNKS:
                yield batch
                batch, chunks = [], 0
                self.progress(done, len(found.files))
        yield batch
        self.progress(len(found.files), len(found.files))

    def _is_current(self, path: str, content: SourceText) -> bool:
        return self.known.get(path) == content.hash and (path in self.has_chunks or not content.text.strip())

    def _chunked(self, file: SourceFile, content: SourceText) -> _ChunkedFile:
        chunks = [
            chunk
            for chunk in chunk_markdown(
                content.text,
                self.settings.chunk_tokens,
                self.settings.chunk_overlap,
                whole_characters=True,
            )
            if chunk.text.strip()
        ]
        return _ChunkedFile(file, content, chunks, [sha256(chunk.text) for chunk in chunks])

    def _embed(self, hashes: Iterable[str], batch: Sequence[_ChunkedFile]) -> dict[str, Embedding]:
        """An embedding for each text hash, from the cache or, once a text, from the provider."""
        wanted = dict.fromkeys(hashes)
        if self.provider is None:
            return dict.fromkeys(wanted, "[]")
        vectors = self._cached(list(wanted))
        self.report.embeddings_cached += len(vectors)
        texts = {
            hash: chunk.text
            for file in batch
            for hash, chunk in zip(file.hashes, file.chunks, strict=True)
            if hash not in vectors
        }
        self.report.embeddings_computed += len(texts)
        if self.settings.dry_run:
            return dict.fromkeys(wanted, "[]")
        if texts:
            new = self._compute(texts)
            with self._writing():
                self._cache(new)
            vectors |= new
        return vectors

    def _compute(self, texts: dict[str, str]) -> dict[str, Embedding]:
        from .embeddings.base import EmbeddingError, is_unit_length, to_json

        assert self.provider is not None
        vectors = self.provider.embed_documents(list(texts.values()))
        if vectors.shape != (len(texts), self.provider.dims) or not is_unit_length(vectors):
            raise EmbeddingError(
                f"{self.provider_name} {self.model} gave vectors that are not {len(texts)} of unit length "
                f"and {self.provider.dims} dimensions"
            )
        return {hash: to_json(vector) for hash, vector in zip(texts, vectors, strict=True)}

    # The writer

    def _prepare_tables(self) -> None:
        """Make tables that are missing, and fill those that don't agree with `chunks`."""
        use_wal(self.conn)
        if self.has_index and self._tables_agree():
            return
        with self._writing():
            create_tables(self.conn)
            self._fill_fts()
            if self.provider is not None and self.has_vec:
                create_vec_table(self.conn, self.provider.dims)
                self._fill_vec()
            self._write_meta()

    def _tables_agree(self) -> bool:
        """Whether full-text and vector tables are there, with as many rows as there are chunks."""
        try:
            chunks = self._count("chunks")
            # It must answer a search as well: a table may be there without its index.
            self.conn.execute("select 1 from chunks_fts where chunks_fts match '\"x\"' limit 1").fetchone()
            if self._count("chunks_fts_docsize") != chunks:
                return False
            return not self.has_vec or self._count("chunks_vec_rowids") == chunks
        except sqlite3.Error:
            return False

    def _fill_fts(self) -> None:
        """Make chunks_fts again from chunks, in a transaction of the caller's."""
        self.conn.execute("drop table if exists chunks_fts")
        create_tables(self.conn)
        rows = self.conn.execute(
            "select rowid, text, id, path, source, model, start_line, end_line from chunks order by rowid"
        )
        self.conn.executemany(_INSERT_FTS, ((*row, cjk_terms(row[1])) for row in rows))

    def _fill_vec(self) -> None:
        """Fill an empty chunks_vec from chunks; a file with a damaged embedding is read again."""
        rows = self.conn.execute("select id, path, embedding from chunks order by rowid")
        for identifier, path, embedding in rows:
            vector = self._vector(embedding)
            if vector is None:
                self.known[path] = ""
            else:
                self.conn.execute(_INSERT_VEC, (identifier, vector))

    def _vector(self, embedding: object) -> bytes | None:
        """A stored embedding as chunks_vec holds it, None where it is damaged."""
        from .embeddings.base import from_json

        try:
            vector = from_json(embedding) if isinstance(embedding, str) else None
        except (ValueError, TypeError, RecursionError):
            return None
        return vector.tobytes() if vector is not None and vector.shape == (self.report.dims,) else None

    def _rebuild(self, found: Found) -> None:
        """Make the whole index again, while the old one goes on answering."""
        use_wal(self.conn)
        if self.provider is not None:
            with self._writing():
                create_tables(self.conn)
            # First the slow part, into the cache alone, so that the transaction is short.
            for batch in self._batches(found, rebuild=True):
                self._embed([hash for file in batch for hash in file.hashes], batch)
        computed = self.report.embeddings_computed
        self.report.embeddings_computed = self.report.embeddings_cached = 0
        self.report.files_removed = len(self._gone(found, [""]))
        with self._writing():
            self.report.chunks_removed = self._count("chunks") if "chunks" in _table_names(self.conn) else 0
            for table in ("chunks", "files", "chunks_fts", "chunks_vec"):
                self.conn.execute(f"drop table if exists {table}")
            create_tables(self.conn)
            if self.provider is not None and self.has_vec:
                create_vec_table(self.conn, self.provider.dims)
            self._go_through(found, rebuild=True, write=self._insert_file)
            for skipped in found.skipped:
                if any(is_within(path, skipped.path) for path in self.known):
                    raise SourceError(
                        f"{skipped.path}: {skipped.reason}; nothing was changed, so as not to lose it"
                    )
            self._write_meta()
        self.report.embeddings_computed += computed
        self.report.embeddings_cached -= computed
        self._count_chunks()

    def _write_file(self, file: _ChunkedFile, embeddings: list[Embedding]) -> None:
        with self._writing():
            self._delete_file(file.file.path)
            self._insert_file(file, embeddings)

    def _insert_file(self, file: _ChunkedFile, embeddings: list[Embedding]) -> None:
        now = _now_ms()
        path, source, content = file.file.path, file.file.source, file.content
        for identifier, chunk, hash, embedding in zip(
            self._chunk_ids(file), file.chunks, file.hashes, embeddings, strict=True
        ):
            place = (path, source, chunk.start_line, chunk.end_line)
            cursor = self.conn.execute(
                "insert or ignore into chunks (id, path, source, start_line, end_line, hash, model, text,"
                " embedding, updated_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (identifier, *place, hash, self.model, chunk.text, embedding, now),
            )
            if not cursor.rowcount:
                # Equal segments of one long line are one chunk, here as in the peer.
                continue
            self._insert_fts(
                cursor.lastrowid,
                (chunk.text, identifier, path, source, self.model, chunk.start_line, chunk.end_line),
            )
            if self.provider is not None and self.has_vec:
                self.conn.execute(_INSERT_VEC, (identifier, self._vector(embedding)))
        self.conn.execute(
            "insert into files (path, source, hash, mtime, size) values (?, ?, ?, ?, ?)",
            (path, source, content.hash, content.mtime_ms, content.size),
        )

    def _insert_fts(self, rowid: int, row: tuple[Any, ...]) -> None:
        try:
            self.conn.execute(_INSERT_FTS, (rowid, *row, cjk_terms(row[0])))
        except sqlite3.IntegrityError:
            self._fill_fts()

    def _delete_file(self, path: str) -> None:
        rows = self.conn.execute("select rowid, id from chunks where path = ?", (path,)).fetchall()
        aligned = True
        for rowid, identifier in rows:
            # A row of chunks and its row of chunks_fts share their rowid, so that no scan is
            # needed, until somebody's VACUUM gives the rows of chunks other ones.
            deleted = self.conn.execute(
                "delete from chunks_fts where rowid = ? and id = ?", (rowid, identifier)
            ).rowcount
            aligned = aligned and deleted == 1
            if self.has_vec:
                self.conn.execute("delete from chunks_vec where id = ?", (identifier,))
        self.report.chunks_removed += self.conn.execute("delete from chunks where path = ?", (path,)).rowcount
        self.conn.execute("delete from files where path = ?", (path,))
        if not aligned:
            self._fill_fts()

    def _cached(self, hashes: list[str]) -> dict[str, Embedding]:
        found: dict[str, Embedding] = {}
        if "embedding_cache" not in _table_names(self.conn):
            return found
        for hash in hashes:
            row = self.conn.execute(
                "select embedding from embedding_cache"
                " where provider = ? and model = ? and provider_key = ? and hash = ?",
                (self.provider_name, self.model, self.provider_key, hash),
            ).fetchone()
            # One that is damaged is made again.
            if row and self._vector(row[0]) is not None:
                found[hash] = row[0]
        return found

    def _cache(self, embeddings: dict[str, Embedding]) -> None:
        now = _now_ms()
        self.conn.executemany(
            "insert or replace into embedding_cache (provider, model, provider_key, hash, embedding, dims,"
            " updated_at) values (?, ?, ?, ?, ?, ?, ?)",
            (
                (self.provider_name, self.model, self.provider_key, hash, embedding, self.report.dims, now)
                for hash, embedding in embeddings.items()
            ),
        )

    def _write_meta(self) -> None:
        meta = {
            **self._identity(),
            "sources": ["memory"],
            "vectorDims": self.report.dims,
            "generator": PLUGIN_NAME,
            "root": str(self.root),
            "extraPaths": [str(path) for path in self.extra],
        }
        if meta != self.old_meta:
            with self._writing():
                write_meta(self.conn, meta)
            self.old_meta = meta

    # Counting

    def _chunk_ids(self, file: _ChunkedFile) -> list[str]:
        return [
            sha256(
                f"{file.file.source}:{file.file.path}:{chunk.start_line}:{chunk.end_line}:{hash}:{self.model}"
            )
            for chunk, hash in zip(file.chunks, file.hashes, strict=True)
        ]

    def _count(self, table: str) -> int:
        count: int = self.conn.execute(f"select count(*) from {table}").fetchone()[0]
        return count

    def _count_chunks(self) -> None:
        self.report.chunks_total = self._count("chunks") if "chunks" in _table_names(self.conn) else 0


_INSERT_FTS = (
    "insert into chunks_fts (rowid, text, id, path, source, model, start_line, end_line, cjk)"
    " values (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_VEC = "insert into chunks_vec (id, embedding) values (?, ?)"


def _check_database(conn: Connection, database: Path) -> bool:
    """Whether the database has an index of ours; raises DatabaseError where it has another's."""
    tables = _table_names(conn)
    taken = sorted(tables & set(vars(SIX_TABLES).values()))
    if read_meta(conn).get("generator") != PLUGIN_NAME and not _has_cjk_column(conn):
        if find_layout(conn) is not None:
            raise DatabaseError(f"{database}: holds an index that another program made; choose another -d")
        if taken:
            raise DatabaseError(f"{database}: has a table {taken[0]} of another program; choose another -d")
    view = conn.execute(
        "select name from sqlite_master where type = 'view' and name in (?, ?, ?, ?, ?, ?)",
        tuple(vars(SIX_TABLES).values()),
    ).fetchone()
    if view is not None:
        raise DatabaseError(f"{database}: has a view {view[0]} in the place of a table; choose another -d")
    if SIX_TABLES.chunks_vec in tables and not has_sqlite_vec(conn):
        raise DatabaseError(
            f"{database}: has vectors that only sqlite-vec can change, and it cannot be loaded; "
            f"{INSTALL_SQLITE_VEC}"
        )
    return bool(taken)


def _table_names(conn: Connection) -> set[str]:
    return {row[0] for row in conn.execute("select name from sqlite_master where type = 'table'")}


def _has_cjk_column(conn: Connection) -> bool:
    """Whether the full-text table is of our making: this column is in no other program's."""
    query = "select 1 from sqlite_master where name = ? and sql like '%using fts5(%cjk,%'"
    return conn.execute(query, (SIX_TABLES.chunks_fts,)).fetchone() is not None


def _without_links_above(path: Path) -> Path:
    """The absolute path, whose folders are real; what it names may be a link, or gone."""
    path = Path(os.path.abspath(path))
    return path.parent.resolve() / path.name if path.name else path


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
