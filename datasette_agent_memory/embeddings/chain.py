"""Which provider embeds: by name, by the chain `auto`, and by what an index says of itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from . import NO_PROVIDER
from .base import ApiKey, EmbeddingError, Provider, ProviderMissing, ProviderSettings, Vectors
from .embedded import EmbeddedProvider
from .gemini import GeminiProvider
from .llm import LLMProvider
from .local import LocalProvider, default_model_path
from .mistral import MistralProvider
from .openai import OpenAIProvider
from .remote import RemoteProvider
from .voyage import VoyageProvider

AUTO = "auto"


#: How each provider is made. Making one is cheap; its model is loaded at first use.
PROVIDERS: dict[str, Callable[[ProviderSettings], Provider]] = {
    "local": LocalProvider,
    "openai": OpenAIProvider,
    "gemini": GeminiProvider,
    "voyage": VoyageProvider,
    "mistral": MistralProvider,
    "llm": LLMProvider,
    "embedded": EmbeddedProvider,
}

#: What `auto` tries, in this order.
AUTO_CHAIN = ("local", "openai", "gemini", "voyage", "mistral", "embedded", NO_PROVIDER)


@dataclass(frozen=True)
class PassedOver:
    """A provider that was to embed and could not."""

    provider: str
    reason: str


@dataclass(frozen=True)
class Chain:
    """Providers in the order in which they are tried; None stands for keywords only."""

    providers: Sequence[Provider | None]
    passed_over: Sequence[PassedOver] = ()


class Providers:
    """The providers of a process or a server, as environment and configuration make them."""

    def __init__(self, configured: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """`configured` has, by a provider's name, any of api_key, base_url and path."""
        self._configured = configured or {}
        #: Keys by the names of the environment's variables, from a store of secrets.
        self.secrets: dict[str, str] = {}

    def get(self, name: str, model: str | None = None, dimensions: int | None = None) -> Provider:
        """The provider of this name; raises EmbeddingError where it cannot be had here."""
        if name not in PROVIDERS:
            raise EmbeddingError(f"there is no provider {name!r}")
        return _made(name, self._settings(name, model, dimensions))

    def choose(
        self,
        names: str,
        model: str | None = None,
        dimensions: int | None = None,
        meta: Mapping[str, Any] = MappingProxyType({}),
    ) -> Chain:
        """The chain of `auto`, of one name, or of several with commas between.

        `model` and `dimensions` are the first one's. `meta` is that of the index to be brought up
        to date: its own provider keeps its model and its place in the chain, even where it cannot
        be had now, so that a missing key does not lead to another model. Raises ValueError for a name that
        is not known, and EmbeddingError where no provider is left.
        """
        asked = [name.strip() for name in names.split(",")]
        for name in asked:
            if name not in PROVIDERS and name not in (AUTO, NO_PROVIDER):
                known = ", ".join([AUTO, *PROVIDERS, NO_PROVIDER])
                raise ValueError(f"provider must be of {known}, not {name!r}")
        if asked[0] in (AUTO, NO_PROVIDER) and (model or dimensions):
            raise ValueError(f"a model or its dimensions need the provider's name, not {asked[0]}")
        providers: list[Provider | None] = []
        passed_over: list[PassedOver] = []
        last: EmbeddingError | None = None
        members = [member for name in asked for member in (AUTO_CHAIN if name == AUTO else (name,))]
        for name in dict.fromkeys(members):
            is_own = meta.get("provider") == name and name != NO_PROVIDER
            if name not in asked and not is_own and not self._is_there(name):
                continue
            if name == NO_PROVIDER:
                providers.append(None)
                continue
            try:
                if name == asked[0] and (model or dimensions):
                    providers.append(self.get(name, model, dimensions))
                elif is_own:
                    providers.append(self._as_in(meta))
                else:
                    providers.append(self.get(name))
            except EmbeddingError as error:
                last = error
                is_same = model is None or Path(model).name == Path(str(meta.get("model"))).name
                if is_own and is_same and isinstance(error, ProviderMissing):
                    providers.append(AbsentProvider(meta, str(error)))
                else:
                    passed_over.append(PassedOver(name, str(error)))
        if not providers:
            raise last or EmbeddingError("no provider can be had")
        return Chain(providers, passed_over)

    def of_index(self, meta: Mapping[str, Any]) -> Provider:
        """The provider that made an index's vectors; raises EmbeddingError, with the reason, where
        this process has not got it: vectors of different makers must not be compared."""
        name = str(meta.get("provider") or "")
        if name not in PROVIDERS:
            raise ProviderMissing("there is no such provider here")
        provider = self._as_in(meta)
        if provider.model != meta.get("model"):
            raise ProviderMissing(f"the model here is {provider.model}")
        if meta.get("providerKey") not in provider.keys:
            there, here = meta.get("baseUrl"), provider.location.get("baseUrl")
            if there != here:
                raise ProviderMissing(
                    f"they were made at {there or 'another address'}, "
                    f"and the address of {name} here is {here}"
                )
            raise ProviderMissing("the model of this name is another one here")
        return provider

    def key_variables(self, name: str) -> Iterable[str]:
        """The names of the variables, or secrets, that can hold a provider's key, unless the
        configuration has it."""
        return () if self._configured.get(name, {}).get("api_key") else _remote(name).key_variables

    def _is_there(self, name: str) -> bool:
        if name == "local":
            return self._local_path().is_file()
        settings = self._settings(name)
        return (
            settings.api_key is not None or settings.base_url is not None or not _remote(name).key_variables
        )

    def _settings(
        self, name: str, model: str | None = None, dimensions: int | None = None
    ) -> ProviderSettings:
        configured = self._configured.get(name, {})
        if name == "local":
            return ProviderSettings(model or str(self._local_path()), dimensions)
        base_url = configured.get("base_url") or os.environ.get(_remote(name).base_url_variable, "").strip()
        return ProviderSettings(model, dimensions, base_url or None, self._api_key(name, configured))

    def _api_key(self, name: str, configured: Mapping[str, Any]) -> ApiKey | None:
        if configured.get("api_key"):
            return ApiKey(str(configured["api_key"]).strip(), f"providers.{name}.api_key")
        for values in (self.secrets, os.environ):
            for variable in _remote(name).key_variables:
                # A key that was read from a file has a newline at its end.
                if value := values.get(variable, "").strip():
                    return ApiKey(value, variable)
        return None

    def _local_path(self) -> Path:
        configured = self._configured.get("local", {}).get("path")
        return Path(str(configured)).expanduser() if configured else default_model_path()

    def _as_in(self, meta: Mapping[str, Any]) -> Provider:
        """The provider, model and width that an index's `meta` names."""
        name, model, dimensions = str(meta.get("provider")), meta.get("model"), meta.get("dimensions")
        if name == "local":
            # A file is known by its content; its path is only where to look for it.
            path = self._local_path()
            if path.name != model and isinstance(meta.get("modelPath"), str):
                path = Path(meta["modelPath"])
            model = str(path)
        return self.get(
            name,
            model if isinstance(model, str) else None,
            dimensions if isinstance(dimensions, int) and dimensions > 0 else None,
        )


