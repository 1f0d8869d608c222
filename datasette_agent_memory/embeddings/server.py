"""The providers of a Datasette server: its configuration, its secrets, and its visitors' queries."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from ..config import PLUGIN_NAME, EmbeddingSettings, ParameterError, embedding_settings
from .base import EmbeddingError, Provider
from .chain import PROVIDERS, Providers
from .queries import QUERY_VECTORS, Asked, TooManyQueries

#: How long a secret is used before datasette-secrets is asked again, and how long one that is
#: missing is not looked for.
_SECRET_S = 60.0
_NO_SECRET_S = 1.0

_providers: WeakKeyDictionary[Any, Providers] = WeakKeyDictionary()
_asked: WeakKeyDictionary[Any, dict[str, float]] = WeakKeyDictionary()


def providers_of(datasette: Any) -> Providers:
    """The providers as a Datasette instance is configured; those of the environment where its
    configuration is bad, which its start refuses."""
    if datasette not in _providers:
        try:
            configured = embedding_settings(datasette).providers
        except ParameterError:
            return Providers()
        _providers[datasette] = Providers(configured)
    return _providers[datasette]


async def load_secrets(datasette: Any) -> None:
    """Take keys from datasette-secrets, where that is installed."""
    try:
        from datasette_secrets import get_secret
    except ImportError:
        return
    providers = providers_of(datasette)
    next_at = _asked.setdefault(datasette, {})
    for variable in (variable for name in PROVIDERS for variable in providers.key_variables(name)):
        if time.monotonic() < next_at.get(variable, 0):
            continue
        value = None
        # One that cannot be decrypted, say, is none: the search says that there is no key.
        with suppress(Exception):
            value = await get_secret(datasette, variable)
        if value:
            providers.secrets[variable] = value
        else:
            providers.secrets.pop(variable, None)
        next_at[variable] = time.monotonic() + (_SECRET_S if value else _NO_SECRET_S)


def secrets() -> list[Any]:
    """The keys that datasette-secrets may be given."""
    from datasette_secrets import Secret

    return [
        Secret(name=variable, description=f"Key of {name}, for {PLUGIN_NAME} to embed queries with")
        for name in PROVIDERS
        for variable in Providers().key_variables(name)
    ]


async def fetch_query_vector(provider: Provider, q: str, settings: EmbeddingSettings, actor: Any) -> Asked:
    """Have a query's vector in the process's cache, if that can be and may be."""
    limit = settings.anonymous_per_minute if actor is None else None
    if limit == 0:
        return Asked("this server embeds those of visitors who are logged in only")
    started = time.perf_counter()
    failure = None
    try:
        await QUERY_VECTORS.fetch_async(provider, q, settings.timeout_s, limit)
    except TooManyQueries:
        failure = (
            f"this server embeds {limit} new queries a minute of visitors who are not logged in; "
            "try again in a minute, or log in"
        )
    except EmbeddingError as error:
        failure = str(error)
    return Asked(failure, round((time.perf_counter() - started) * 1000, 3))
