"""What must be true of an index, and what of it is not.

`quick_problems` counts in the indexes of the tables alone, for a page; `inspect` reads every row.
Both only read, need no sqlite-vec, and take a database of any program and in any state.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from .chunked import hash_of, read_details, text_of
from .chunking import DEFAULT_OVERLAP, DEFAULT_TOKENS, Chunk
from .config import PLUGIN_NAME
from .connections import Connection, sqlite3
from .embeddings import NO_PROVIDER
from .layouts import SIX_TABLES, find_layout
from .passages import has_passages
from .schema import MemoryIndex, as_text, declared_width, has_cjk_column, width_in
from .sources import sha256

if TYPE_CHECKING:
    from .embeddings.base import Vectors

_EXAMPLES = 5
_MAX_EXAMPLE_CHARS = 120
#: More of SQLite's own complaints say no more.
_MOST_COMPLAINTS = 20
#: Vectors with a smaller cosine are of different texts. A server's answers to the same question have a
#: greater one, and so have numbers with fewer digits.
_SAME_TEXT_COSINE = 0.995
#: As far from 1 may the length of a vector be that is written in few digits.
_UNIT_TOLERANCE = 0.01
#: Blobs of vec0, of 1,024 vectors each, that are kept at hand.
_BLOBS = 64
#: Since this version `pragma integrity_check` asks FTS5 as well.
_CHECKS_FTS = (3, 44, 0)

DOCTOR = "datasette agent-memory doctor --fix -d DATABASE"
INDEX = "datasette agent-memory index -d DATABASE"
REBUILD = f"{INDEX} --force"
AFRESH = "datasette agent-memory index FOLDER -d DATABASE --force"

#: Of each code what is said of it, and the command that mends it.
_KINDS: dict[str, tuple[str, str | None]] = {
    "sqlite_damaged": ("SQLite finds the file damaged", REBUILD),
    "indexes_damaged": ("indexes of SQLite's that don't agree with their tables", DOCTOR),
    "tables_missing": ("tables that are missing", INDEX),
    "meta_damaged": ("what the index says of itself in meta is missing or garbled", INDEX),
    "unreadable_rows": ("tables that cannot be read", REBUILD),
    "odd_rows": ("chunks with a value of another type than their column's", DOCTOR),
    "wrong_hashes": ("chunks whose hash is not that of their text", DOCTOR),
    "wrong_ids": ("chunks whose id is not made of their place and text", DOCTOR),
    "other_models": ("chunks of another model than meta says", REBUILD),
    "chunks_of_no_file": ("chunks of no file", DOCTOR),
    "details_of_no_file": ("rows of file_details of no file", DOCTOR),
    "incomplete_files": ("files whose text cannot be put together from their chunks", DOCTOR),
    "fts_missing": ("the full-text table is missing or cannot be read", DOCTOR),
    "fts_damaged": ("FTS5 finds the full-text table damaged", DOCTOR),
    "chunks_without_fts": ("chunks without a row in the full-text table", DOCTOR),
    "fts_of_no_chunk": ("rows of the full-text table of no chunk", DOCTOR),
    "fts_differ": ("rows of the full-text table with another chunk's id, text or place", DOCTOR),
    "vec_missing": ("the vector table is missing", DOCTOR),
    "vec_damaged": ("rows of the vector table that are damaged inside", DOCTOR),
    "vec_width": ("the vector table has another width than meta says", DOCTOR),
    "chunks_without_vec": ("chunks with an embedding and without a row in the vector table", DOCTOR),
    "vec_of_no_chunk": ("rows of the vector table of no chunk", DOCTOR),
    "vec_differ": ("rows of the vector table with another vector than their chunk's", DOCTOR),
    "embeddings_damaged": ("chunks whose embedding is no vector of the index's width", DOCTOR),
    "embeddings_differ": ("chunks whose embedding is not that of their text", DOCTOR),
    "embeddings_not_unit": ("chunks whose embedding is not of unit length", DOCTOR),
    "cache_damaged": ("rows of the cache whose embedding is damaged, or of another width", DOCTOR),
    "cache_differs": ("rows of the cache with the embedding of another text", DOCTOR),
    "pending_wrong": ("the number of waiting chunks in meta is not the number that wait", DOCTOR),
    "vectors_pending": ("chunks that wait for their vector", INDEX),
    "passages_of_no_chunk": ("rows of passages of no chunk", DOCTOR),
    "passages_damaged": ("rows of passages of another width", DOCTOR),
    "passages_missing": ("texts without the vectors of their passages", INDEX),
    "files_changed": ("files that have changed since they were indexed", INDEX),
    "files_missing": ("files that are no longer there", INDEX),
    "files_not_indexed": ("files that are not indexed yet", INDEX),
}


@dataclass(frozen=True)
class Problem:
    """Something that is not as it must be."""

    code: str
    message: str
    count: int
    #: Paths, ids, or what SQLite says: of what is damaged, so of anything.
    examples: tuple[str, ...]
    #: Whether `doctor --fix` mends it.
    is_fixable: bool
    #: The command that mends it, None where none does.
    command: str | None

    @classmethod
    def of(cls, code: str, count: int, examples: tuple[str, ...] = (), is_ours: bool = True) -> Problem:
        what, command = _KINDS[code]
        # Of another program's index nothing is mended here.
        command = command if is_ours else None
        return cls(
            code, f"{what[0].upper()}{what[1:]}: {count:,}", count, examples, command == DOCTOR, command
        )

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "examples": list(self.examples)}


@dataclass
class Findings:
    """What an inspection has found."""

    is_ours: bool
    #: The table of the chunks.
    chunks: str
    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    #: What could not be looked at, in plain words.
    unchecked: list[str] = field(default_factory=list)
    #: The rows of chunks and of the cache whose embedding is not to be used.
    bad_embeddings: set[int] = field(default_factory=set)
    bad_cache: set[int] = field(default_factory=set)
    #: The rows of chunks whose embedding has only another length.
    not_unit: set[int] = field(default_factory=set)
    #: The paths of files that must be read again, and the rows of chunks that must not stay.
    read_again: set[str] = field(default_factory=set)
    bad_chunks: set[int] = field(default_factory=set)

    def add(self, code: str, example: Any = None, count: int = 1) -> None:
        if not count:
            return
        self.counts[code] = self.counts.get(code, 0) + count
        examples = self.examples.setdefault(code, [])
        if example is not None and len(examples) < _EXAMPLES:
            examples.append(as_text(example)[:_MAX_EXAMPLE_CHARS])

    def name_chunks(self, conn: Connection) -> None:
        """Have examples that are ids of chunks say where these are, which is what people know."""
        query = f"select path, start_line from {self.chunks} where id = ?"
        for examples in self.examples.values():
            for number, example in enumerate(examples):
                with suppress(sqlite3.Error):
                    if row := conn.execute(query, (example,)).fetchone():
                        examples[number] = f"{as_text(row[0])}:{as_text(row[1])}"[:_MAX_EXAMPLE_CHARS]

    def problems(self) -> list[Problem]:
        problems = [
            Problem.of(code, self.counts[code], tuple(self.examples[code]), self.is_ours)
            for code in _KINDS
            if code in self.counts
        ]
        if self.is_ours and "meta_damaged" in self.counts:
            # Without it nothing says what the rest was made of, and with which model.
            problems = [replace(one, is_fixable=False, command=AFRESH) for one in problems]
        return problems


def is_ours(conn: Connection, meta: Mapping[str, Any]) -> bool:
    """Whether a database is an index of this project's making, so that it may be mended."""
    if find_layout(conn) not in (None, SIX_TABLES):
        return False
    return meta.get("generator") == PLUGIN_NAME or has_cjk_column(conn, SIX_TABLES)


