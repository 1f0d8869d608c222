"""What is different in a compact index: its cache does not hold what its chunks hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .connections import Connection, sqlite3
from .embeddings.cache import NO_EMBEDDING
from .schema import read_meta, width_in

if TYPE_CHECKING:
    from .embeddings.base import Provider

#: The decimals of embeddings in a compact index. They change a cosine by about 1e-6 at most
#: (docs/reliability.md).
COMPACT_DECIMALS = 6
#: In `meta`, that an index is compact: what its chunks hold is not in its cache as well.
_COMPACT_KEY = "memory_index_compact_v1"


def is_compact(conn: Connection) -> bool:
    """Whether an index is to stay compact."""
    try:
        row = conn.execute(
            "select 1 from main.meta where key = ? and value = '1'", (_COMPACT_KEY,)
        ).fetchone()
    except sqlite3.Error:  # no such table
        return False
    return row is not None


def set_compact(conn: Connection, compact: bool) -> None:
    """Say whether an index is to stay compact, in a transaction of the caller's."""
    if compact:
        conn.execute("insert or replace into meta (key, value) values (?, '1')", (_COMPACT_KEY,))
        # By it a chunk is found for a text.
        conn.execute("create index if not exists idx_chunks_hash on chunks (hash)")
    else:
        conn.execute("delete from meta where key = ?", (_COMPACT_KEY,))


def cache_chunks(conn: Connection, meta: Mapping[str, Any], where: str = "true", *values: Any) -> None:
    """Have the embeddings of some chunks in the cache, in a transaction of the caller's.

    `meta` says whose they are.
    """
    key = [meta.get(name) for name in ("provider", "model", "providerKey")]
    dims = width_in(meta)
    if dims is not None and None not in key:
        conn.execute(
            "insert or ignore into embedding_cache"
            " (provider, model, provider_key, hash, embedding, dims, updated_at)"
            " select ?, ?, ?, hash, embedding, ?, max(updated_at) from chunks"
            f" where embedding <> ? and model = ? and ({where}) group by hash",
            (*key, dims, NO_EMBEDDING, key[1], *values),
        )


def drop_held(conn: Connection, meta: Mapping[str, Any]) -> None:
    """Drop what chunks hold as well from the cache, in a transaction of the caller's."""
    conn.execute(
        "delete from embedding_cache where provider = ? and model = ? and provider_key = ? and exists ("
        "select 1 from chunks where chunks.hash = embedding_cache.hash"
        " and chunks.model = embedding_cache.model and chunks.embedding <> ?)",
        (meta.get("provider"), meta.get("model"), meta.get("providerKey"), NO_EMBEDDING),
    )


def is_made_by(conn: Connection, provider: Provider) -> bool:
    """Whether the vectors of an index are of this provider."""
    meta = read_meta(conn)
    return (
        meta.get("provider") == provider.name
        and meta.get("model") == provider.model
        and meta.get("providerKey") in provider.keys
    )
