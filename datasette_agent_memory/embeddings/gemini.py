"""Google's Gemini API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import EmbeddingError, ProviderSettings
from .remote import RemoteProvider, in_order


class GeminiProvider(RemoteProvider):
    name = "gemini"
    default_model = "gemini-embedding-001"
    default_base_url = "https://generativelanguage.googleapis.com/v1beta"
    key_variables = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    base_url_variable = "GEMINI_BASE_URL"
    #: A batch is at most 100 requests.
    max_batch_texts = 100

    #: Of the model's 3,072: as good on retrieval by Google's own numbers, at a quarter of the size.
    _DEFAULT_DIMENSIONS = 768

    def __init__(self, settings: ProviderSettings) -> None:
        super().__init__(settings)
        self.model = self.model.removeprefix("models/")
        if not self.model or "/" in self.model or "?" in self.model or "#" in self.model:
            raise EmbeddingError("gemini: a model's name has no /, ? or #")
        self.dimensions = self.dims = settings.dimensions or self._DEFAULT_DIMENSIONS

    @property
    def identity(self) -> dict[str, Any]:
        # In OpenClaw's form; whether its order is this one could not be seen.
        return {
            "provider": self.name,
            "baseUrl": self.base_url,
            "model": self.model,
            "outputDimensionality": self.dimensions,
            "headers": [["Content-Type", "application/json"]],
        }

    def _request(self, texts: Sequence[str], is_query: bool) -> tuple[str, dict[str, str], dict[str, Any]]:
        requests = [
            {
                "model": f"models/{self.model}",
                "content": {"parts": [{"text": text}]},
                "taskType": "RETRIEVAL_QUERY" if is_query else "RETRIEVAL_DOCUMENT",
                "outputDimensionality": self.dimensions,
            }
            for text in texts
        ]
        # In a header, since addresses are logged along the way.
        headers = {"x-goog-api-key": self._key.reveal()} if self._key else {}
        return f"models/{self.model}:batchEmbedContents", headers, {"requests": requests}

    def _vectors(self, answer: Any) -> list[Any]:
        return in_order(answer["embeddings"], "values")
