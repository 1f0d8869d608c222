"""The SQL functions, registered on every connection.

They never raise: NULL or nonsense in gives NULL, except for fts_query, which gives an
expression that matches nothing. A number may be given as text, since Datasette passes
every query parameter that way. See docs/sql-functions.md.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable
from datetime import date, datetime, timezone
from functools import wraps
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .connections import Connection, sqlite3
from .keywords import (
    CJK_RUN,
    NO_MATCH,
    QUERY_MODES,
    count_word,
    fts_query,
    has_word,
    plain_words,
    query_terms,
)
from .layouts import find_layout
from .schema import read_meta

if TYPE_CHECKING:
    from .embeddings.chain import Providers

DEFAULT_VECTOR_WEIGHT = 0.7
DEFAULT_TEXT_WEIGHT = 0.3
DEFAULT_HALF_LIFE_DAYS = 30.0

#: BM25's k1 and b as FTS5 has them.
BM25_K1, BM25_B = 1.2, 0.75

#: The time of MMR grows with the square of the rows, and SQLite cannot interrupt it.
MAX_DIVERSIFIED = 512

_DATED_NAME = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?![0-9])")
_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ]([0-9]{2}:[0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?([Zz]|[+-][0-9]{2}:[0-9]{2})?)?"
)
_SECONDS_A_DAY = 86400


def register(conn: Connection, providers: Providers | None = None) -> None:
    """Register the functions on a connection, and the aggregate `mmr`.

    `providers` are those that `embed` may use, by default the environment's.
    """
    functions: list[tuple[str, int, Callable[..., Any]]] = [
        ("bm25_norm", 1, bm25_norm),
        ("hybrid_score", 2, hybrid_score),
        ("hybrid_score", 4, hybrid_score),
        ("decay", 2, decay),
        ("decay", 3, decay),
        ("memory_age", 2, memory_age),
        ("fts_query", 1, _fts_query),
        ("fts_query", 2, _fts_query),
        ("fts_terms", 1, _fts_terms),
        ("fts_terms", 2, _fts_terms),
        ("query_words", 1, _query_words),
        ("word_count", 2, _word_count),
        ("bm25_ceiling", 2, bm25_ceiling),
        ("cosine_similarity", 2, cosine_similarity),
        ("passage_similarity", 2, passage_similarity),
        ("embed", 1, _embed_for(conn, providers)),
    ]
    functions += _openclaw_functions()
    for name, arguments, function in functions:
        _create_function(conn, name, arguments, function, deterministic=True)
    # Without `now` the value changes from day to day.
    _create_function(conn, "memory_age", 1, memory_age, deterministic=False)
    conn.create_aggregate("mmr", 4, MaximalMarginalRelevance)


def _openclaw_functions() -> list[tuple[str, int, Callable[..., Any]]]:
    from . import openclaw

    return [
        ("openclaw_query", 1, openclaw.openclaw_query),
        ("openclaw_query", 2, openclaw.openclaw_query),
        ("openclaw_short_words", 1, openclaw.openclaw_short_words),
        ("openclaw_keywords", 1, openclaw.openclaw_keywords),
        ("openclaw_keywords", 2, openclaw.openclaw_keywords),
        ("openclaw_age", 4, openclaw.openclaw_age),
        ("openclaw_words", 1, openclaw.openclaw_words),
    ]


def bm25_norm(rank: object) -> float | None:
    """Relevance in [0, 1] of a rank.

    Below 0 it is FTS5's bm25(), where lower is better: r / (1 + r) with r = -rank. From 0
    on it is a position, 0 first: 1 / (1 + rank).
    """
    number = _number(rank)
    if number is None:
        return None
    if number < 0:
        return -number / (1 - number)
    return 1 / (1 + number)


def bm25_ceiling(chunks: object, total: object) -> float | None:
    """The most that a word in so many chunks, of so many in all, adds to -bm25().

    That is (k1 + 1) times its inverse document frequency, as FTS5 has them: k1 = 1.2, and
    ln((total - chunks + 0.5) / (chunks + 0.5)), at least 1e-6 (Robertson and Zaragoza,
    2009). A word that no chunk has weighs as if one had it.
    """
    having, all_ = _number(chunks), _number(total)
    if having is None or all_ is None or not 0 <= having <= all_:
        return None
    having = min(max(1.0, having), max(1.0, all_))
    ratio = (max(1.0, all_) - having + 0.5) / (having + 0.5)
    return (BM25_K1 + 1) * max(1e-6, math.log(ratio))


def hybrid_score(
    vector_score: object,
    text_score: object,
    vector_weight: object = DEFAULT_VECTOR_WEIGHT,
    text_weight: object = DEFAULT_TEXT_WEIGHT,
) -> float | None:
    """Weighted sum of two scores; one that is NULL counts 0, and NULL if both are.

    Weights are clamped to [0, 1] and divided by their sum; if both are 0, 0.7 and 0.3.
    """
    if vector_score is None and text_score is None:
        return None
    vector = 0.0 if vector_score is None else _number(vector_score)
    text = 0.0 if text_score is None else _number(text_score)
    vector_share, text_share = _number(vector_weight), _number(text_weight)
    if vector is None or text is None or vector_share is None or text_share is None:
        return None
    vector_share, text_share = normalised_weights(vector_share, text_share)
    return vector_share * vector + text_share * text


def normalised_weights(vector_weight: float, text_weight: float) -> tuple[float, float]:
    """The two weights, clamped to [0, 1], as shares that add up to 1."""
    vector = min(1.0, max(0.0, vector_weight))
    text = min(1.0, max(0.0, text_weight))
    total = vector + text
    if total == 0:
        return DEFAULT_VECTOR_WEIGHT, DEFAULT_TEXT_WEIGHT
    return vector / total, text / total


def decay(score: object, age_days: object, half_life_days: object = DEFAULT_HALF_LIFE_DAYS) -> float | None:
    """A score halved for each half life of age, in days: score * exp(-ln 2 * age / half life).

    NULL age is evergreen and changes nothing, nor does an age below 0; NULL for a half
    life that is not above 0.
    """
    number, half_life = _number(score), _number(half_life_days)
    if number is None or half_life is None or half_life <= 0:
        return None
    if age_days is None:
        return number
    age = _number(age_days)
    if age is None:
        return None
    return number * math.exp(-math.log(2) / half_life * max(0.0, age))


def memory_age(path: object, now: object = None) -> float | None:
    """Days from the date that a path's basename starts with to `now`, below 0 for the future.

    `now` is an ISO 8601 date or time, by default today (UTC); NULL where the name has no
    date, or one that is not in the calendar.
    """
    if not isinstance(path, str):
        return None
    day = date_of_path(path)
    moment = parse_moment(now) if now is not None else today()
    if day is None or moment is None:
        return None
    return (moment - day).total_seconds() / _SECONDS_A_DAY


def date_of_path(path: str) -> datetime | None:
    """The date that a path's basename starts with, None where it has none of the calendar."""
    match = _DATED_NAME.match(path.rpartition("/")[2])
    try:
        return datetime(int(match[1]), int(match[2]), int(match[3])) if match else None
    except ValueError:
        return None


