"""The embedding models of the `llm` tool and its plugins, by their names there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import (
    EmbeddingError,
    Provider,
    ProviderMissing,
    ProviderSettings,
    TemporaryError,
    Vectors,
    only_vector,
    unit_length,
)
from .prompts import prompts_for


class LLMProvider(Provider):
    name = "llm"
    # Some of its models are, and nothing says which.
    in_process = False
    dims = None

    def __init__(self, settings: ProviderSettings) -> None:
        try:
            import llm
        except ImportError as error:
            raise ProviderMissing("llm is not installed: pip install llm") from error
        if not settings.model:
            raise EmbeddingError("llm needs --model; llm embed-models lists those there are")
        if settings.dimensions is not None:
            raise EmbeddingError("llm has no --dimensions; some of its models have a name for each width")
        try:
            self._model: Any = llm.get_embedding_model(settings.model)
        except llm.UnknownModelError as error:
            raise EmbeddingError(
                f"llm has no embedding model {settings.model!r}; llm embed-models lists those there are"
            ) from error
        # An alias may stand for another model tomorrow.
        self.model = self._model.model_id
        self.prompts = prompts_for(self.model)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        return self._embed([self.prompts.document + text for text in texts])

    def embed_query(self, text: str) -> Vectors:
        return only_vector(self, self._embed([self.prompts.query + text]))

    def _embed(self, texts: list[str]) -> Vectors:
        import llm

        try:
            answer = list(self._model.embed_multi(texts))
        except llm.NeedsKeyException as error:
            raise EmbeddingError(f"{self}: {error}") from None
        except Exception as error:
            # A plugin's errors are of any kind, and may hold what it sent.
            kind = TemporaryError if _is_of_the_network(error) else EmbeddingError
            raise kind(f"{self} failed with {type(error).__name__}") from None
        if len(answer) != len(texts):
            raise EmbeddingError(f"{self} gave {len(answer)} vectors for {len(texts)} texts")
        try:
            vectors = np.array(answer, dtype=np.float64)
        except (TypeError, ValueError):
            raise EmbeddingError(f"{self} gave something else than vectors") from None
        if vectors.ndim != 2:
            raise EmbeddingError(f"{self} gave something else than vectors")
        self.dims = vectors.shape[1]
        return unit_length(vectors)


def _is_of_the_network(error: Exception) -> bool:
    """Whether an error may pass: one of a connection's, or of the libraries that have them."""
    kinds = [kind.__module__.partition(".")[0] for kind in type(error).__mro__]
    return isinstance(error, OSError) or not {"httpx", "httpcore", "openai", "requests"}.isdisjoint(kinds)
