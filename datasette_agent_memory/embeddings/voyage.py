"""Voyage AI: OpenAI's protocol, and a word on whether a text is a query."""

from __future__ import annotations

from typing import Any, ClassVar

from .openai import OpenAICompatibleProvider


class VoyageProvider(OpenAICompatibleProvider):
    name = "voyage"
    default_model = "voyage-4-large"
    default_base_url = "https://api.voyageai.com/v1"
    key_variables = ("VOYAGE_API_KEY",)
    base_url_variable = "VOYAGE_BASE_URL"
    known_dims: ClassVar[dict[str, int]] = dict.fromkeys(
        ("voyage-4-large", "voyage-4", "voyage-4-lite"), 1024
    )
    max_batch_texts = 128

    def _more(self, is_query: bool) -> dict[str, Any]:
        more: dict[str, Any] = {"input_type": "query" if is_query else "document"}
        if self.dimensions is not None:
            more["output_dimension"] = self.dimensions
        return more
