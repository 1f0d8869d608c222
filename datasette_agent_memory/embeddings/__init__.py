"""Embedding providers, by name, and the process's cache of query vectors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Provider

NO_PROVIDER = "none"
#: The model's name in an index without vectors, as the peer writes it.
KEYWORDS_ONLY_MODEL = "fts-only"

_QUERY_CACHE_SIZE = 512


def _embedded() -> Provider:
    from .embedded import EmbeddedProvider

    return EmbeddedProvider()


#: How each provider is made. Making one is cheap; its model is loaded at first use.
PROVIDERS: dict[str, Callable[[], Provider]] = {"embedded": _embedded}

#: What `auto` tries, in this order.
CHAIN = ("embedded",)


def choose_provider(name: str) -> Provider | None:
    """The provider of this name, or for `auto` the first of the chain; None for `none`.

    Raises ValueError for a name that is not known.
    """
    if name == NO_PROVIDER:
        return None
    if name == "auto":
        return get_provider(CHAIN[0])
    if name not in PROVIDERS:
        known = ", ".join(["auto", *PROVIDERS, NO_PROVIDER])
        raise ValueError(f"provider must be one of {known}, not {name!r}")
    return get_provider(name)


def provider_of_index(provider: str, model: str) -> Provider | None:
    """The provider that made an index's vectors, None where this process has not got it."""
    if provider not in PROVIDERS:
        return None
    candidate = get_provider(provider)
    return candidate if candidate.model == model else None


@cache
def get_provider(name: str) -> Provider:
    return PROVIDERS[name]()


@lru_cache(maxsize=_QUERY_CACHE_SIZE)
def query_vector(provider: str, text: str) -> bytes:
    """The vector of a query as a blob of little-endian float32; raises EmbeddingError."""
    return get_provider(provider).embed_query(text).astype("<f4").tobytes()
