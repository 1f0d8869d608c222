"""Whether a search has found anything worth the name, by a rule that can be stated.

A search always puts something first. It is called a weak match where no result has the words
that matter of the question, nor is near to it in meaning. docs/search-quality.md says how
often the rule is right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .chunked import read_details
from .connections import Connection, sqlite3
from .context import context_terms
from .fused_sql import Sides
from .keywords import cjk_terms, count_word, plain_words, query_terms
from .layouts import Layout
from .schema import FTS_TOKENIZER

if TYPE_CHECKING:
    from .embeddings.base import Provider
    from .search import Hit

#: The least share of a question's words, each weighed by how rare it is, that a result should have.
WEAK_SHARE = 1 / 3


@dataclass(frozen=True)
class WeakMatch:
    """Why what was found is called weak."""

    #: The greatest share of the question's words that a result has, and the greatest cosine.
    share: float
    cosine: float | None
    #: What one of the two would have to be at least.
    least_share: float
    least_cosine: float | None

    @property
    def message(self) -> str:
        words = f"no result has words worth a third of the question (the best has {self.share:.0%})"
        if self.cosine is None or self.least_cosine is None:
            return f"Weak match: {words}."
        return (
            f"Weak match: {words}, and none is nearer to it than a cosine of {self.least_cosine:g} "
            f"(the best has {self.cosine:.2f})."
        )

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "message": self.message}


def weak_match(
    conn: Connection, layout: Layout, q: str, hits: Sequence[Hit], sides: Sides, provider: Provider | None
) -> WeakMatch | None:
    """Why the results are a weak match; None where they are not, and where there are none."""
    if not hits:
        return None
    cosines = [hit.vector_score for hit in hits if hit.vector_score is not None]
    least_cosine = provider.least_cosine if provider is not None and cosines else None
    if least_cosine is not None and max(cosines) >= least_cosine:
        return None
    share = _greatest_share(conn, layout, q, hits, sides) if sides.text else 0.0
    if share is None or share >= WEAK_SHARE:
        return None
    return WeakMatch(share, max(cosines, default=None), WEAK_SHARE, least_cosine)


def _greatest_share(
    conn: Connection, layout: Layout, q: str, hits: Sequence[Hit], sides: Sides
) -> float | None:
    """Of a question's words by weight; None where that cannot be known."""
    if sides.substring:
        terms, having, texts = plain_words(q), "word_count(text, value) > 0", layout.chunks
    else:
        terms, having, texts = query_terms(q), f"{layout.chunks_fts} MATCH value", layout.chunks_fts
    try:
        chunks = f"SELECT count(*) FROM {texts} WHERE {having}"
        total = f"SELECT count(*) FROM {layout.chunks}"
        rows = conn.execute(
            f"SELECT value, bm25_ceiling(({chunks}), ({total})) AS weight"
            " FROM (SELECT value FROM json_each(:terms))",
            {"terms": json.dumps(terms)},
        ).fetchall()
        weights = {row["value"]: row["weight"] or 0.0 for row in rows}
        shares = [0.0] * len(hits)
        with closing(sqlite3.connect(":memory:")) as own:
            words = {hit.path: read_details(conn, hit.path).words for hit in hits}
            _index_hits(own, hits, words)
            for term, weight in weights.items():
                if sides.substring:
                    having_it = [n for n, hit in enumerate(hits) if count_word(hit.text, term)]
                else:
                    found = own.execute("select rowid from hits where hits match ?", (term,))
                    having_it = [number for (number,) in found]
                for number in having_it:
                    shares[number] += weight
    except sqlite3.Error:
        return None
    all_weights = sum(weights.values())
    return max(shares) / all_weights if all_weights else None


def _index_hits(conn: Connection, hits: Sequence[Hit], words: Mapping[str, str]) -> None:
    """A full-text table of the results alone: in that of all, each word would take a search.

    `words` are those of the front matter of each file.
    """
    conn.execute(f"create virtual table hits using fts5(text, cjk, context, tokenize = '{FTS_TOKENIZER}')")
    conn.executemany(
        "insert into hits (rowid, text, cjk, context) values (?, ?, ?, ?)",
        (
            (
                number,
                hit.text,
                cjk_terms(hit.text),
                *context_terms(hit.path, [(1, 1, hit.text)], words[hit.path]),
            )
            for number, hit in enumerate(hits)
        ),
    )
