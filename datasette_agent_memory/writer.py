"""The one writer of an index.

Whatever it changes is one transaction, so that readers, crashes and other runs see an
index before or after, and never between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, takewhile
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chunked import FileDetails, read_details
from .chunking import Chunk
from .compact_form import COMPACT_DECIMALS, cache_chunks, drop_held, is_compact, set_compact
from .config import PLUGIN_NAME
from .connections import (
    INSTALL_SQLITE_VEC,
    Connection,
    DatabaseError,
    has_sqlite_vec,
    sqlite3,
    transaction,
    use_wal,
)
from .context import Place, context_terms
from .embeddings import KEYWORDS_ONLY_MODEL, NO_PROVIDER
from .embeddings.base import to_json, usable_embedding
from .embeddings.cache import NO_EMBEDDING, Embedding, EmbeddingCache, prune
from .keywords import cjk_terms
from .layouts import SIX_TABLES, find_layout
from .passages import has_passages
from .schema import (
    FTS_TOKENIZER,
    PENDING_KEY,
    create_tables,
    create_vec_table,
    has_cjk_column,
    read_meta,
    read_pending,
    width_in,
    write_meta,
)
from .scopes import paths_of
from .sources import SESSIONS, SourceFile, SourceText, sha256

if TYPE_CHECKING:
    from .embeddings.base import Provider, Vectors
    from .embeddings.batches import Text

#: How the columns of chunks_fts are made that hold more than the text.
_SEARCH_TERMS = "bigrams, context 2"

_INSERT_FTS = (
    "insert into chunks_fts (rowid, text, id, path, source, model, start_line, end_line, cjk, context)"
    " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_VEC = "insert into chunks_vec (id, embedding) values (?, ?)"


@dataclass(frozen=True)
class Changes:
    """What a new version of a file changes of its chunks."""

    kept: int
    added: int
    #: The rows of chunks that go.
    outdated: Sequence[Any]


@dataclass(frozen=True)
class ChunkedFile:
    """A file that is new or changed, its chunks, and the hashes of their texts."""

    file: SourceFile
    content: SourceText
    details: FileDetails
    chunks: list[Chunk]
    hashes: list[str]

    def chunk_ids(self, model: str) -> list[str]:
        """The ids of its chunks, as the peer makes them; equal segments of a line share one."""
        return [
            sha256(f"{self.file.source}:{self.file.path}:{chunk.start_line}:{chunk.end_line}:{hash}:{model}")
            for chunk, hash in zip(self.chunks, self.hashes, strict=True)
        ]


class IndexWriter:
    """Writes an index with the vectors of one provider and chunks of one size."""

    def __init__(
        self,
        conn: Connection,
        database: Path,
        root: Path,
        provider: Provider | None,
        chunk_tokens: int,
        chunk_overlap: int,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        """Raises DatabaseError where the database cannot be written or is another program's.

        `on_wait` is called while another process writes, as `transaction` says.
        """
        self.conn = conn
        self._on_wait = on_wait
        self._root = str(root)
        self._provider = provider
        self.provider = provider.name if provider else NO_PROVIDER
        self.model = provider.model if provider else KEYWORDS_ONLY_MODEL
        self._has_sqlite_vec = has_sqlite_vec(conn)
        self._cache = EmbeddingCache(conn, provider) if provider else None
        #: What of `meta` says how chunks, terms and vectors were made: a change needs a rebuild.
        self._identity = {
            "model": self.model,
            "provider": self.provider,
            "providerKey": provider.key if provider else "",
            "chunkTokens": chunk_tokens,
            "chunkOverlap": chunk_overlap,
            "ftsTokenizer": FTS_TOKENIZER,
            "searchTerms": _SEARCH_TERMS,
        }
        self.has_index = check_database(conn, database)
        self.meta = read_meta(conn) if self.has_index else {}
        self._first_meta = self.meta
        #: Whether the database says of itself that it is an index of this project's.
        self.is_ours = self.meta.get("generator") == PLUGIN_NAME
        tables = self._tables()
        self._has_vec_table = self._has_sqlite_vec and SIX_TABLES.chunks_vec in tables
        # Where some of an index of ours is gone, what is left of it cannot be trusted.
        own = {"meta", "files", "chunks", "embedding_cache", "file_details"}
        is_damaged = self.has_index and not tables >= own
        self.needs_rebuild = self.has_index and (is_damaged or not self._is_alike(self.meta))
        #: The width of the vectors, None where that is known only from the first one.
        self.dims = provider.dims if provider else None
        if provider is not None and self.has_index and not self.needs_rebuild:
            dims = width_in(self.meta)
            self.needs_rebuild = None not in (self.dims, dims) and self.dims != dims
            self.dims = self.dims or dims
        self._pending_rows: dict[str, list[tuple[int, str]]] = {}
        #: The number of chunks of each file that has any, by path.
        self.chunk_counts: dict[str, int] = {}
        if self.has_index and "chunks" in tables:
            self.chunk_counts = dict(
                conn.execute("select path, count(*) from chunks group by path").fetchall()
            )
        #: The hash of each file of the index, by path; none for one of which only chunks are left.
        self.known: dict[str, str] = dict.fromkeys(self.chunk_counts, "")
        if self.has_index and "files" in tables:
            self.known |= dict(conn.execute("select path, hash from files").fetchall())
        #: Size and time of each transcript of the index, by path.
        self.transcripts: dict[str, tuple[int, int]] = {}
        if self.has_index and "files" in tables:
            self.transcripts = {
                path: (size, mtime)
                for path, size, mtime in conn.execute(
                    "select path, size, mtime from files where source = ?", (SESSIONS,)
                )
            }
        #: Whether there are not as many chunks as at the end of the last run.
        self.has_lost_chunks = self.meta.get("chunks") != sum(self.chunk_counts.values())

    # What is there

    def count_chunks(self) -> int:
        return self._count("chunks") if "chunks" in self._tables() else 0

    def count_pending(self) -> int:
        """How many chunks wait for a vector of this writer's provider."""
        return read_pending(self.conn) if self._provider and self.has_index else 0

    def has_own_vectors(self) -> bool:
        """Whether the index, as it is now, has vectors of this writer's provider."""
        meta = read_meta(self.conn)
        is_own = all(meta.get(name) == self._identity[name] for name in ("provider", "model", "providerKey"))
        return is_own and self.count_chunks() > read_pending(self.conn)

    def cached(self, hashes: Iterable[str]) -> dict[str, Embedding]:
        """The embeddings that the cache has of these text hashes."""
        return self._cache.read(hashes, self.dims) if self._cache else {}

    def pending_texts(self, without: Container[str] = ()) -> list[Text]:
        """The texts of the chunks that wait for their vector, each once, without those of some paths."""
        from .embeddings.batches import Text

        self._pending_rows.clear()
        texts: dict[str, Text] = {}
        if not self.count_pending():
            return []
        rows = self.conn.execute(
            "select rowid, id, hash, text, path, start_line, end_line from chunks where embedding = ?"
            " order by rowid",
            (NO_EMBEDDING,),
        )
        for rowid, identifier, hash, *text in rows:
            if text[1] in without:
                continue
            self._pending_rows.setdefault(hash, []).append((rowid, identifier))
            texts.setdefault(hash, Text(hash, *text))
        return list(texts.values())

    # What is changed

    def prepare(self, paths: Mapping[str, Sequence[str]], more: Mapping[str, Any]) -> None:
        """Make tables that are missing, and fill those that don't agree with `chunks`."""
        use_wal(self.conn)
        if self.has_index and self._tables_agree():
            return
        with self.writing():
            create_tables(self.conn)
            self.has_index = True
            self._fill_fts()
            self._fill_vec()
            self._count_pending_again()
            # All of it, so that a run which goes on after a crash is the same one.
            self.write_meta(paths, more)

    def prepare_cache(self) -> None:
        """Make the tables that are missing, so that embeddings can be cached ahead of a rebuild."""
        use_wal(self.conn)
        with self.writing():
            create_tables(self.conn)

    @contextmanager
    def rebuilding(self) -> Iterator[None]:
        """One transaction that begins with an index without files; the old one answers until its end."""
        use_wal(self.conn)
        with self.writing():
            if is_compact(self.conn):
                cache_chunks(self.conn, self.meta)
            for table in ("chunks", "files", "file_details", "chunks_fts", "chunks_vec"):
                self.conn.execute(f"drop table if exists {table}")
            self._has_vec_table = False
            self.conn.execute("delete from meta where key = ?", (PENDING_KEY,))
            create_tables(self.conn)
            self._fill_vec()
            yield

    def fill_tables(self, fts: bool = True, vec: bool = True) -> None:
        """Make the full-text and the vector table again from chunks."""
        with self.writing():
            if fts:
                self._fill_fts()
            if vec:
                self._fill_vec()
            self._count_pending_again()

    def cache(self, embeddings: dict[str, Embedding]) -> None:
        """Keep embeddings by the hashes of their texts."""
        assert self._cache is not None and self.dims is not None
        with self.writing():
            self._cache.write(embeddings, self.dims)

    def write_vectors(self, embeddings: dict[str, Embedding]) -> None:
        """Keep embeddings by the hashes of their texts, and give them to the chunks that wait for them."""
        with self.writing():
            self.cache(embeddings)
            done = 0
            for hash, embedding in embeddings.items():
                for rowid, identifier in self._pending_rows.get(hash, ()):
                    # Another run may have replaced the chunk, or embedded it, meanwhile.
                    is_ours = self.conn.execute(
                        "update chunks set embedding = ? where rowid = ? and id = ? and embedding = ?",
                        (embedding, rowid, identifier, NO_EMBEDDING),
                    ).rowcount
                    if is_ours:
                        self._insert_vec(identifier, embedding)
                        done += 1
            self._add_pending(-done)

    def change_width(self, dims: int) -> None:
        """Take the width of the first vector, and forget embeddings of any other."""
        if self.dims is not None and self._cache is not None:
            with self.writing():
                self._cache.forget_other_widths(dims)
        self.dims = dims

    def refuse(self, hashes: Iterable[str]) -> None:
        """Remember texts that the provider refuses, so that they are not sent to it again."""
        assert self._cache is not None
        with self.writing():
            self._cache.write_refused(hashes)

    def refused(self, hashes: Iterable[str]) -> set[str]:
        """Those of the texts that the provider has refused."""
        return self._cache.refused(hashes) if self._cache else set()

    def forget_refused(self) -> None:
        """Have refused texts sent again."""
        if self._cache:
            with self.writing():
                self._cache.forget_refused()

    def count_refused(self) -> int:
        """How many of the chunks without a vector have a text that the provider has refused."""
        if not self.count_pending():
            return 0
        counts = dict(
            self.conn.execute(
                "select hash, count(*) from chunks where embedding = ? group by hash", (NO_EMBEDDING,)
            ).fetchall()
        )
        return sum(counts[hash] for hash in self.refused(counts))

    def drop_passages(self) -> None:
        """Drop the vectors of passages, which this writer's provider does not have."""
        if has_passages(self.conn):
            with self.writing():
                self.conn.execute("drop table passages")

    def note_failure(self, failure: str) -> None:
        """Say in an index that stays as it is why it was not made again."""
        with self.writing():
            meta = {**read_meta(self.conn), "failure": failure}
            write_meta(self.conn, meta)
        self.meta = meta

    def as_stored(self, vector: Vectors) -> Embedding:
        """A vector as this index holds it."""
        return to_json(vector, COMPACT_DECIMALS if is_compact(self.conn) else None)

    def keep_compact(self) -> None:
        """Where an index is compact, drop from its cache what its chunks hold by now."""
        if is_compact(self.conn):
            with self.writing():
                # A rebuild has made the table anew, without it.
                set_compact(self.conn, True)
                drop_held(self.conn, self.meta)

    def prune_cache(self, most: int) -> None:
        """Keep the newest rows of the cache, of all providers, up to this number."""
        if self._count("embedding_cache") > most:
            with self.writing():
                prune(self.conn, most)

    def changes(self, file: ChunkedFile) -> Changes:
        """What of a file's chunks is to be written, and what is there instead.

        The chunks before the first change stay: of a file that grows all but the last.
        """
        identifiers = list(dict.fromkeys(file.chunk_ids(self.model)))
        there = self._rows_of(file.file.path)
        kept = 0
        # Where some of a file is damaged or lost, it is written as a whole.
        is_whole = bool(self.known.get(file.file.path)) and not self.has_lost_chunks
        if is_whole and read_details(self.conn, file.file.path).properties == file.details.properties:
            same = takewhile(lambda pair: pair[0] == pair[1]["id"], zip(identifiers, there, strict=False))
            kept = sum(1 for _ in same)
        return Changes(kept, len(identifiers) - kept, there[kept:])

    def write_file(self, file: ChunkedFile, embeddings: dict[str, Embedding]) -> Changes:
        """Put a file in its place, with those embeddings of its text hashes that are known."""
        with self.writing():
            changes = self.changes(file)
            self._delete_chunks(changes.outdated)
            self._insert(file, embeddings, changes.kept)
        return changes

    def delete_file(self, path: str) -> int:
        """Remove a file from the index; the number of chunks removed."""
        with self.writing():
            rows = self._rows_of(path)
            self._delete_chunks(rows)
            for table in ("files", "file_details"):
                self.conn.execute(f"delete from {table} where path = ?", (path,))
            return len(rows)

    def write_meta(
        self,
        paths: Mapping[str, Sequence[str]],
        more: Mapping[str, Any],
        is_rebuilt: bool = False,
    ) -> None:
        """Say how the index was made and what is in it, unless it says so.

        `paths` are those that it is made of, beside its root, by their names in `meta`.
        """
        now = read_meta(self.conn)
        if not is_rebuilt:
            # Those that another run has added meanwhile stay.
            paths = {
                name: [*ours, *(path for path in paths_of(now, name) if path not in {*ours, *before})]
                for name, ours in paths.items()
                for before in [paths_of(self._first_meta, name)]
            }
        meta = {
            **self._identity,
            "vectorDims": self.dims,
            "generator": PLUGIN_NAME,
            "root": self._root,
            **paths,
            "chunks": self._count("chunks"),
            **more,
        }
        if self._provider is not None:
            meta |= {
                "dimensions": self._provider.dimensions,
                "prompts": self._provider.prompts.as_json(),
                "normalised": True,
                **self._provider.location,
            }
        if meta != now:
            with self.writing():
                write_meta(self.conn, meta)
        self.meta = meta

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction, on an index that no other run has made with other settings meanwhile."""
        with transaction(self.conn, self._on_wait):
            meta = read_meta(self.conn)
            is_ours = self._is_alike(meta) and meta.get("root") == self._root
            if meta and meta != self.meta and not is_ours:
                raise DatabaseError(
                    "another run has made the index of another folder or with other settings meanwhile; "
                    "run again"
                )
            # Another run may have made it meanwhile.
            self._has_vec_table = self._has_sqlite_vec and SIX_TABLES.chunks_vec in self._tables()
            yield

    def _is_alike(self, meta: dict[str, Any]) -> bool:
        return all(meta.get(name) == value for name, value in self._identity.items())

    def _tables_agree(self) -> bool:
        """Whether full-text and vector tables are there, with as many rows as there are chunks."""
        try:
            chunks = self._count("chunks")
            # It must answer a search as well: a table may be there without its index.
            self.conn.execute("select 1 from chunks_fts where chunks_fts match '\"x\"' limit 1").fetchone()
            if self._count("chunks_fts_docsize") != chunks:
                return False
            if not self._has_sqlite_vec or self._provider is None:
                return True
            embedded = chunks - read_pending(self.conn)
            return (self._count("chunks_vec_rowids") if self._has_vec_table else 0) == embedded
        except sqlite3.Error:
            return False

    def _fill_fts(self) -> None:
        """Make chunks_fts again from chunks, in a transaction of the caller's."""
        self.conn.execute("drop table if exists chunks_fts")
        create_tables(self.conn)
        rows = self.conn.execute(
            "select path, rowid, text, id, source, model, start_line, end_line from chunks"
            " order by path, start_line, rowid"
        )
        for path, of_file in groupby(rows, key=itemgetter(0)):
            self._insert_fts(path, [tuple(row[1:]) for row in of_file], read_details(self.conn, path).words)

    def _fill_vec(self) -> None:
        """Make chunks_vec again from chunks; a file with a damaged embedding is read again."""
        if not self._has_sqlite_vec or self.dims is None:
            return
        create_vec_table(self.conn, self.dims)
        self._has_vec_table = True
        rows = self.conn.execute(
            "select id, path, embedding from chunks where embedding <> ? order by rowid", (NO_EMBEDDING,)
        )
        for identifier, path, embedding in rows:
            if usable_embedding(embedding, self.dims) is None:
                self.known[path] = ""
            else:
                self._insert_vec(identifier, embedding)

    def _insert_vec(self, identifier: str, embedding: Embedding) -> None:
        if not self._has_sqlite_vec:
            return
        if not self._has_vec_table:
            # The width is known only now.
            assert self.dims is not None
            create_vec_table(self.conn, self.dims)
            self._has_vec_table = True
        vector = usable_embedding(embedding, self.dims)
        assert vector is not None
        self.conn.execute(_INSERT_VEC, (identifier, vector.astype("<f4").tobytes()))

    def _count_pending_again(self) -> None:
        pending = self.conn.execute(
            "select count(*) from chunks where embedding = ?", (NO_EMBEDDING,)
        ).fetchone()[0]
        self._add_pending(pending - read_pending(self.conn))

    def _add_pending(self, chunks: int) -> None:
        if chunks and self._provider is not None:
            self.conn.execute(
                "insert into meta (key, value) values (?, ?)"
                " on conflict (key) do update set value = max(0, cast(value as integer) + ?)",
                (PENDING_KEY, str(max(0, chunks)), chunks),
            )

    def _insert(self, file: ChunkedFile, embeddings: dict[str, Embedding], kept: int) -> None:
        """Write a file's chunks but for the first ones, which are there."""
        now = _now_ms()
        path, source, content = file.file.path, file.file.source, file.content
        pending = 0
        inserted: list[tuple[Any, ...]] = []
        # Equal segments of one long line are one chunk, here as in the peer.
        chunks = {
            identifier: (chunk, hash)
            for identifier, chunk, hash in zip(
                file.chunk_ids(self.model), file.chunks, file.hashes, strict=True
            )
        }
        for identifier, (chunk, hash) in list(chunks.items())[kept:]:
            place = (path, source, chunk.start_line, chunk.end_line)
            embedding = embeddings.get(hash, NO_EMBEDDING)
            cursor = self.conn.execute(
                "insert into chunks (id, path, source, start_line, end_line, hash, model, text,"
                " embedding, updated_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (identifier, *place, hash, self.model, chunk.text, embedding, now),
            )
            inserted.append(
                (
                    cursor.lastrowid,
                    chunk.text,
                    identifier,
                    source,
                    self.model,
                    chunk.start_line,
                    chunk.end_line,
                )
            )
            if embedding == NO_EMBEDDING:
                pending += 1
            else:
                self._insert_vec(identifier, embedding)
        details = file.details
        self.conn.execute(
            "insert or replace into files (path, source, hash, mtime, size) values (?, ?, ?, ?, ?)",
            (path, source, content.hash, content.mtime_ms, content.size),
        )
        self.conn.execute("delete from file_details where path = ?", (path,))
        if details:
            self.conn.execute(
                "insert into file_details (path, front_matter, properties, lines, whole)"
                " values (?, ?, ?, ?, ?)",
                (path, details.front_matter, details.properties, details.lines, details.whole),
            )
        before = [(chunk.start_line, chunk.end_line, chunk.text) for chunk, _ in list(chunks.values())[:kept]]
        try:
            self._insert_fts(path, inserted, details.words, before)
        except sqlite3.IntegrityError:
            self._fill_fts()
        self._add_pending(pending)

    def _insert_fts(
        self,
        path: str,
        rows: Sequence[tuple[Any, ...]],
        properties: str,
        before: Sequence[Place] = (),
    ) -> None:
        """The rows of one file's chunks: rowid, text, id, source, model, start and end line.

        `before` are the chunks that come before them.
        """
        places = [*before, *((start, end, text) for _, text, *_, start, end in rows)]
        contexts = context_terms(path, places, properties)[len(before) :]
        self.conn.executemany(
            _INSERT_FTS,
            (
                (rowid, text, identifier, path, *place, cjk_terms(text), context)
                for (rowid, text, identifier, *place), context in zip(rows, contexts, strict=True)
            ),
        )

    def _rows_of(self, path: str) -> list[Any]:
        """The rows of a file's chunks, in order."""
        rows: list[Any] = self.conn.execute(
            "select rowid, id, embedding = ? as is_pending from chunks where path = ? order by rowid",
            (NO_EMBEDDING, path),
        ).fetchall()
        return rows

    def _delete_chunks(self, rows: Sequence[Any]) -> None:
        aligned = True
        compact = is_compact(self.conn)
        for rowid, identifier, _ in rows:
            if compact:
                cache_chunks(self.conn, self.meta, "rowid = ?", rowid)
            # A row of chunks and its row of chunks_fts share their rowid, so that no scan is
            # needed, until somebody's VACUUM gives the rows of chunks other ones.
            deleted = self.conn.execute(
                "delete from chunks_fts where rowid = ? and id = ?", (rowid, identifier)
            ).rowcount
            aligned = aligned and deleted == 1
            if self._has_vec_table:
                self.conn.execute("delete from chunks_vec where id = ?", (identifier,))
            self.conn.execute("delete from chunks where rowid = ?", (rowid,))
        self._add_pending(-sum(is_pending for *_, is_pending in rows))
        if not aligned:
            self._fill_fts()

    def _count(self, table: str) -> int:
        count: int = self.conn.execute(f"select count(*) from {table}").fetchone()[0]
        return count

    def _tables(self) -> set[str]:
        return _table_names(self.conn)


def check_database(conn: Connection, database: Path) -> bool:
    """Whether the database has an index of ours; raises DatabaseError where it has another's."""
    tables = _table_names(conn)
    taken = sorted(tables & set(vars(SIX_TABLES).values()))
    if read_meta(conn).get("generator") != PLUGIN_NAME and not has_cjk_column(conn, SIX_TABLES):
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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
