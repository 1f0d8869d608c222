"""The fused SQL, running it, and the answer.

The page, the JSON and the command line run the SQL text that is built here, and show it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from textwrap import indent
from typing import Any

from datasette.utils import sqlite_timelimit

from .config import SearchOptions, resolve_options
from .connections import INSTALL_SQLITE_VEC, Connection, sqlite3
from .embeddings import provider_of_index, query_vector
from .errors import AgentMemoryError
from .keywords import CJK_RUN, has_word
from .layouts import Layout
from .schema import MemoryIndex, as_line, as_text
from .snippets import EXCERPT_CHARS, SNIPPET_CHARS, Snippet, Span, best_part, find_matches
from .sql_functions import normalised_weights, today

#: The constant of reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009).
RRF_K = 60


class NotAMemoryDatabase(AgentMemoryError):
    """The database holds no index of agent memory."""

    def __init__(self) -> None:
        super().__init__("This database holds no index of agent memory")


@dataclass(frozen=True)
class Notice:
    """What an answer lacks, why, and what to do."""

    code: str
    message: str


@dataclass(frozen=True)
class Hit:
    id: str
    path: str
    start_line: int
    end_line: int
    source: str
    score: float
    vector_score: float | None
    text_score: float | None
    decay: float
    age_days: float | None
    text: str
    #: The spans of the text that match the query.
    matches: list[Span]

    @property
    def snippet(self) -> Snippet:
        """The part of the text that programs are given."""
        return best_part(self.text, self.matches, SNIPPET_CHARS)

    @property
    def excerpt(self) -> Snippet:
        """The part of the text that people are shown."""
        return best_part(self.text, self.matches, EXCERPT_CHARS)

    @property
    def citation(self) -> str:
        if self.start_line == self.end_line:
            return f"{self.path}#L{self.start_line}"
        return f"{self.path}#L{self.start_line}-L{self.end_line}"

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "path": self.path,
            "start_line": self.start_line,
            "end_line": self.end_line,
            "source": self.source,
            "score": self.score,
            "vector_score": self.vector_score,
            "text_score": self.text_score,
            "decay": self.decay,
            "age_days": self.age_days,
            "snippet": self.snippet.text,
            "citation": self.citation,
        }


@dataclass(frozen=True)
class Sides:
    """Which sides of the search run, and whether vectors are scanned without sqlite-vec."""

    vector: bool
    text: bool
    scan: bool = False

    @property
    def mode(self) -> str:
        return "hybrid" if self.vector and self.text else "vector" if self.vector else "keyword"


@dataclass(frozen=True)
class Answer:
    q: str
    options: SearchOptions
    #: What the options would be, had the search given none but its preset.
    defaults: SearchOptions
    provider: str
    model: str
    notices: list[Notice]
    hits: list[Hit]
    sql: str
    params: dict[str, Any]
    took_ms: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": True,
            "query": {"q": self.q, **self.options.as_parameters()},
            "provider": self.provider,
            "model": self.model,
            "notices": [{"code": notice.code, "message": notice.message} for notice in self.notices],
            "results": [hit.as_json() for hit in self.hits],
            "sql": self.sql,
            "params": self.params,
            "took_ms": self.took_ms,
        }

    def as_openclaw(self) -> dict[str, Any]:
        """The shape that OpenClaw's memory_search tool returns."""
        return {
            "results": [
                {
                    "path": hit.path,
                    "startLine": hit.start_line,
                    "endLine": hit.end_line,
                    "score": hit.score,
                    "snippet": hit.snippet.text,
                    "source": hit.source,
                    "citation": hit.citation,
                }
                for hit in self.hits
            ],
            "provider": self.provider,
            "model": self.model,
            "citations": "on",
            "mode": self.options.mode,
        }


@dataclass(frozen=True)
class ScorePart:
    """What one side gives to a score: weight * value * decay."""

    side: str
    weight: float
    value: float | None
    contribution: float


