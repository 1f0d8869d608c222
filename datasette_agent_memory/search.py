"""Running the fused SQL, and the answer.

The page, the JSON and the command line all search here: they run the same SQL text, and show it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from datasette.utils import sqlite_timelimit

from .config import DEFAULT_EMBEDDING_TIMEOUT_S, MAX_CANDIDATES, SearchOptions, resolve_options
from .connections import Connection, snapshot, sqlite3
from .embeddings.base import EmbeddingError, Provider
from .embeddings.chain import PROVIDERS_OF_ENVIRONMENT, Providers
from .embeddings.queries import NOT_ASKED, QUERY_VECTORS, Asked
from .errors import AgentMemoryError
from .fused_sql import FILTERS, Sides, Statement, build_sql
from .keywords import has_word
from .layouts import find_layout
from .notices import Notice, other_width, provider_of, substring_notice, usable_sides
from .openclaw import build_openclaw_sql
from .schema import MemoryIndex, as_line, as_text, read_meta
from .snippets import EXCERPT_CHARS, SNIPPET_CHARS, Snippet, Span, best_part, find_matches
from .sql_functions import normalised_weights, today
from .weak import WeakMatch, weak_match

#: As many as both sides can put forward.
_EVERYTHING = 2 * MAX_CANDIDATES


class NotAMemoryDatabase(AgentMemoryError):
    """The database holds no index of agent memory."""

    def __init__(self) -> None:
        super().__init__("This database holds no index of agent memory")


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
    #: Its place among what each side put forward, 1 first; None where that side did not.
    vector_rank: int | None
    text_rank: int | None
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

    def parts(self, options: SearchOptions) -> list[ScorePart]:
        """How its score is made up."""
        return score_parts(self.vector_score, self.text_score, self.decay, options)

    @property
    def citation(self) -> str:
        return citation_of(self.path, self.start_line, self.end_line)

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
            "vector_rank": self.vector_rank,
            "text_rank": self.text_rank,
        }


@dataclass(frozen=True)
class Answer:
    q: str
    options: SearchOptions
    #: What the options would be, had the search given none but its preset.
    defaults: SearchOptions
    index: MemoryIndex
    notices: list[Notice]
    hits: list[Hit]
    #: The path and source of all that the search found, in its order: the hits are the first of them.
    found: list[tuple[str, str]]
    #: Why what was found is hardly an answer, None where it may be one.
    weak: WeakMatch | None
    sides: Sides
    statement: Statement
    took_ms: dict[str, float]

    @property
    def sql(self) -> str:
        return self.statement.sql

    @property
    def params(self) -> dict[str, Any]:
        return self.statement.params

    @property
    def provider(self) -> str:
        return self.index.provider

    @property
    def model(self) -> str:
        return self.index.model

    def as_json(self, explanations: Sequence[Any] = ()) -> dict[str, Any]:
        """The answer as JSON, with an explanation of each result if there are any."""
        results = [hit.as_json() for hit in self.hits]
        for result, explanation in zip(results, explanations, strict=False):
            result["explanation"] = explanation.as_json()
        return {
            "ok": True,
            "query": self.query_as_json(),
            "provider": self.provider,
            "model": self.model,
            "dims": self.index.dims,
            "first_choice": not self.index.passed_over,
            "pending_chunks": self.index.pending,
            "notices": self.notices_as_json(),
            "weak_match": self.weak.as_json() if self.weak else None,
            "results": results,
            "sql": self.sql,
            "params": self.params,
            "took_ms": self.took_ms,
        }

    @property
    def places(self) -> dict[str, int]:
        """The place of each result, from 1, by its id."""
        return {hit.id: place for place, hit in enumerate(self.hits, 1)}

    def query_as_json(self) -> dict[str, Any]:
        return {"q": self.q, **self.options.as_parameters()}

    def notices_as_json(self) -> list[dict[str, str]]:
        return [{"code": notice.code, "message": notice.message} for notice in self.notices]

    def as_openclaw(self) -> dict[str, Any]:
        """The shape that OpenClaw's memory_search tool returns."""
        first = next(iter(self.index.passed_over), None)
        fallback = {"from": first["provider"], "reason": first["reason"]} if first else None
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
            **({"fallback": fallback} if fallback else {}),
            "citations": "on",
            "mode": self.options.mode,
        }


def citation_of(path: str, start_line: int, end_line: int) -> str:
    """a.md#L3, or a.md#L3-L9."""
    return f"{path}#{fragment_of(start_line, end_line)}"