class AbsentProvider(Provider):
    """The provider of an index where it cannot be had: text can be brought up to date without it."""

    in_process = False

    def __init__(self, meta: Mapping[str, Any], reason: str) -> None:
        self.name = str(meta.get("provider"))  # type: ignore[misc]
        self.model = str(meta.get("model"))
        self.dims = meta.get("vectorDims")
        self.dimensions = meta.get("dimensions")
        self._key = str(meta.get("providerKey"))
        self._location = {name: meta[name] for name in ("baseUrl", "modelPath") if name in meta}
        self._reason = reason

    @property
    def key(self) -> str:
        return self._key

    @property
    def location(self) -> dict[str, str]:
        return self._location

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        raise ProviderMissing(self._reason)

    def embed_query(self, text: str) -> Vectors:
        raise ProviderMissing(self._reason)


def _remote(name: str) -> type[RemoteProvider]:
    """The class of a provider behind HTTP; for any other, one that knows of no key and no address."""
    provider = PROVIDERS.get(name)
    is_remote = isinstance(provider, type) and issubclass(provider, RemoteProvider)
    return provider if is_remote else RemoteProvider  # type: ignore[return-value]


_lock = threading.Lock()
_providers: dict[tuple[str, ProviderSettings], Provider] = {}


def _made(name: str, settings: ProviderSettings) -> Provider:
    """The provider with these settings, one a process: models are large, connections are kept."""
    with _lock:
        if (name, settings) not in _providers:
            _providers[name, settings] = PROVIDERS[name](settings)
        return _providers[name, settings]


def forget_providers() -> None:
    """Close all providers, and have them made anew."""
    with _lock:
        for provider in _providers.values():
            provider.close()
        _providers.clear()


#: Those of the environment alone.
PROVIDERS_OF_ENVIRONMENT = Providers()