def score_parts(hit: Hit, options: SearchOptions) -> list[ScorePart]:
    """How a hit's score is made up; empty where it is of ranks, which don't add up from the values."""
    if options.mode == "hybrid" and options.fusion == "rrf":
        return []
    weights = {"vector": (1.0, 0.0), "keyword": (0.0, 1.0)}.get(
        options.mode, normalised_weights(options.vector_weight, options.text_weight)
    )
    return [
        ScorePart(side, weight, value, weight * (value or 0.0) * hit.decay)
        for side, weight, value in zip(
            ("vector", "text"), weights, (hit.vector_score, hit.text_score), strict=True
        )
        if weight
    ]


def search(
    conn: Connection,
    q: str,
    given: Mapping[str, object] | None = None,
    configured: Mapping[str, object] | None = None,
    time_limit_ms: int | None = None,
) -> Answer:
    """Search the memory index of a prepared connection.

    `given` and `configured` are search parameters by name. Raises ParameterError for a
    bad value and NotAMemoryDatabase; whatever else is missing narrows the search and is
    said in the answer's notices.
    """
    started = time.perf_counter()
    # The command line hands over undecodable bytes as surrogates, which SQLite refuses.
    q = q.encode("utf-8", "replace").decode()
    index = MemoryIndex.read(conn)
    if index is None:
        raise NotAMemoryDatabase
    provider = provider_of_index(index.provider, index.model)
    provider_defaults = provider.search_defaults if provider else None
    options = resolve_options(given or {}, configured, provider_defaults)
    defaults = resolve_options({"preset": options.preset}, configured, provider_defaults)
    options = replace(options, now=options.now or today().date().isoformat())
    sides, notices = usable_sides(index, options.mode)

    embedding_started = time.perf_counter()
    if sides.vector and has_word(q):
        failure = _embed_query(index.provider, q)
        if failure:
            notices.append(failure)
            sides = Sides(vector=False, text=index.has_fts)
    embed_ms = _milliseconds_since(embedding_started)
    if q.strip() and not has_word(q):
        notices.append(Notice("no_words", "The query has no word in it, so nothing matches."))

    if sides.text and not index.has_cjk and CJK_RUN.search(q):
        notices.append(
            Notice(
                "no_cjk",
                "Another program made this index, whose full-text table holds runs of Chinese, Japanese or "
                "Korean whole, so that words inside them are not found; index the folder into a database "
                "of its own to find them.",
            )
        )

    sql_started = time.perf_counter()
    attempts = [sides, *_narrower(sides)]
    for sides, next_sides in zip(attempts, [*attempts[1:], Sides(False, False)], strict=True):
        options = replace(options, mode=sides.mode)
        sql, params = build_sql(index.layout, q, options, sides)
        attempted = time.perf_counter()
        try:
            with sqlite_timelimit(conn, time_limit_ms) if time_limit_ms else nullcontext():
                rows = conn.execute(sql, params).fetchall()
            break
        except sqlite3.Error as error:
            rows = []
            # An interrupted statement has many errors: each function inside it fails its own way.
            timed_out = time_limit_ms is not None and _milliseconds_since(attempted) >= time_limit_ms
            notices.append(_failure(error, time_limit_ms if timed_out else None, next_sides))
    sql_ms = _milliseconds_since(sql_started)

    return Answer(
        q=q,
        options=options,
        defaults=defaults,
        provider=index.provider,
        model=index.model,
        notices=notices,
        hits=_hits(rows, q),
        sql=sql,
        params=params,
        took_ms={"embed": embed_ms, "sql": sql_ms, "total": _milliseconds_since(started)},
    )


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