def quick_problems(conn: Connection, index: MemoryIndex) -> list[Problem]:
    """What counting shows, in a moment even for a large index."""
    layout = index.layout
    chunks, fts, vec = layout.chunks, f"{layout.chunks_fts}_docsize", f"{layout.chunks_vec}_rowids"
    ours = is_ours(conn, index.meta)
    waiting = index.pending if ours and index.provider != NO_PROVIDER else 0
    # In an index of ours both rows of a chunk have one rowid; it stands in a narrow index too.
    without_fts = f"select count(*) from {chunks} where rowid not in (select id from {fts})"
    counts = {
        "chunks_of_no_file": f"select count(*) from {chunks} where path not in"
        f" (select path from {layout.files})",
    }
    if ours and index.has_fts:
        counts["chunks_without_fts"] = without_fts
        counts["fts_of_no_chunk"] = f"select count(*) from {fts} where id not in (select rowid from {chunks})"
    if index.has_vec_table:
        counts["vec_of_no_chunk"] = f"select count(*) from {vec} where id not in (select id from {chunks})"
        if ours:
            counts["chunks_without_vec"] = (
                f"select max(0, count(*) - {waiting}) from {chunks} where id not in (select id from {vec})"
            )
    problems = []
    for code, query in counts.items():
        try:
            count = conn.execute(query).fetchone()[0]
        except sqlite3.Error:  # a table that is not there
            continue
        if count:
            problems.append(Problem.of(code, count, is_ours=ours))
    return problems