def parse_moment(text: object) -> datetime | None:
    """A date or time like 2026-01-31 or 2026-01-31T12:00:00Z as naive UTC, None for anything else."""
    match = _MOMENT.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        return None
    day, minute, second, fraction, zone = match.groups()
    # What all Pythons from 3.10 on read: six digits of a second, and no Z.
    time = f"T{minute}:{second or '00'}.{(fraction or '')[:6]:0<6}" if minute else ""
    zone = "+00:00" if zone in ("Z", "z") else zone or ""
    try:
        moment = datetime.fromisoformat(f"{day}{time}{zone}")
        if moment.tzinfo is not None:
            moment = moment.astimezone(timezone.utc).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None
    return moment


def cosine_similarity(a: object, b: object) -> float | None:
    """Cosine of two vectors, each a blob of float32 or a JSON array.

    NULL for different lengths, a zero vector, or what is no vector.
    """
    first, second = _vector(a), _vector(b)
    if first is None or second is None or len(first) != len(second):
        return None
    product = float(first @ second)
    norms = math.sqrt(float(first @ first)) * math.sqrt(float(second @ second))
    if not norms or not math.isfinite(product) or not math.isfinite(norms):
        return None
    return product / norms


def passage_similarity(passages: object, vector: object) -> float | None:
    """The greatest cosine of a vector and those of a chunk's passages, as passages.py packs them.

    NULL where there are none, for another width, or for what is no vector.
    """
    from .passages import unpack

    second = _vector(vector)
    first = unpack(passages, len(second)) if second is not None else None
    if first is None or second is None:
        return None
    import numpy as np

    lengths = np.linalg.norm(first, axis=1) * math.sqrt(float(second @ second))
    with np.errstate(all="ignore"):
        similarities = first @ second.astype(np.float32) / lengths
    greatest = float(similarities.max())
    return greatest if math.isfinite(greatest) else None


