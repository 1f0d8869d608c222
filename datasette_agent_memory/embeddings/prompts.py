"""What embedding models want put before a text, by their names."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Prompts:
    """What goes before a query, and before a passage that may answer one."""

    query: str = ""
    document: str = ""

    def as_json(self) -> dict[str, str]:
        return {"query": self.query, "document": self.document}


NO_PROMPTS = Prompts()

#: From the models' cards, for retrieval. The first whose name is in the model's counts.
_PROMPTS: tuple[tuple[str, Prompts], ...] = (
    ("embeddinggemma", Prompts("task: search result | query: ", "title: none | text: ")),
    ("nomic-embed-text", Prompts("search_query: ", "search_document: ")),
    (
        "e5-instruct",
        Prompts(
            "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
        ),
    ),
    ("e5", Prompts("query: ", "passage: ")),
    ("mxbai-embed", Prompts("Represent this sentence for searching relevant passages: ")),
    ("snowflake-arctic-embed2", Prompts("query: ")),
    ("snowflake-arctic-embed-l-v2", Prompts("query: ")),
    ("snowflake-arctic-embed-m-v2", Prompts("query: ")),
    ("snowflake-arctic-embed", Prompts("Represent this sentence for searching relevant passages: ")),
    (
        "qwen3-embedding",
        Prompts(
            "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
        ),
    ),
)


def prompts_for(model: str) -> Prompts:
    """The prompts of a model by its name, or the name of its file; none for most."""
    name = re.sub(r"[^a-z0-9]+", "-", model.lower())
    for part, prompts in _PROMPTS:
        if re.search(rf"(^|-){part}", name):
            return prompts
    return NO_PROMPTS