def fragment_of(start_line: int, end_line: int | None) -> str:
    """L3, or L3-L9."""
    return f"L{start_line}-L{end_line}" if end_line and end_line > start_line else f"L{start_line}"


@dataclass(frozen=True)
class ScorePart:
    """What one side gives to a score: weight * value * decay."""

    side: str
    weight: float
    value: float | None
    contribution: float


def score_parts(
    vector_score: float | None, text_score: float | None, decay: float, options: SearchOptions
) -> list[ScorePart]:
    """How a score is made up; empty where it is of ranks, which don't add up from the values."""
    if options.mode == "hybrid" and options.fusion == "rrf":
        return []
    weights = {"vector": (1.0, 0.0), "keyword": (0.0, 1.0)}.get(
        options.mode, normalised_weights(options.vector_weight, options.text_weight)
    )
    return [
        ScorePart(side, weight, value, weight * (value or 0.0) * decay)
        for side, weight, value in zip(("vector", "text"), weights, (vector_score, text_score), strict=True)
        if weight
    ]


def query_provider(
    conn: Connection,
    q: str,
    given: Mapping[str, object] | None = None,
    configured: Mapping[str, object] | None = None,
    providers: Providers = PROVIDERS_OF_ENVIRONMENT,
) -> Provider | None:
    """The provider elsewhere than in this process whose vector of the query a search would need,
    and that has to be asked for it first; None for most searches. Raises as search does."""
    layout = find_layout(conn)
    if layout is None:
        raise NotAMemoryDatabase
    q = _without_surrogates(q)
    provider = provider_of(read_meta(conn, layout), providers)
    if provider is None or provider.in_process or not has_word(q):
        return None
    index = MemoryIndex.read(conn)
    if index is None:  # since a moment ago
        return None
    options = resolve_options(given or {}, configured, provider.search_defaults)
    sides, _ = usable_sides(index, options.mode, providers)
    return provider if sides.vector and QUERY_VECTORS.cached(provider.key, q) is None else None


def ask(
    conn: Connection,
    q: str,
    given: Mapping[str, object] | None = None,
    timeout_s: float = DEFAULT_EMBEDDING_TIMEOUT_S,
) -> Answer:
    """As search, but asks a provider outside this process for the query's vector first."""
    provider = query_provider(conn, q, given)
    if provider is None:
        return search(conn, q, given)
    started = time.perf_counter()
    failure = None
    try:
        QUERY_VECTORS.fetch(provider, _without_surrogates(q), timeout_s)
    except EmbeddingError as error:
        failure = str(error)
    return search(conn, q, given, asked=Asked(failure, _milliseconds_since(started)))


def search(
    conn: Connection,
    q: str,
    given: Mapping[str, object] | None = None,
    configured: Mapping[str, object] | None = None,
    time_limit_ms: int | None = None,
    providers: Providers = PROVIDERS_OF_ENVIRONMENT,
    asked: Asked = NOT_ASKED,
) -> Answer:
    """Search the memory index of a prepared connection.

    `given` and `configured` are search parameters by name. A provider outside this process
    is not asked: the vector of the query is to be in QUERY_VECTORS, and `asked` says how that
    went. Raises ParameterError for a bad value and NotAMemoryDatabase; whatever else is
    missing narrows the search and is said in the answer's notices.
    """
    with snapshot(conn):
        return _search(conn, q, given, configured, time_limit_ms, providers, asked)


