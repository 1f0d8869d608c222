"""The interface of an embedding provider, and how a vector is written down."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import AgentMemoryError

Vectors = NDArray[np.float32]


class EmbeddingError(AgentMemoryError):
    """A provider cannot embed."""


class Provider(ABC):
    """Turns texts into unit vectors of one width."""

    #: The provider's name, as in `--provider` and in the index's `meta`.
    name: ClassVar[str]
    #: Whether it answers in this process, without the network.
    in_process: ClassVar[bool]
    #: The defaults of search parameters that suit its scores, where they are not the usual ones.
    search_defaults: ClassVar[Mapping[str, Any]] = {}

    model: str
    dims: int

    @property
    def key(self) -> str:
        """SHA-256 hex of what identifies the vectors' maker, never of a secret."""
        identity = json.dumps({"provider": self.name, "model": self.model}, separators=(",", ":"))
        return hashlib.sha256(identity.encode()).hexdigest()

    @abstractmethod
    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Array of shape (len(texts), dims), rows of unit length; raises EmbeddingError."""

    @abstractmethod
    def embed_query(self, text: str) -> Vectors:
        """Array of shape (dims,), of unit length; raises EmbeddingError."""

    def load(self) -> None:  # noqa: B027 - nothing to load is the common case
        """Do now what would make the first call slow."""


def is_unit_length(vectors: Vectors) -> bool:
    """Whether every row is finite and of length 1, to float32's precision."""
    return bool(np.all(np.abs(np.linalg.norm(vectors, axis=1) - 1) < 1e-4))


def to_json(vector: Vectors) -> str:
    """A JSON array that gives the same float32 values back."""
    return "[" + ",".join([f"{value:.9g}" for value in vector.tolist()]) + "]"


def from_json(text: str) -> Vectors:
    """Raises ValueError where the text is no array of numbers."""
    values = json.loads(text)
    if not isinstance(values, list):
        raise ValueError("not an array")
    # A number above float32's becomes infinite, which numpy would warn of.
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype=np.float32)
