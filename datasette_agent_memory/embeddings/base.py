"""The interface of an embedding provider, and how a vector is written down."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import AgentMemoryError
from .prompts import NO_PROMPTS, Prompts

Vectors = NDArray[np.float32]


class EmbeddingError(AgentMemoryError):
    """A provider cannot embed, and will not until somebody changes something."""


class TemporaryError(EmbeddingError):
    """A provider cannot embed now, and may be able to later."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        #: How long the provider asks to be left alone.
        self.retry_after_s = retry_after_s


class ProviderMissing(EmbeddingError):
    """A provider lacks its key, file or package here."""


class InputRefused(EmbeddingError):
    """A provider refuses these texts, and may take some of them, or other ones."""


class WrongCount(InputRefused):
    """A provider gives more or fewer vectors than there were texts."""


class ApiKey:
    """A secret that shows itself only when asked to."""

    def __init__(self, value: str, source: str) -> None:
        self._value = value
        #: Where it is from, for messages.
        self.source = source

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return f"<key of {self.source}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ApiKey) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


@dataclass(frozen=True)
class ProviderSettings:
    """What a provider is told by the environment, the configuration, or an index's `meta`."""

    #: A model's name, for `local` the path of a GGUF file; None for the provider's default.
    model: str | None = None
    #: The width to ask for, None for the model's own.
    dimensions: int | None = None
    base_url: str | None = None
    #: Where the address is from, and the key is looked for, for messages.
    base_url_source: str = ""
    api_key: ApiKey | None = None
    api_key_source: str = ""


class Provider(ABC):
    """Turns texts into unit vectors of one width."""

    #: The provider's name, as in `--provider` and in the index's `meta`.
    name: ClassVar[str]
    #: Whether it answers in this process, without the network.
    in_process: ClassVar[bool]
    #: The defaults of search parameters that suit its scores, where they are not the usual ones.
    search_defaults: ClassVar[Mapping[str, Any]] = {}
    #: What answers a question is mostly as near to it as this, and what has nothing to do with it is
    #: not; a rule of thumb but for the embedded model.
    least_cosine: ClassVar[float] = 0.3
    #: Whether one vector for a chunk of many things is too little, and each passage has one as well.
    has_passages: ClassVar[bool] = False
    #: The most texts, and the most estimated tokens, that one call may have.
    max_batch_texts: ClassVar[int] = 32
    max_batch_tokens: ClassVar[int] = 8000
    #: How many calls may go on at once.
    max_concurrency: ClassVar[int] = 1

    model: str
    #: The width of its vectors, None where that is known only from its first answer.
    dims: int | None
    #: The width that was asked for, None for the model's own.
    dimensions: int | None = None
    #: What it puts before the texts.
    prompts: Prompts = NO_PROMPTS

    @property
    def identity(self) -> dict[str, Any]:
        """What makes vectors comparable: equal identities, and only these, give equal vectors."""
        identity: dict[str, Any] = {"provider": self.name, "model": self.model}
        if self.dimensions is not None:
            identity["outputDimensionality"] = self.dimensions
        if self.prompts != NO_PROMPTS:
            identity["prompts"] = self.prompts.as_json()
        return identity

    @property
    def key(self) -> str:
        """SHA-256 hex of the identity, in the form that OpenClaw gives it; never of a secret."""
        return identity_key(self.identity)

    @property
    def keys(self) -> tuple[str, ...]:
        """Its key, and any others under which its vectors may be found."""
        return (self.key,)

    @property
    def location(self) -> dict[str, str]:
        """Where the model is, for people to read in `meta`."""
        return {}

    @abstractmethod
    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Array of shape (len(texts), dims), rows of unit length, and of NaN for a text that has no
        usable vector.

        One call, without retries; raises TemporaryError, InputRefused, and other EmbeddingErrors.
        """

    @abstractmethod
    def embed_query(self, text: str) -> Vectors:
        """Array of shape (dims,), of unit length; raises as embed_documents does."""

    def load(self) -> None:  # noqa: B027 - nothing to load is the common case
        """Do now what would make the first call slow; raises EmbeddingError."""

    def close(self) -> None:  # noqa: B027
        """Give back what it holds open; it opens it again when it is asked again."""

    def __str__(self) -> str:
        return f"{self.name} {self.model}"


def guarded(provider: Provider, call: Callable[[], Vectors]) -> Vectors:
    """What a provider answers; whatever else it raises becomes an EmbeddingError."""
    try:
        return call()
    except EmbeddingError:
        raise
    except Exception as error:
        # Its text may have anything in it.
        raise EmbeddingError(f"{provider} failed with {type(error).__name__}") from error


def useless_vector(provider: Provider) -> EmbeddingError:
    return EmbeddingError(f"{provider} gave a vector that is zero or not finite")


def only_vector(provider: Provider, vectors: Vectors) -> Vectors:
    """The vector of a query, from an array with one row; raises EmbeddingError if it is of NaN."""
    vector: Vectors = vectors[0]
    if not np.isfinite(vector).all():
        raise useless_vector(provider)
    return vector


def identity_key(identity: Mapping[str, Any]) -> str:
    """SHA-256 hex of an identity's JSON as JavaScript writes it."""
    text = json.dumps(identity, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def unit_length(vectors: NDArray[Any]) -> Vectors:
    """The rows divided by their lengths; of NaN where a row is zero or not finite."""
    with np.errstate(all="ignore"):
        wide = vectors.astype(np.float64)
        # Through float32 and back: what overflows there is of no use.
        wide[~np.isfinite(wide.astype(np.float32)).all(axis=1)] = np.nan
        lengths = np.linalg.norm(wide, axis=1, keepdims=True)
        units: Vectors = (wide / np.where(lengths > 0, lengths, np.nan)).astype(np.float32)
    return units


def to_json(vector: Vectors, decimals: int | None = None) -> str:
    """A JSON array that gives the same float32 values back, or values of so many decimals."""
    form = ".9g" if decimals is None else f".{decimals}f"
    return "[" + ",".join([format(value, form) for value in vector.tolist()]) + "]"


def usable_embedding(text: object, dims: int | None) -> Vectors | None:
    """A stored embedding of this width, or of any; None where it is damaged or missing."""
    try:
        vector = from_json(text) if isinstance(text, str) else None
    except (ValueError, TypeError, RecursionError):
        return None
    if vector is None or vector.ndim != 1 or len(vector) != (dims or len(vector)):
        return None
    return vector if np.isfinite(vector).all() and vector.any() else None


def from_json(text: str) -> Vectors:
    """Raises ValueError where the text is no array of numbers."""
    values = json.loads(text)
    if not isinstance(values, list):
        raise ValueError("not an array")
    # A number above float32's becomes infinite, which numpy would warn of.
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype=np.float32)