def inspect(
    conn: Connection, index: MemoryIndex, progress: Callable[[int, int], None] = lambda done, total: None
) -> Findings:
    """Everything that reading all of an index shows, but for its files on disk."""
    return _Inspection(conn, index, progress).run()


class _Inspection:
    def __init__(self, conn: Connection, index: MemoryIndex, progress: Callable[[int, int], None]) -> None:
        self.conn = conn
        self.index = index
        self.layout = index.layout
        self.progress = progress
        names = conn.execute("select name from sqlite_master where type = 'table'")
        self.tables = {as_text(row[0]) for row in names}
        self.is_ours = is_ours(conn, index.meta)
        self.found = Findings(self.is_ours, self.layout.chunks)
        self.has_vectors = index.provider != NO_PROVIDER
        #: What meta says, before what the vector table says.
        self.dims = width_in(index.meta) or index.dims
        self.waiting = 0
        #: The hashes of the texts that have an embedding, and what the whole ones' hash to.
        self.embedded: set[str] = set()
        self.good: dict[str, int] = {}

    def run(self) -> Findings:
        for check in (
            self._check_sqlite,
            self._check_tables,
            self._check_chunks,
            self._check_cache,
            self._check_fts,
            self._check_texts,
            self._check_passages,
        ):
            try:
                check()
            except sqlite3.Error as error:
                # An error of one table hides nothing of the others.
                self.found.add("unreadable_rows", error)
        return self.found

    def _check_sqlite(self) -> None:
        try:
            rows = self.conn.execute(f"pragma integrity_check({_MOST_COMPLAINTS})").fetchall()
        except sqlite3.OperationalError as error:  # a table that this SQLite is too old for
            self.found.unchecked.append(f"SQLite's own check of the file: {error}")
            rows = []
        lines = [as_text(row[0]) for row in rows]
        names = set(vars(self.layout).values())
        for line in lines:
            if line == "ok":
                continue
            if "fts5" in line.lower():
                self.found.add("fts_damaged", line)
            elif "missing from index" in line or "wrong # of entries in index" in line:
                self.found.add("indexes_damaged", line)
            elif not any(line.startswith(f"non-unique entry in index {name}") for name in names):
                self.found.add("sqlite_damaged", line)
        if sqlite3.sqlite_version_info < _CHECKS_FTS and self.index.has_fts:
            self._ask_fts5()

    def _ask_fts5(self) -> None:
        """FTS5's own check, which is written as a change that changes nothing."""
        fts = self.layout.chunks_fts
        query_only = self.conn.execute("pragma query_only").fetchone()[0]
        try:
            self.conn.execute("pragma query_only = 0")
            self.conn.execute(f"insert into {fts} ({fts}) values ('integrity-check')")
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                self.found.unchecked.append(
                    f"FTS5's own check of {fts}, which in SQLite {sqlite3.sqlite_version} needs a database "
                    f"that can be written: {error}"
                )
            else:
                self.found.add("fts_damaged", error)
        finally:
            self.conn.execute(f"pragma query_only = {query_only}")

    def _check_tables(self) -> None:
        # OpenClaw makes the cache only where it is switched on.
        needed = [self.layout.meta, self.layout.files]
        if self.is_ours:
            needed += [self.layout.embedding_cache, "file_details"]
        for table in needed:
            if table not in self.tables:
                self.found.add("tables_missing", table)
        meta = self.index.meta
        if not meta or (self.is_ours and meta.get("generator") != PLUGIN_NAME) or not meta.get("model"):
            self.found.add("meta_damaged")

    # Chunks and their vectors

    def _check_chunks(self) -> None:
        vectors = VecTable.read(self.conn, self.layout.chunks_vec)
        if vectors:
            for identifier in vectors.damaged:
                self.found.add("vec_damaged", identifier)
            if self.is_ours and self.dims and vectors.dims != self.dims:
                self.found.add("vec_width", f"{vectors.dims} and {self.dims}")
        identifiers = set()
        without_vec = []
        for row in self._chunk_rows():
            rowid, identifier, path, source, start, end, hash, model, text, embedding = row
            identifiers.add(identifier)
            place = (identifier, path, source, hash, model, text)
            if not all(isinstance(value, str) for value in place) or not _is_place(start, end):
                if self.is_ours:
                    self._read_again("odd_rows", rowid, path, identifier)
                continue
            # Of OpenClaw's later layout the hash is that of a text without its annotations.
            if self.layout == SIX_TABLES:
                if sha256(text) != hash:
                    self._read_again("wrong_hashes", rowid, path, identifier)
                elif sha256(f"{source}:{path}:{start}:{end}:{hash}:{model}") != identifier:
                    self._read_again("wrong_ids", rowid, path, identifier)
            if model != self.index.model and self.index.model:
                self.found.add("other_models", identifier)
            if embedding in ("[]", b""):
                self.waiting += self.has_vectors
                continue
            self.embedded.add(hash)
            self._check_embedding(rowid, identifier, hash, embedding, vectors)
            if vectors and identifier not in vectors.places:
                without_vec.append(identifier)
        if vectors:
            for identifier in without_vec:
                self.found.add("chunks_without_vec", identifier)
            for identifier in vectors.places:
                if identifier not in identifiers:
                    self.found.add("vec_of_no_chunk", identifier)
        elif self.embedded and self.is_ours and self.index.has_sqlite_vec:
            # Without sqlite-vec an index has no such table, and needs none.
            self.found.add("vec_missing")
        self._check_waiting()

    def _check_waiting(self) -> None:
        if not self.is_ours:
            return
        if self.has_vectors and self.waiting != self.index.pending:
            self.found.add("pending_wrong", f"{self.index.pending} and {self.waiting}")
        self.found.add("vectors_pending", count=max(0, self.waiting - self.index.refused))

    def _chunk_rows(self) -> Iterator[Any]:
        total = self.index.chunk_count
        rows = self.conn.execute(
            "select rowid, id, path, source, start_line, end_line, hash, model, text, embedding"
            f" from {self.layout.chunks} order by rowid"
        )
        for number, row in enumerate(rows):
            if number % 1000 == 0:
                self.progress(number, total)
            yield row
        self.progress(total, total)

    def _read_again(self, code: str, rowid: int, path: Any, identifier: Any) -> None:
        self.found.add(code, identifier)
        self.found.bad_chunks.add(rowid)
        self.found.read_again.add(path)

    def _check_embedding(
        self, rowid: int, identifier: str, hash: str, embedding: Any, vectors: VecTable | None
    ) -> None:
        import numpy as np

        vector = vector_of(embedding, self.dims)
        if vector is None:
            self.found.add("embeddings_damaged", identifier)
            self.found.bad_embeddings.add(rowid)
            return
        stored = vectors.vector(identifier) if vectors else None
        is_in_vec = stored is not None and _are_alike(vector, stored)
        cached = self._cached(hash, embedding)
        if cached is not None and not _are_alike(vector, cached[1]):
            # Two of three are right.
            if is_in_vec:
                self.found.add("cache_differs", hash)
                self.found.bad_cache.add(cached[0])
            else:
                self.found.add("embeddings_differ", identifier)
                self.found.bad_embeddings.add(rowid)
            return
        self.good[hash] = builtins.hash(embedding)
        # OpenClaw keeps the vectors of a server at the length that they came in.
        if self.is_ours and abs(float(np.linalg.norm(vector)) - 1) > _UNIT_TOLERANCE:
            self.found.add("embeddings_not_unit", identifier)
            self.found.not_unit.add(rowid)
        if stored is not None and not is_in_vec:
            self.found.add("vec_differ", identifier)

    def _cached(self, hash: str, embedding: Any) -> tuple[int, Vectors] | None:
        """The cache's row for a text, where it has another embedding than the chunk and is whole."""
        if not self.is_ours:
            return None
        meta = self.index.meta
        try:
            rows = self.conn.execute(
                f"select rowid, embedding from {self.layout.embedding_cache}"
                " where provider = ? and model = ? and provider_key = ? and hash = ? and embedding <> ?",
                (meta.get("provider"), meta.get("model"), meta.get("providerKey"), hash, embedding),
            ).fetchall()
        except sqlite3.Error:
            return None
        for rowid, cached in rows:
            vector = vector_of(cached, self.dims)
            if vector is not None:
                return rowid, vector
        return None

    def _check_cache(self) -> None:
        cache, meta = self.layout.embedding_cache, self.index.meta
        if cache not in self.tables:
            return
        key = (meta.get("provider"), meta.get("model"), meta.get("providerKey"))
        rows = self.conn.execute(
            f"select rowid, provider, model, provider_key, hash, dims, embedding from {cache}"
        )
        for rowid, provider, model, provider_key, hash, dims, embedding in rows:
            is_own = (provider, model, provider_key) == key
            # What a chunk holds as well has been looked at; a refused text has no vector.
            if (is_own and self.good.get(as_text(hash)) == builtins.hash(embedding)) or (
                embedding == "[]" and not dims
            ):
                continue
            width = dims if isinstance(dims, int) else None
            if vector_of(embedding, width) is None or (
                is_own and self.is_ours and self.dims and width is not None and width != self.dims
            ):
                self.found.add("cache_damaged", hash)
                self.found.bad_cache.add(rowid)

    # Full text

    def _check_fts(self) -> None:
        fts, chunks = self.layout.chunks_fts, self.layout.chunks
        try:
            self.conn.execute(f"select 1 from {fts} where {fts} match '\"x\"' limit 1").fetchone()
        except sqlite3.Error as error:
            if self.is_ours or fts in str(error):
                self.found.add("fts_missing", error)
            return
        columns = ("text", "path", "source", "model", "start_line", "end_line")
        # OpenClaw's rows lie in any order.
        differs = [f"f.{column} is not c.{column}" for column in columns]
        differs += ["f.rowid <> c.rowid"] if self.is_ours else []
        rows = self.conn.execute(
            f"select f.id, c.id is null from {fts} f left join {chunks} c on c.id = f.id"
            f" where c.id is null or {' or '.join(differs)}"
        )
        for identifier, is_orphan in rows:
            self.found.add("fts_of_no_chunk" if is_orphan else "fts_differ", identifier)
        rows = self.conn.execute(f"select id from {fts} group by id having count(*) > 1")
        for (identifier,) in rows:
            self.found.add("fts_differ", identifier)
        rows = self.conn.execute(f"select id from {chunks} where id not in (select id from {fts})")
        for (identifier,) in rows:
            self.found.add("chunks_without_fts", identifier)

    # Files

    def _check_texts(self) -> None:
        files, chunks = self.layout.files, self.layout.chunks
        if not self.index.has_files:
            return
        rows = self.conn.execute(
            f"select path, count(*) from {chunks} where path not in (select path from {files}) group by path"
        )
        for path, count in rows:
            self.found.add("chunks_of_no_file", path, count)
            self.found.read_again.add(path)
        # OpenClaw's chunks alone don't hold all of a file.
        if not self.is_ours:
            return
        if "file_details" in self.tables:
            orphans = f"select path from file_details where path not in (select path from {files})"
            for (path,) in self.conn.execute(orphans):
                self.found.add("details_of_no_file", path)
        without = self.conn.execute(
            f"select path, hash from {files} where path not in (select path from {chunks})"
        ).fetchall()
        of_file = self.conn.execute(
            f"select c.path, f.hash, c.start_line, c.end_line, c.text from {chunks} c"
            f" join {files} f on f.path = c.path order by c.path, c.rowid"
        )
        for (path, hash), rows in groupby(of_file, key=lambda row: (row[0], row[1])):
            whole = [
                Chunk(start, end, text)
                for *_, start, end, text in rows
                if _is_place(start, end) and isinstance(text, str)
            ]
            self._check_text(path, hash, whole)
        for path, hash in without:
            self._check_text(path, hash, [])

    def _check_text(self, path: Any, hash: Any, chunks: list[Chunk]) -> None:
        tokens, overlap = self.index.meta.get("chunkTokens"), self.index.meta.get("chunkOverlap")
        details = read_details(self.conn, path)
        text = text_of(
            chunks,
            details,
            tokens if isinstance(tokens, int) else DEFAULT_TOKENS,
            overlap if isinstance(overlap, int) else DEFAULT_OVERLAP,
        )
        if hash_of(text, details.line_numbers) != hash:
            self.found.add("incomplete_files", path)
            self.found.read_again.add(path)

    def _check_passages(self) -> None:
        if not self.index.has_passages or not has_passages(self.conn):
            return
        rows = self.conn.execute("select hash, typeof(embeddings), length(embeddings) from passages")
        known = set()
        for hash, kind, length in rows:
            known.add(hash)
            if hash not in self.embedded:
                self.found.add("passages_of_no_chunk", hash)
            elif kind != "blob" or (self.dims and length % self.dims):
                self.found.add("passages_damaged", hash)
        for hash in self.embedded - known:
            self.found.add("passages_missing", hash)


