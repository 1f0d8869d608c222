"""How an index was made, by what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .config import ParameterError
from .connections import Connection, open_readonly
from .embeddings import NO_PROVIDER
from .embeddings.base import Provider
from .embeddings.chain import PROVIDERS_OF_ENVIRONMENT, AbsentProvider, PassedOver, Providers
from .errors import AgentMemoryError
from .ingest import IndexSettings, chunk_size, remembered_root
from .schema import passed_over_in, read_meta, width_in
from .writer import IndexWriter


class NotRemembered(AgentMemoryError):
    """An index does not say what it was made of."""


def writer_of(conn: Connection, database: Path, meta: Mapping[str, Any]) -> IndexWriter:
    """A writer that goes on with an index as it is, and embeds nothing; raises DatabaseError."""
    provider: Provider | None = None
    if meta.get("provider") not in (None, NO_PROVIDER):
        meta = {**meta, "vectorDims": width_in(meta)}
        provider = AbsentProvider(meta, "nothing is embedded while an index is mended")
    tokens, overlap = _chunk_size(meta)
    return IndexWriter(conn, database, Path(str(meta.get("root"))), provider, tokens, overlap)


def settings_of(database: Path, providers: Providers = PROVIDERS_OF_ENVIRONMENT) -> IndexSettings:
    """How an index was made, to bring it up to date with its own model and no other.

    Raises NotRemembered, DatabaseError, and EmbeddingError where its model is another one here.
    """
    with open_readonly(database) as conn:
        meta = read_meta(conn)
    root = remembered_root(meta)
    if root is None:
        raise NotRemembered(f"{database}: does not say of which folder it is the index")
    try:
        chain = providers.choose(str(meta.get("provider") or NO_PROVIDER), meta=meta, is_asked_now=False)
    except ValueError as error:
        raise NotRemembered(f"{database}: {error}") from error
    tokens, overlap = _chunk_size(meta)
    asked = meta.get("asked")
    return IndexSettings(
        root,
        providers=chain.providers[:1],
        asked=asked if isinstance(asked, dict) else None,
        passed_over=[PassedOver(**one) for one in passed_over_in(meta)],
        chunk_tokens=tokens,
        chunk_overlap=overlap,
    )


def _chunk_size(meta: Mapping[str, Any]) -> tuple[int, int]:
    try:
        return chunk_size(meta)
    except ParameterError:  # a database may say anything
        return chunk_size({})
