"""Vectors of the passages of a chunk: its lines, bullets and sentences.

One vector for a chunk of several short facts is diluted: none of them is near to it. Where a
provider says so, each longer chunk has a vector for each of its passages as well, and the
best of them counts. It is a mixture of the passage's vector with the chunk's, which keeps
what the passage is about. docs/search-quality.md has the measurements behind the numbers.

The table `passages` has a row for each text of `chunks`, by its hash; it is derived from
the chunks alone, and a search without it is only less sharp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .connections import Connection, sqlite3
from .embeddings.cache import NO_EMBEDDING

if TYPE_CHECKING:
    from .embeddings.base import Provider, Vectors

#: A passage goes on until it has this many characters, a CJK one counting three times.
_PASSAGE_CHARS = 120
#: A longer line is cut into its sentences.
_LONGEST_LINE_CHARS = 240
#: A shorter chunk is one passage itself.
_SHORTEST_CHUNK_CHARS = 400
#: The share of the chunk's vector in that of each of its passages.
_CHUNK_SHARE = 0.6

#: Another way of making the rows needs another number here.
_VERSION = 1
#: So many texts are embedded at once.
_BATCH_TEXTS = 128

_HEADING = re.compile(r"#{1,6}\s")
_SENTENCE_END = re.compile(r"(?<=[.!?؟])\s+|(?<=[。！？；])")
_WIDE = re.compile("[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")


def split(text: str) -> list[str]:
    """The passages of a chunk, at least two, or none where it is one itself."""
    if _size(text) <= _SHORTEST_CHUNK_CHARS:
        return []
    passages: list[str] = []
    room = 0
    for unit in _units(text):
        size = _size(unit)
        if passages and size <= room:
            passages[-1] += " " + unit
            room -= size
        else:
            passages.append(unit)
            room = _PASSAGE_CHARS - size
    passages = list(dict.fromkeys(passages))
    return passages if len(passages) > 1 else []


def _units(text: str) -> Iterator[str]:
    """The lines of a text without headings, and the sentences of long ones, put together again
    as long as they are short."""
    for line in map(str.strip, text.split("\n")):
        if not line or _HEADING.match(line):
            continue
        if _size(line) <= _LONGEST_LINE_CHARS:
            yield line
            continue
        unit = ""
        for sentence in filter(None, map(str.strip, _SENTENCE_END.split(line))):
            if unit and _size(unit) + _size(sentence) > _LONGEST_LINE_CHARS:
                yield unit
                unit = sentence
            else:
                unit = f"{unit} {sentence}".strip()
        yield unit


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text) + 2 * len(_WIDE.findall(text))


def pack(chunk: Vectors, passages: Vectors) -> bytes:
    """The mixed vectors, array of shape (passages, dims), as rows of int8.

    Each row is scaled by its greatest value, which changes no cosine, and rounded, which
    changes it by less than 0.002.
    """
    mixed = _CHUNK_SHARE * chunk + (1 - _CHUNK_SHARE) * passages
    greatest = np.abs(mixed).max(axis=1, keepdims=True)
    return np.round(mixed / np.where(greatest > 0, greatest, 1) * 127).astype(np.int8).tobytes()


def unpack(packed: object, dims: int) -> Vectors | None:
    """Array of shape (passages, dims), of no certain length; None for none, or of another width."""
    if not isinstance(packed, bytes) or not packed or len(packed) % dims:
        return None
    return np.frombuffer(packed, dtype=np.int8).reshape(-1, dims).astype(np.float32)


def has_passages(conn: Connection) -> bool:
    """Whether a database has the table."""
    columns = {row[1] for row in conn.execute("pragma main.table_info(passages)")}
    return columns >= {"hash", "maker", "embeddings"}


def create_passages(conn: Connection) -> None:
    """Make the table where it is not there, in a transaction of the caller's."""
    conn.execute(
        "create table if not exists passages"
        " (hash text primary key not null, maker text not null, embeddings blob not null)"
    )
    conn.execute("create index if not exists idx_chunks_hash on chunks (hash)")


class PassageTable:
    """The table `passages` of an index that one provider's vectors are in."""

    def __init__(self, conn: Connection, provider: Provider) -> None:
        self._conn = conn
        self._provider = provider
        self._maker = f"{provider.key} {_VERSION}"

    def is_free(self) -> bool:
        """Whether no other program has something else of this name."""
        taken = self._conn.execute("select 1 from sqlite_master where name = 'passages'").fetchone()
        return taken is None or has_passages(self._conn)

    def prepare(self) -> None:
        """Make the table, and drop rows of other makers or texts, in a transaction of the caller's."""
        create_passages(self._conn)
        self._conn.execute(
            "delete from passages where maker <> ? or hash not in (select hash from chunks)", (self._maker,)
        )

    def is_current(self) -> bool:
        """Whether every text with a vector has its row, and no other text has one."""
        try:
            missing = self._conn.execute(f"{self._missing('1')} limit 1", (self._maker, NO_EMBEDDING))
            if missing.fetchone() is not None:
                return False
            stale = "select 1 from passages where maker <> ? or hash not in (select hash from chunks) limit 1"
            return self._conn.execute(stale, (self._maker,)).fetchone() is None
        except sqlite3.Error:  # no such table
            return False

    def missing(self) -> list[str]:
        """The hashes of the texts without a row."""
        rows = self._conn.execute(self._missing("distinct hash"), (self._maker, NO_EMBEDDING)).fetchall()
        return [hash for (hash,) in rows]

    def _missing(self, columns: str) -> str:
        # The hashes are all in the index by hash; only what is missing is looked up in the table.
        return (
            f"select {columns} from chunks where hash not in (select hash from passages where maker = ?)"
            " and embedding <> ?"
        )

    def make(self, hashes: Sequence[str]) -> Iterator[dict[str, bytes]]:
        """The rows of these texts, some at a time; raises EmbeddingError."""
        waiting: list[tuple[str, Any, list[str]]] = []
        for hash in hashes:
            row = self._conn.execute(
                "select text, embedding from chunks where hash = ? and embedding <> ? limit 1",
                (hash, NO_EMBEDDING),
            ).fetchone()
            if row is None:  # since a moment ago
                continue
            from .embeddings.base import usable_embedding

            vector = usable_embedding(row[1], self._provider.dims)
            waiting.append((hash, vector, split(row[0]) if vector is not None else []))
            if sum(len(passages) for _, _, passages in waiting) >= _BATCH_TEXTS:
                yield self._embedded(waiting)
                waiting = []
        yield self._embedded(waiting)

    def _embedded(self, waiting: list[tuple[str, Any, list[str]]]) -> dict[str, bytes]:
        from .embeddings.base import guarded

        # Neighbouring chunks overlap, and share passages.
        texts = list(dict.fromkeys(passage for _, _, passages in waiting for passage in passages))
        places = {text: place for place, text in enumerate(texts)}
        vectors = guarded(self._provider, lambda: self._provider.embed_documents(texts))
        return {
            # A row without vectors says that the text has been looked at.
            hash: pack(vector, vectors[[places[passage] for passage in passages]]) if passages else b""
            for hash, vector, passages in waiting
        }

    def write(self, rows: dict[str, bytes]) -> None:
        """Keep rows, in a transaction of the caller's."""
        self._conn.executemany(
            "insert or replace into passages (hash, maker, embeddings) values (?, ?, ?)",
            ((hash, self._maker, embeddings) for hash, embeddings in rows.items()),
        )
