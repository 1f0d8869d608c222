"""The fused SQL: one statement for a search, laid out to be read."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import indent
from typing import Any

from .config import SearchOptions
from .layouts import Layout

#: The constant of reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009).
RRF_K = 60


@dataclass(frozen=True)
class Sides:
    """Which sides of the search run, and whether vectors are scanned without sqlite-vec."""

    vector: bool
    text: bool
    scan: bool = False

    @property
    def mode(self) -> str:
        return "hybrid" if self.vector and self.text else "vector" if self.vector else "keyword"


def build_sql(layout: Layout, q: str, options: SearchOptions, sides: Sides) -> tuple[str, dict[str, Any]]:
    """The one statement of a search, laid out to be read, and its named parameters."""
    params: dict[str, Any] = {"q": q, "candidates": options.candidates}
    ctes: list[tuple[str, str]] = []
    filters = _filters(options, params)
    if filters and sides.vector and not sides.scan:
        allowed = f"SELECT id FROM {layout.chunks}\nWHERE {_all_of(filters)}"
        ctes.append(("allowed AS MATERIALIZED", allowed))
    if sides.vector:
        ctes.append(("vector_hits AS MATERIALIZED", _vector_sql(layout, sides, filters)))
    if sides.text:
        ctes.append(("text_hits AS MATERIALIZED", _text_sql(layout, options, filters, params)))
    if sides.vector and sides.text:
        ctes.append(("candidates AS", "SELECT id FROM vector_hits UNION SELECT id FROM text_hits"))
        if options.fusion == "rrf":
            ctes += [(f"{side}_ranks AS", _ranks_sql(side)) for side in ("vector", "text")]
    scored = _scored_sql(layout, options, sides, params)

    # A keyword hit below the minimum fills a free place, and never displaces a row above it.
    passes = "score >= CAST(:min_score AS REAL)"
    where = f"WHERE {passes} OR text_score IS NOT NULL"
    order = ["score DESC", "path", "start_line", "id"]
    if options.mmr:
        ctes.append(("scored AS MATERIALIZED", scored))
        ctes.append(
            (
                "diversified AS",
                "SELECT value AS id, key AS position\n"
                "FROM json_each((\n"
                "  SELECT mmr(id, score, text, :lambda)\n"
                "  FROM (SELECT * FROM scored ORDER BY path, start_line, id)\n"
                "))",
            )
        )
        params["lambda"] = options.lambda_
        scored = "SELECT scored.*\nFROM scored\nJOIN diversified USING (id)"
        order = ["position"]
    params |= {"min_score": options.min_score, "k": options.k}
    with_ = ",\n".join(f"{name} (\n{indent(body, '  ')}\n)" for name, body in ctes)
    sql = f"{scored}\n{where}\nORDER BY {', '.join([f'{passes} DESC', *order])}\nLIMIT :k"
    return (f"WITH {with_}\n{sql}" if with_ else sql), params


def _filters(options: SearchOptions, params: dict[str, Any]) -> list[str]:
    """The conditions that a chunk must meet, by columns that chunks and chunks_fts both have."""
    conditions = []
    for name, condition in (
        ("source", "source = :source"),
        ("path", "path GLOB :path"),
        ("since", "memory_age(path, :since) <= 0"),
        ("until", "memory_age(path, :until) >= 0"),
    ):
        if value := getattr(options, name):
            conditions.append(condition)
            params[name] = value
    return conditions


def _vector_sql(layout: Layout, sides: Sides, filters: list[str]) -> str:
    if sides.scan:
        conditions = ["embed(:q) IS NOT NULL AND length(embedding) > 2", *filters]
        return (
            "SELECT id, cosine_similarity(embedding, embed(:q)) AS vector_score\n"
            f"FROM {layout.chunks}\nWHERE {_all_of(conditions)}\n"
            "ORDER BY vector_score DESC\nLIMIT :candidates"
        )
    conditions = ["embed(:q) IS NOT NULL AND embedding MATCH embed(:q) AND k = :candidates"]
    if filters:
        # The nearest of those that pass, and not those of the nearest that pass.
        conditions.append("id IN (SELECT id FROM allowed)")
    return (
        "SELECT id, 1 - vec_distance_cosine(embedding, embed(:q)) AS vector_score\n"
        f"FROM {layout.chunks_vec}\nWHERE {_all_of(conditions)}"
    )


def _text_sql(layout: Layout, options: SearchOptions, filters: list[str], params: dict[str, Any]) -> str:
    expression = "fts_query(:q)"
    if options.match != "auto":
        expression = "fts_query(:q, :match)"
        params["match"] = options.match
    conditions = [f"{layout.chunks_fts} MATCH {expression}", *filters]
    best = f"FROM {layout.chunks_fts}\nWHERE {_all_of(conditions)}\nORDER BY rank\nLIMIT :candidates"
    if options.text_norm == "relevance":
        return f"SELECT id, bm25_norm(rank) AS text_score\n{best}"
    text_score = {
        # Equal ones share a position.
        "rank": "bm25_norm(rank() OVER (ORDER BY rank) - 1)",
        "max": "rank / min(rank) OVER ()",
    }[options.text_norm]
    ranked = indent(f"SELECT id, rank\n{best}", "  ")
    return f"SELECT id, {text_score} AS text_score\nFROM (\n{ranked}\n)"


def _all_of(conditions: list[str]) -> str:
    return "\n  AND ".join(conditions)


def _scored_sql(layout: Layout, options: SearchOptions, sides: Sides, params: dict[str, Any]) -> str:
    """The rows with their scores, without WHERE and ORDER."""
    chunks = layout.chunks
    if sides.vector and sides.text:
        vector, text, hits = "vector_score", "text_score", "hits"
        if options.fusion == "rrf":
            # 1 for the first of a side; a common factor changes no order.
            vector, text = (f"{RRF_K + 1}.0 / ({RRF_K} + {side}_rank)" for side in ("vector", "text"))
            hits = "ranks"
        score = f"hybrid_score({vector}, {text}, :vector_weight, :text_weight)"
        params |= {"vector_weight": options.vector_weight, "text_weight": options.text_weight}
        source = (
            f"FROM candidates\nJOIN {chunks} USING (id)\n"
            f"LEFT JOIN vector_{hits} USING (id)\nLEFT JOIN text_{hits} USING (id)"
        )
        scores = ["vector_score", "text_score"]
    elif sides.vector:
        score = "vector_score"
        source = f"FROM vector_hits\nJOIN {chunks} USING (id)"
        scores = ["vector_score", "NULL AS text_score"]
    elif sides.text:
        score = "text_score"
        source = f"FROM text_hits\nJOIN {chunks} USING (id)"
        scores = ["NULL AS vector_score", "text_score"]
    else:
        score = "NULL"
        source = f"FROM {chunks}"
        scores = ["NULL AS vector_score", "NULL AS text_score"]
    if options.decay:
        age = "memory_age(path, :now)"
        params |= {"now": options.now, "half_life": options.half_life}
        score = f"decay({score}, {age}, :half_life)"
        scores += [f"{age} AS age_days", f"decay(1, {age}, :half_life) AS decay"]
    columns = ["path, start_line, end_line, source", f"{score} AS score", *scores, "text", "id"]
    return "SELECT " + ",\n  ".join(columns) + f"\n{source}"


def _ranks_sql(side: str) -> str:
    return (
        f"SELECT *, rank() OVER (ORDER BY {side}_score DESC) AS {side}_rank\n"
        f"FROM {side}_hits\nWHERE {side}_score IS NOT NULL"
    )
