"""OpenAI, and any server that speaks its protocol: Ollama, LM Studio, vLLM, llama.cpp's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from .base import identity_key
from .remote import RemoteProvider, in_order


class OpenAICompatibleProvider(RemoteProvider):
    """A provider with OpenAI's `/embeddings`."""

    def _request(self, texts: Sequence[str], is_query: bool) -> tuple[str, dict[str, str], dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self._key.reveal()}"} if self._key else {}
        return "embeddings", headers, {"model": self.model, "input": list(texts), **self._more(is_query)}

    def _more(self, is_query: bool) -> dict[str, Any]:
        """What else the request says."""
        return {} if self.dimensions is None else {"dimensions": self.dimensions}

    def _vectors(self, answer: Any) -> list[Any]:
        return in_order(answer["data"])


class OpenAIProvider(OpenAICompatibleProvider):
    name = "openai"
    default_model = "text-embedding-3-small"
    default_base_url = "https://api.openai.com/v1"
    key_variables = ("OPENAI_API_KEY",)
    base_url_variable = "OPENAI_BASE_URL"
    known_dims: ClassVar[dict[str, int]] = {
        "text-embedding-3-small": 1536,
        "text-embedding-3-large": 3072,
        "text-embedding-ada-002": 1536,
    }
    max_batch_texts = 256

    @property
    def identity(self) -> dict[str, Any]:
        return self._identity(self.base_url)

    @property
    def keys(self) -> tuple[str, ...]:
        # OpenClaw keeps the slash that its configuration has at the end.
        return (self.key, identity_key(self._identity(self.base_url + "/")))

    def _identity(self, base_url: str) -> dict[str, Any]:
        """In OpenClaw's form and order, so that its embeddings are known as ours."""
        more = {
            name: value
            for name, value in super().identity.items()
            if name in ("outputDimensionality", "prompts")
        }
        return {
            "provider": self.name,
            "baseUrl": base_url,
            "model": self.model,
            "headers": [["Content-Type", "application/json"]],
            **more,
        }