def _search(
    conn: Connection,
    q: str,
    given: Mapping[str, object] | None,
    configured: Mapping[str, object] | None,
    time_limit_ms: int | None,
    providers: Providers,
    asked: Asked,
) -> Answer:
    started = time.perf_counter()
    q = _without_surrogates(q)
    index = MemoryIndex.read(conn)
    if index is None:
        raise NotAMemoryDatabase
    provider = provider_of(index.meta, providers)
    provider_defaults = provider.search_defaults if provider else None
    options = resolve_options(given or {}, configured, provider_defaults)
    defaults = resolve_options({"preset": options.preset}, configured, provider_defaults)
    options = replace(options, now=options.now or today().date().isoformat())
    sides, notices = usable_sides(index, options.mode, providers)

    embedding_started = time.perf_counter()
    if provider is not None and sides.vector and has_word(q):
        failure = _embed_query(provider, q, index, asked)
        if failure:
            notices.append(failure)
            sides = Sides(vector=False, text=index.has_fts, sessions=sides.sessions)
    embed_ms = asked.took_ms + _milliseconds_since(embedding_started)
    if q.strip() and not has_word(q):
        notices.append(Notice("no_words", "The query has no word in it, so nothing matches."))

    substring = None
    if sides.text and not options.is_replay:
        with sqlite_timelimit(conn, time_limit_ms) if time_limit_ms else nullcontext():
            substring = substring_notice(conn, index, q)
    if substring:
        notices.append(substring)
        sides = replace(sides, substring=True)

    sql_started = time.perf_counter()
    idle = _idle_filters(conn, index, options)
    attempts = [sides, *_narrower(sides)]
    for sides, next_sides in zip(attempts, [*attempts[1:], Sides(False, False)], strict=True):
        options = replace(options, mode=sides.mode)
        statement = statement_of(index, q, replace(options, **idle), sides)
        attempted = time.perf_counter()
        try:
            with sqlite_timelimit(conn, time_limit_ms) if time_limit_ms else nullcontext():
                # All that it would put in order: the first k of them are what LIMIT :k leaves.
                rows = conn.execute(statement.sql, {**statement.params, "k": _EVERYTHING}).fetchall()
            break
        except sqlite3.Error as error:
            rows = []
            # An interrupted statement has many errors: each function inside it fails its own way.
            timed_out = time_limit_ms is not None and _milliseconds_since(attempted) >= time_limit_ms
            notices.append(_failure(error, time_limit_ms if timed_out else None, next_sides))
    sql_ms = _milliseconds_since(sql_started)
    hits = _hits(rows[: options.k], q)
    with sqlite_timelimit(conn, time_limit_ms) if time_limit_ms else nullcontext():
        weak = weak_match(conn, index.layout, q, hits, sides, provider)

    return Answer(
        q=q,
        options=options,
        defaults=defaults,
        index=index,
        notices=notices,
        hits=hits,
        found=[(as_text(row["path"]), as_text(row["source"])) for row in rows],
        weak=weak,
        sides=sides,
        statement=statement,
        took_ms={"embed": embed_ms, "sql": sql_ms, "total": asked.took_ms + _milliseconds_since(started)},
    )


def statement_of(index: MemoryIndex, q: str, options: SearchOptions, sides: Sides) -> Statement:
    """The statement of a search by these options."""
    if options.is_replay:
        return build_openclaw_sql(index, q, options, sides)
    return build_sql(index.layout, q, options, sides)


def _idle_filters(conn: Connection, index: MemoryIndex, options: SearchOptions) -> dict[str, Any]:
    """Filters that every chunk passes, and that the statement does without: sqlite-vec looks up
    each chunk that passes by its id."""
    idle: dict[str, Any] = {}
    for name, condition in FILTERS.items():
        value = getattr(options, name)
        if not value:
            continue
        failing = f"SELECT 1 FROM {index.layout.chunks} WHERE ({condition}) IS NOT TRUE LIMIT 1"
        try:
            if conn.execute(failing, {name: value}).fetchone() is None:
                idle[name] = None
        except sqlite3.Error:  # the search itself will say
            pass
    return idle


def _embed_query(provider: Provider, q: str, index: MemoryIndex, asked: Asked) -> Notice | None:
    """Fill the cache that embed(:q) reads, so that its time is known; a notice if it fails."""
    vector, failure = None, asked.failure
    try:
        if provider.in_process:
            vector = QUERY_VECTORS.computed(provider, q)
        else:
            vector = QUERY_VECTORS.cached(provider.key, q)
    except EmbeddingError as error:
        failure = str(error)
    if vector is None:
        return Notice(
            "embedding_failed",
            f"The query could not be embedded, so only keywords were searched: {failure or 'no answer'}.",
        )
    dims = len(vector) // 4
    return other_width(index, dims) if dims != index.dims else None


def _without_surrogates(q: str) -> str:
    # The command line hands over undecodable bytes as surrogates, which SQLite refuses.
    return q.encode("utf-8", "replace").decode()


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
            id=as_text(row["id"]),
            path=as_text(row["path"]),
            start_line=as_line(row["start_line"]),
            end_line=as_line(row["end_line"]),
            source=as_text(row["source"]),
            score=row["score"],
            vector_score=row["vector_score"],
            text_score=row["text_score"],
            vector_rank=row["vector_rank"],
            text_rank=row["text_rank"],
            decay=row["decay"] if has_decay else 1.0,
            age_days=row["age_days"] if has_decay else None,
            text=text,
            matches=matches,
        )
        for row, text, matches in zip(rows, texts, find_matches(texts, q), strict=True)
    ]


def _milliseconds_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)