def usable_sides(index: MemoryIndex, mode: str) -> tuple[Sides, list[Notice]]:
    """What of the mode this index and this process can do, with a notice for what not."""
    if not index.has_chunks:
        notices = [Notice("empty_index", "The index is empty: no file with text has been indexed yet.")]
        return Sides(vector=False, text=index.has_fts), notices
    notices = []
    vector, text = mode != "keyword", mode != "vector"
    scan = False
    if vector:
        missing = _missing_vectors(index)
        if missing:
            notices.append(missing)
            vector, text = False, True
        elif not (index.has_vec_table and index.has_sqlite_vec):
            scan = True
            notices.append(_scan_notice(index))
    if text and not index.has_fts:
        searched = "only vectors were searched" if vector else "nothing could be searched by keyword"
        notices.append(
            Notice(
                "no_fts",
                f"The full-text table {index.layout.chunks_fts} is missing, so {searched}; "
                "datasette agent-memory index makes it again.",
            )
        )
        text = False
    return Sides(vector, text, scan), notices


def _missing_vectors(index: MemoryIndex) -> Notice | None:
    """Why the index's vectors cannot be searched, None where they can."""
    if not index.has_embeddings:
        return Notice(
            "no_vectors",
            "This index has no vectors, so only keywords were searched; "
            "datasette agent-memory index --provider embedded adds them.",
        )
    provider = provider_of_index(index.provider, index.model)
    made_by = f"{index.provider} {index.model}".strip()
    if provider is None:
        return Notice(
            "model_unavailable",
            f"The index's vectors are of {made_by}, which is not available here, so only keywords were "
            "searched; index the folder into a database of its own to search by meaning.",
        )
    if index.dims != provider.dims:
        return Notice(
            "dimension_mismatch",
            f"The index's vectors have {index.dims} dimensions and those of {made_by} have {provider.dims}, "
            "so only keywords were searched; datasette agent-memory index --force makes them again.",
        )
    return None


def _scan_notice(index: MemoryIndex) -> Notice:
    if index.has_sqlite_vec:
        return Notice(
            "no_vec_table",
            f"The vector table {index.layout.chunks_vec} is missing, so vectors were compared one by one, "
            "which is slow; datasette agent-memory index makes it again.",
        )
    return Notice(
        "no_sqlite_vec",
        "sqlite-vec cannot be loaded, so vectors were compared one by one, which is slow; "
        f"{INSTALL_SQLITE_VEC}.",
    )


def _embed_query(provider: str, q: str) -> Notice | None:
    """Fill the cache that embed(:q) reads, so that its time is known; a notice if it fails."""
    from .embeddings.base import EmbeddingError

    try:
        query_vector(provider, q)
    except EmbeddingError as error:
        return Notice(
            "embedding_failed", f"The query could not be embedded, so only keywords were searched: {error}."
        )
    return None


def _narrower(sides: Sides) -> list[Sides]:
    """What is left to try, in this order, when a search failed."""
    if not (sides.vector and sides.text):
        return []
    return [replace(sides, vector=False), replace(sides, text=False)]


def _failure(error: Exception, time_limit_ms: int | None, next_sides: Sides) -> Notice:
    """Why a search failed, by the time limit, if it is given, or by an error, and what comes next."""
    if next_sides.text:
        searched = "only keywords were searched"
    elif next_sides.vector:
        searched = "only vectors were searched"
    else:
        searched = "there are no results"
    if time_limit_ms is not None:
        return Notice("timeout", f"The search took more than {time_limit_ms} ms, so {searched}.")
    return Notice("search_failed", f"SQLite could not run the search, so {searched}: {error}.")


def _hits(rows: list[Any], q: str) -> list[Hit]:
    columns = rows[0].keys() if rows else ()
    has_decay = "decay" in columns
    texts = [as_text(row["text"]) for row in rows]
    return [
        Hit(
            id=row["id"],
            path=as_text(row["path"]),
            start_line=as_line(row["start_line"]),
            end_line=as_line(row["end_line"]),
            source=as_text(row["source"]),
            score=row["score"],
            vector_score=row["vector_score"],
            text_score=row["text_score"],
            decay=row["decay"] if has_decay else 1.0,
            age_days=row["age_days"] if has_decay else None,
            text=text,
            matches=matches,
        )
        for row, text, matches in zip(rows, texts, find_matches(texts, q), strict=True)
    ]


def _milliseconds_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)
