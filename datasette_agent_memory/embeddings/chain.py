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
from .local import LocalProvider, default_model_path, expanded
from .mistral import MistralProvider
from .openai import OpenAIProvider
from .prompts import Prompts
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

_MAX_MODEL_CHARS = 1000

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
        if model is not None and not (model.isprintable() and len(model) <= _MAX_MODEL_CHARS):
            # Nor has the database, or a header, a place for half a surrogate pair.
            raise EmbeddingError("a model's name is a line of text")
        return _made(name, self._settings(name, model, dimensions))

    def choose(
        self,
        names: str,
        dimensions: int | None = None,
        meta: Mapping[str, Any] = MappingProxyType({}),
        is_asked_now: bool = True,
    ) -> Chain:
        """The chain of `auto`, of one name, or of several with commas between; a name may have `=`
        and a model behind it. `dimensions` are for one name alone.

        `meta` is that of the index to be brought up to date: its own provider keeps its model.
        Unless it is asked for now, it keeps its address too, and its place in the chain even
        where it cannot be had, so that a missing key does not lead to another model. Raises
        ValueError for names that don't make a chain, and EmbeddingError where no provider is left.
        """
        asked = parse_names(names)
        if dimensions is not None and (len(asked) > 1 or next(iter(asked)) in (AUTO, NO_PROVIDER)):
            raise ValueError("dimensions need the name of one provider")
        providers: list[Provider | None] = []
        passed_over: list[PassedOver] = []
        last: EmbeddingError | None = None
        members = [one for name in asked for one in (AUTO_CHAIN if name == AUTO else (name,))]
        for name in dict.fromkeys(members):
            model = asked.get(name)
            # A file goes by its name in `meta`.
            known_as = Path(model).name if model is not None and name == "local" else model
            is_own = (
                name == meta.get("provider") and name != NO_PROVIDER and known_as in (None, meta.get("model"))
            )
            if name not in asked and not is_own and not self._is_there(name):
                continue
            if name == NO_PROVIDER:
                providers.append(None)
                break
            try:
                if name == meta.get("provider") and not is_asked_now:
                    self._check_address(meta)
                if is_own and (model is None or not is_asked_now):
                    width = dimensions or meta.get("dimensions")
                    providers.append(self._as_in({**meta, "dimensions": width}))
                else:
                    providers.append(self.get(name, model, dimensions))
            except EmbeddingError as error:
                last = error
                if is_own and isinstance(error, ProviderMissing):
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
        self._check_address(meta)
        provider = self._as_in(meta)
        if provider.model != meta.get("model"):
            raise ProviderMissing(f"the model here is {provider.model}")
        if meta.get("providerKey") not in provider.keys:
            where = provider.location.get("baseUrl")
            raise ProviderMissing(
                "the model of this name is another one here" + (f", at {where}" if where else "")
            )
        return provider

    def key_variables(self, name: str) -> Iterable[str]:
        """The names of the variables, or secrets, that can hold a provider's key, unless the
        configuration has it."""
        return () if self._configured.get(name, {}).get("api_key") else _remote(name).key_variables

    def _is_there(self, name: str) -> bool:
        if name == "local":
            return self._local_path().is_file()
        return not _remote(name).key_variables or self._settings(name).api_key is not None

    def _settings(
        self, name: str, model: str | None = None, dimensions: int | None = None
    ) -> ProviderSettings:
        if name == "local":
            return ProviderSettings(model or str(self._local_path()), dimensions)
        configured = self._configured.get(name, {})
        variable = _remote(name).base_url_variable
        base_url, source = configured.get("base_url"), f"providers.{name}.base_url"
        if not base_url:
            base_url, source = os.environ.get(variable, "").strip(), variable
        return ProviderSettings(model, dimensions, base_url or None, source, *self._api_key(name, configured))

    def _api_key(self, name: str, configured: Mapping[str, Any]) -> tuple[ApiKey | None, str]:
        """The key, if there is one, and where it is looked for."""
        if "api_key" in configured:
            source = f"providers.{name}.api_key"
            value = str(configured["api_key"] or "").strip()
            return (ApiKey(value, source) if value else None), source
        variables = _remote(name).key_variables
        for values in (self.secrets, os.environ):
            for variable in variables:
                # A key that was read from a file has a newline at its end.
                if value := values.get(variable, "").strip():
                    return ApiKey(value, variable), variable
        return None, " or ".join(variables)

    def _local_path(self) -> Path:
        configured = self._configured.get("local", {}).get("path")
        return expanded(str(configured)) if configured else default_model_path()

    def _check_address(self, meta: Mapping[str, Any]) -> None:
        """Raise ProviderMissing where an index was made at another address than is set here: neither
        texts nor keys go elsewhere because a variable is missing."""
        name, there = str(meta.get("provider")), meta.get("baseUrl")
        remote = _remote(name)
        default = str(getattr(remote, "default_base_url", ""))
        here = (self._settings(name).base_url or default).rstrip("/")
        if isinstance(there, str) and there != here:
            raise ProviderMissing(
                f"they were made at {there}, and the address of {name} here is {here}; "
                f"{remote.base_url_variable} or providers.{name}.base_url sets it"
            )

    def _as_in(self, meta: Mapping[str, Any]) -> Provider:
        """The provider, model and width that an index's `meta` names."""
        name, model, dimensions = str(meta.get("provider")), meta.get("model"), meta.get("dimensions")
        if name == "local":
            model = str(self._local_path_in(meta))
        return self.get(
            name,
            model if isinstance(model, str) else None,
            dimensions if isinstance(dimensions, int) and dimensions > 0 else None,
        )

    def _local_path_in(self, meta: Mapping[str, Any]) -> Path:
        """Where the file of an index's model is: as configured, if it has that name, or where it was."""
        path, there = self._local_path(), meta.get("modelPath")
        if path.name != meta.get("model") and isinstance(there, str):
            # Of any other file not even whether it exists is told: a database may be anybody's.
            if Path(there).suffix != ".gguf" or not there.isprintable() or not Path(there).is_file():
                raise ProviderMissing(
                    f"there is no file {there}; AGENT_MEMORY_LOCAL_MODEL or providers.local.path says "
                    f"where a file named {meta.get('model')} is"
                )
            return Path(there)
        return path


def parse_names(names: str) -> dict[str, str | None]:
    """The names of a chain with their models; raises ValueError."""
    asked: dict[str, str | None] = {}
    for member in names.split(","):
        name, _, model = (part.strip() for part in member.partition("="))
        if name not in PROVIDERS and name not in (AUTO, NO_PROVIDER):
            known = ", ".join([AUTO, *PROVIDERS, NO_PROVIDER])
            raise ValueError(f"provider must be of {known}, not {name!r}")
        if model and name in (AUTO, NO_PROVIDER):
            raise ValueError(f"a model needs its provider's name, not {name}")
        asked.setdefault(name, model or None)
    return asked


class AbsentProvider(Provider):
    """The provider of an index where it cannot be had: text can be brought up to date without it."""

    in_process = False

    def __init__(self, meta: Mapping[str, Any], reason: str) -> None:
        self.name = str(meta.get("provider"))  # type: ignore[misc]
        self.model = str(meta.get("model"))
        self.dims = meta.get("vectorDims")
        self.dimensions = meta.get("dimensions")
        prompts = meta.get("prompts")
        if isinstance(prompts, dict):
            self.prompts = Prompts(str(prompts.get("query", "")), str(prompts.get("document", "")))
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