class MaximalMarginalRelevance:
    """mmr(id, score, text, lambda): a JSON array of the ids, each next one chosen for
    lambda * relevance - (1 - lambda) * its greatest likeness to one chosen before.

    Relevance is the score, min-max normalised over the group; likeness is Jaccard's of
    the words, where a CJK run counts as its characters and bigrams. Of equals, the higher
    score comes first, then the first given (Carbonell and Goldstein, 1998). So are the
    MAX_DIVERSIFIED rows with the highest scores; any others follow them by score.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[float, Any, object]] = []
        self._lambda: float | None = None

    def step(self, identifier: object, score: object, text: object, weight: object) -> None:
        number = _number(score)
        self._lambda = _number(weight)
        if number is not None and isinstance(identifier, (str, int, float)):
            self._rows.append((number, identifier, text))

    def finalize(self) -> str | None:
        if self._lambda is None:
            return None
        rows = sorted(self._rows, key=lambda row: -row[0])
        first, others = rows[:MAX_DIVERSIFIED], rows[MAX_DIVERSIFIED:]
        order = _mmr_order(
            [score for score, _, _ in rows],
            [_likeness_terms(text) for _, _, text in first],
            min(1.0, max(0.0, self._lambda)),
        )
        identifiers = [first[index][1] for index in order] + [identifier for _, identifier, _ in others]
        return json.dumps(identifiers, ensure_ascii=False)


def _mmr_order(scores: list[float], terms: list[set[str]], weight: float) -> list[int]:
    """Indexes of the terms in the order of choice; scores, of these and others, descend."""
    import numpy as np

    count = len(terms)
    if not count:
        return []
    spread = scores[0] - scores[-1]
    relevance = np.array([(score - scores[-1]) / spread if spread else 1.0 for score in scores[:count]])
    sizes = np.array([len(own) for own in terms])
    postings: defaultdict[str, list[int]] = defaultdict(list)
    for index, own in enumerate(terms):
        for term in own:
            postings[term].append(index)
    places = {term: np.array(indexes) for term, indexes in postings.items()}

    likeness = np.zeros(count)
    open_ = np.ones(count, dtype=bool)
    order: list[int] = []
    for _ in range(count):
        value = np.where(open_, weight * relevance - (1 - weight) * likeness, -np.inf)
        # argmax takes the first of equals: the one with the higher score.
        chosen = int(value.argmax())
        order.append(chosen)
        open_[chosen] = False
        shared = np.zeros(count)
        for term in terms[chosen]:
            shared[places[term]] += 1
        union = sizes + sizes[chosen] - shared
        # Two texts without a word are alike.
        jaccard = np.divide(shared, union, out=np.ones(count), where=union > 0)
        likeness = np.maximum(likeness, jaccard)
    return order


def _likeness_terms(text: object) -> set[str]:
    if not isinstance(text, str):
        return set()
    text = text.casefold()
    terms = set(re.findall(r"\w+", text))
    for run in CJK_RUN.findall(text):
        terms.update(run, map("".join, pairwise(run)))
    return terms


def _fts_terms(text: object, mode: object = "auto") -> str:
    """A JSON array of the terms that fts_query joins."""
    known = str(mode) if mode in QUERY_MODES else None
    terms = query_terms(text, known) if isinstance(text, str) and known else []
    return json.dumps(terms, ensure_ascii=False)


def _query_words(text: object) -> str:
    """A JSON array of the words of a query as they stand in a text, in lower case."""
    return json.dumps(plain_words(text) if isinstance(text, str) else [], ensure_ascii=False)


def _word_count(text: object, word: object) -> int | None:
    """How often a text has a word, whatever its case."""
    return count_word(text, word) if isinstance(text, str) and isinstance(word, str) else None


def _fts_query(text: object, mode: object = "auto") -> str:
    try:
        return fts_query(text, mode if isinstance(mode, str) else "auto")
    except ValueError:
        return NO_MATCH


def _embed_for(conn: Connection, providers: Providers | None) -> Callable[[object], bytes | None]:
    def embed(text: object) -> bytes | None:
        """The query vector by the model of this database's index, or by the embedded one
        where there is no index; NULL without a word, and where the model is neither in this
        process nor in its cache of query vectors."""
        if not isinstance(text, str) or not has_word(text):
            return None
        from .embeddings.base import EmbeddingError
        from .embeddings.chain import PROVIDERS_OF_ENVIRONMENT
        from .embeddings.queries import QUERY_VECTORS

        known = providers or PROVIDERS_OF_ENVIRONMENT
        layout = find_layout(conn)
        try:
            provider = known.of_index(read_meta(conn, layout)) if layout else known.get("embedded")
            if not provider.in_process:
                return QUERY_VECTORS.cached(provider.key, text)
            return QUERY_VECTORS.computed(provider, text)
        except EmbeddingError:
            return None

    return embed


def _create_function(
    conn: Connection, name: str, arguments: int, function: Callable[..., Any], deterministic: bool
) -> None:
    guarded = _never_raising(function)
    try:
        conn.create_function(name, arguments, guarded, deterministic=deterministic)
    except sqlite3.NotSupportedError:  # SQLite before 3.8.3
        conn.create_function(name, arguments, guarded)


def _never_raising(function: Callable[..., Any]) -> Callable[..., Any]:
    """An exception in a Python function prints a traceback and hides its cause from SQL."""

    @wraps(function)
    def guarded(*arguments: object) -> Any:
        try:
            return function(*arguments)
        except Exception:
            return None

    return guarded


def _number(value: object) -> float | None:
    """A finite number, given as one or as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _vector(value: object) -> Any:
    import numpy as np

    from .embeddings.base import from_json

    if isinstance(value, bytes):
        if not value or len(value) % 4:
            return None
        vector = np.frombuffer(value, dtype="<f4")
    elif isinstance(value, str):
        try:
            vector = from_json(value)
        except (ValueError, TypeError, RecursionError):
            return None
    else:
        return None
    # In float64 the sums are exact to more digits than the float32 values have.
    return (
        vector.astype(np.float64) if vector.ndim == 1 and len(vector) and np.isfinite(vector).all() else None
    )


def today() -> datetime:
    today: date = datetime.now(timezone.utc).date()
    return datetime(today.year, today.month, today.day)
