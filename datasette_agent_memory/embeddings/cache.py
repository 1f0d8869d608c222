"""The table `embedding_cache`: what has been embedded once is not paid for again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from ..connections import Connection, sqlite3
from .base import Provider, to_json, unit_length, usable_embedding

#: An embedding as it is stored: JSON text.
Embedding = str

#: That of a text that has none: for good without a provider, or where it is refused, else until
#: it is embedded.
NO_EMBEDDING: Embedding = "[]"


class EmbeddingCache:
    """The embeddings of one provider in a database's `embedding_cache`, by the hashes of texts."""

    def __init__(self, conn: Connection, provider: Provider) -> None:
        from ..compact_form import is_compact, is_made_by  # which needs this module

        self._conn = conn
        self._provider = provider
        #: Whether the chunks hold embeddings of this provider that the cache does not.
        self._has_chunks = is_compact(conn) and is_made_by(conn, provider)

    def read(self, hashes: Iterable[str], dims: int | None) -> dict[str, Embedding]:
        """The embeddings of this width, or of the first one's, that are there; a damaged one counts as
        none."""
        found: dict[str, Embedding] = {}
        for hash in hashes:
            for embedding in self._stored(hash):
                vector = usable_embedding(embedding, dims)
                if vector is not None:
                    # OpenClaw keeps a server's vectors at the length that they came in.
                    unit = unit_length(vector[None])[0]
                    dims = len(vector)
                    found[hash] = embedding if abs(unit - vector).max() < 1e-6 else to_json(unit)
        return found

    def _stored(self, hash: str) -> list[Embedding]:
        keys = self._provider.keys
        try:
            rows = self._conn.execute(
                "select embedding from embedding_cache where provider = ? and model = ?"
                f" and provider_key in ({', '.join('?' * len(keys))}) and hash = ?",
                (self._provider.name, self._provider.model, *keys, hash),
            ).fetchall()
            if not rows and self._has_chunks:
                rows = self._conn.execute(
                    "select embedding from chunks where hash = ? and model = ? and embedding <> ? limit 1",
                    (hash, self._provider.model, NO_EMBEDDING),
                ).fetchall()
        except sqlite3.Error:  # no such table
            return []
        return [embedding for (embedding,) in rows]

    def write(self, embeddings: Mapping[str, Embedding], dims: int) -> None:
        """Keep embeddings, in a transaction of the caller's."""
        now = time.time_ns() // 1_000_000
        self._conn.executemany(
            "insert or replace into embedding_cache (provider, model, provider_key, hash, embedding, dims,"
            " updated_at) values (?, ?, ?, ?, ?, ?, ?)",
            (
                (self._provider.name, self._provider.model, self._provider.key, hash, embedding, dims, now)
                for hash, embedding in embeddings.items()
            ),
        )

    def write_refused(self, hashes: Iterable[str]) -> None:
        """Remember texts that the provider refuses, in a transaction of the caller's."""
        self.write(dict.fromkeys(hashes, NO_EMBEDDING), 0)

    def refused(self, hashes: Iterable[str]) -> set[str]:
        """Those of the texts that the provider has refused."""
        return {hash for hash in hashes if any(one == NO_EMBEDDING for one in self._stored(hash))}

    def forget_refused(self) -> None:
        """Have refused texts asked for again, in a transaction of the caller's."""
        self._conn.execute(
            "delete from embedding_cache"
            " where provider = ? and model = ? and provider_key = ? and embedding = ?",
            (self._provider.name, self._provider.model, self._provider.key, NO_EMBEDDING),
        )

    def forget_other_widths(self, dims: int) -> None:
        """Drop embeddings of other widths, in a transaction of the caller's."""
        self._conn.execute(
            "delete from embedding_cache"
            " where provider = ? and model = ? and provider_key = ? and dims not in (0, ?)",
            (self._provider.name, self._provider.model, self._provider.key, dims),
        )


def prune(conn: Connection, most: int) -> int:
    """Drop the oldest embeddings of the cache above a number, of all providers; how many were dropped."""
    dropped: int = conn.execute(
        "delete from embedding_cache where rowid in (select rowid from embedding_cache where dims <> 0"
        " order by updated_at desc, rowid desc limit -1 offset ?)",
        (most,),
    ).rowcount
    return dropped
