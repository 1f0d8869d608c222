"""How an index was made, by what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .config import ParameterError
from .connections import Connection
from .disk import root_of
from .embeddings import NO_PROVIDER
from .embeddings.base import EmbeddingError, Provider
from .embeddings.chain import PROVIDERS_OF_ENVIRONMENT, AbsentProvider, Chain
from .ingest import IndexSettings, chunk_size
from .schema import width_in
from .writer import IndexWriter


def writer_of(conn: Connection, database: Path, meta: Mapping[str, Any]) -> IndexWriter:
    """A writer that goes on with an index as it is, and embeds nothing; raises DatabaseError."""
    provider: Provider | None = None
    if meta.get("provider") not in (None, NO_PROVIDER):
        meta = {**meta, "vectorDims": width_in(meta)}
        provider = AbsentProvider(meta, "nothing is embedded while an index is mended")
    tokens, overlap = _chunk_size(meta)
    return IndexWriter(conn, database, Path(str(meta.get("root"))), provider, tokens, overlap)


def settings_of(meta: Mapping[str, Any]) -> IndexSettings | None:
    """The settings that a run goes on with, None where its folder is not there."""
    root = root_of(meta)
    if root is None:
        return None
    tokens, overlap = _chunk_size(meta)
    chain = _chain_of(meta)
    asked = meta.get("asked")
    return IndexSettings(
        root,
        providers=chain.providers,
        passed_over=chain.passed_over,
        asked=asked if isinstance(asked, dict) else None,
        chunk_tokens=tokens,
        chunk_overlap=overlap,
    )


def _chain_of(meta: Mapping[str, Any]) -> Chain:
    from .options import asked_providers, choose_chain

    if isinstance(meta.get("asked"), dict):
        return choose_chain(asked_providers(None, None, None, meta), meta, is_asked_now=False)
    if meta.get("provider") in (None, NO_PROVIDER):
        return Chain([None])
    try:
        return Chain([PROVIDERS_OF_ENVIRONMENT.of_index(meta)])
    except EmbeddingError as error:
        return Chain([AbsentProvider(meta, str(error))])


def _chunk_size(meta: Mapping[str, Any]) -> tuple[int, int]:
    try:
        return chunk_size(meta)
    except ParameterError:  # a database may say anything
        return chunk_size({})
