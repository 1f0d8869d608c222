"""Mistral AI: OpenAI's protocol at another address."""

from __future__ import annotations

from typing import Any, ClassVar

from .openai import OpenAICompatibleProvider


class MistralProvider(OpenAICompatibleProvider):
    name = "mistral"
    default_model = "mistral-embed"
    default_base_url = "https://api.mistral.ai/v1"
    key_variables = ("MISTRAL_API_KEY",)
    base_url_variable = "MISTRAL_BASE_URL"
    known_dims: ClassVar[dict[str, int]] = {"mistral-embed": 1024}
    max_batch_texts = 128

    def _more(self, is_query: bool) -> dict[str, Any]:
        return {} if self.dimensions is None else {"output_dimension": self.dimensions}