def vector_of(value: Any, dims: int | None) -> Vectors | None:
    """A stored embedding of this width, or of any: a JSON array, or a blob as OpenClaw's later
    databases have; None where it is damaged."""
    from .embeddings.base import usable_embedding

    if not isinstance(value, bytes):
        return usable_embedding(value, dims)
    import numpy as np

    kind = "<f8" if dims and len(value) == dims * 8 else "<f4"
    if not value or len(value) % np.dtype(kind).itemsize:
        return None
    vector = np.frombuffer(value, dtype=kind).astype(np.float32)
    if dims and len(vector) != dims:
        return None
    return vector if np.isfinite(vector).all() and vector.any() else None


class VecTable:
    """The rows of a vec0 table, read in its shadow tables: so that sqlite-vec is not needed."""

    def __init__(self, conn: Connection, table: str, dims: int) -> None:
        self._conn = conn
        self._table = table
        self.dims = dims
        #: The chunk of the table, and the place in it, of each id.
        self.places: dict[str, tuple[int, int]] = {}
        #: The ids whose place is not theirs.
        self.damaged: list[Any] = []
        self._blob = lru_cache(_BLOBS)(self._read_blob)

    @classmethod
    def read(cls, conn: Connection, table: str) -> VecTable | None:
        """None where there is no such table."""
        row = conn.execute(
            "select sql from sqlite_master where name = ? and type = 'table'", (table,)
        ).fetchone()
        dims = declared_width(row[0]) if row else None
        if dims is None:
            return None
        rows = cls(conn, table, dims)
        rows._read_places()
        return rows

    def vector(self, identifier: str) -> Vectors | None:
        import numpy as np

        if identifier not in self.places:
            return None
        chunk, offset = self.places[identifier]
        blob = self._blob(chunk)
        width = self.dims * 4
        part = blob[offset * width : (offset + 1) * width]
        return np.frombuffer(part, dtype="<f4") if len(part) == width else None

    def _read_places(self) -> None:
        import numpy as np

        taken: dict[int, dict[int, tuple[int, Any]]] = {}
        for rowid, identifier, chunk, offset in self._conn.execute(
            f"select rowid, id, chunk_id, chunk_offset from {self._table}_rowids"
        ):
            if not isinstance(offset, int) or offset in taken.setdefault(chunk, {}):
                self.damaged.append(identifier)
                continue
            taken[chunk][offset] = (rowid, identifier)
            self.places[identifier] = (chunk, offset)
        rows = self._conn.execute(
            f"select chunk_id, size, validity, rowids from {self._table}_chunks"
        ).fetchall()
        lengths = dict(
            self._conn.execute(f"select rowid, length(vectors) from {self._table}_vector_chunks00").fetchall()
        )
        for chunk, size, validity, rowids in rows:
            places = taken.pop(chunk, {})
            is_sound = (
                isinstance(validity, bytes)
                and isinstance(rowids, bytes)
                and len(validity) * 8 == size
                and len(rowids) == size * 8
                and lengths.get(chunk) == size * self.dims * 4
            )
            if not is_sound:
                self.damaged += [identifier for _, identifier in places.values()] or [f"chunk {chunk}"]
                continue
            valid = np.flatnonzero(np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little"))
            numbers = np.frombuffer(rowids, "<i8")
            if set(valid.tolist()) != places.keys():
                ghosts = set(valid.tolist()) ^ places.keys()
                self.damaged += [
                    places[offset][1] if offset in places else f"row {numbers[offset]}" for offset in ghosts
                ]
            self.damaged += [
                identifier
                for offset, (rowid, identifier) in places.items()
                if offset < size and numbers[offset] != rowid
            ]
        self.damaged += [identifier for places in taken.values() for _, identifier in places.values()]

    def _read_blob(self, chunk: int) -> bytes:
        row = self._conn.execute(
            f"select vectors from {self._table}_vector_chunks00 where rowid = ?", (chunk,)
        ).fetchone()
        return row[0] if row and isinstance(row[0], bytes) else b""


def _is_place(start: Any, end: Any) -> bool:
    return isinstance(start, int) and isinstance(end, int) and 0 < start <= end <= 10_000_000


def _are_alike(one: Vectors, other: Vectors) -> bool:
    """Whether two vectors are of one text, whatever their lengths."""
    import numpy as np

    if len(one) != len(other):
        return False
    lengths = float(np.linalg.norm(one)), float(np.linalg.norm(other))
    if not all(0 < length < np.inf for length in lengths):
        return False
    return float(one @ other) >= _SAME_TEXT_COSINE * lengths[0] * lengths[1]
