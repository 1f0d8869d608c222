"""What OpenClaw 2026.3.31 would have found: the statement of `preset=openclaw`.

Its rules are not ours: every word must be in the chunk, a chunk has nothing from a side that
did not put it forward, only `memory/2026-01-05.md` ages by its name, and a keyword hit below
the minimum score is lost unless there is nothing else.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from itertools import pairwise
from typing import Any

from .config import SearchOptions
from .fused_sql import FILTERS, Sides, Statement, all_of, ranks_of
from .keywords import MAX_TERMS, NO_MATCH
from .schema import MemoryIndex
from .sql_functions import date_of_path, parse_moment
from .stop_words import STOP_WORDS

#: It never looks at more of a side.
_MAX_CANDIDATES = 200
#: What it returns of a chunk, in units of UTF-16, is also what its MMR compares.
_SNIPPET_UNITS = 700

_TOKEN = re.compile(r"\w+")
_SEPARATORS = re.compile(
    r"[\s!-#%-*,-/:;?@\[-\]_{}\u00a1\u00a7\u00ab\u00b6\u00b7\u00bb\u00bf\u2010-\u2027\u2030-\u205e"
    r"\u3001-\u3003\u3008-\u3011\u3014-\u301f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff3d\uff5b\uff5d"
    r"\uff5f-\uff65]+"
)
_SHORT_IN_TRIGRAM = re.compile("[\u3041-\u30ff\u3400-\u9fff\uac00-\ud7a3\u3131-\u3163]")
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")
_KANA = re.compile("[\u3040-\u30ff]")
_HANGUL = re.compile("[\uac00-\ud7a3\u3131-\u318e]")
_ALIKE_CJK = re.compile("[\u3041-\u309f\u30a0-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\u1100-\u11ff]")
_JAPANESE_PARTS = re.compile("[a-z0-9_]+|[\u30a1-\u30ff]+|[\u3400-\u4dbf\u4e00-\u9fff]+|[\u3041-\u309f]{2,}")
_DATED_PATH = re.compile(r"(?:^|/)memory/[0-9]{4}-[0-9]{2}-[0-9]{2}\.md$")
_SECONDS_A_DAY = 86400
# Longer ones first.
_KOREAN_PARTICLES = (
    *("에서는", "으로는", "에게서", "에서", "으로", "에게", "한테", "부터", "까지", "처럼", "보다"),
    *("은", "는", "이", "가", "을", "를", "의", "에", "로", "와", "과", "도", "만"),
)


def build_openclaw_sql(index: MemoryIndex, q: str, options: SearchOptions, sides: Sides) -> Statement:
    """The statement of the replay."""
    return _Builder(index, q, options, sides).build()


class _Builder:
    def __init__(self, index: MemoryIndex, q: str, options: SearchOptions, sides: Sides) -> None:
        self.index = index
        self.layout = index.layout
        self.q = q
        self.options = options
        self.sides = sides
        self.params: dict[str, Any] = {"q": q, "candidates": min(_MAX_CANDIDATES, options.candidates)}
        self.filters: list[str] = []
        for name, condition in FILTERS.items():
            if value := getattr(options, name):
                self.filters.append(condition)
                self.params[name] = value

    def build(self) -> Statement:
        options, sides, chunks = self.options, self.sides, self.layout.chunks
        ctes: list[tuple[str, str]] = []
        if sides.vector:
            if self.filters and not sides.scan and self._is_normalised:
                allowed = f"SELECT id FROM {chunks}\nWHERE {all_of(self.filters)}"
                ctes.append(("allowed AS MATERIALIZED", allowed))
            ctes.append(("vector_hits AS MATERIALIZED", self._vector_hits()))
            ctes.append(ranks_of("vector", "vector_score DESC"))
        if sides.text:
            is_alone = not self.index.has_embeddings
            text_hits = self._keyword_hits() if is_alone else self._text_hits()
            ctes.append(("text_hits AS MATERIALIZED", text_hits))
            ctes.append(ranks_of("text", "text_score DESC"))
        if sides.vector and sides.text:
            ctes.append(("candidates AS", "SELECT id FROM vector_hits UNION SELECT id FROM text_hits"))
            score = "hybrid_score(vector_score, text_score, :vector_weight, :text_weight)"
            scores = ["vector_score", "text_score", "vector_rank", "text_rank"]
            source = (
                f"FROM candidates\nJOIN {chunks} USING (id)\n"
                "LEFT JOIN vector_ranks USING (id)\nLEFT JOIN text_ranks USING (id)"
            )
            self.params |= {"vector_weight": options.vector_weight, "text_weight": options.text_weight}
        elif sides.vector:
            score = "vector_score"
            scores = ["vector_score", "NULL AS text_score", "vector_rank", "NULL AS text_rank"]
            source = f"FROM vector_ranks\nJOIN {chunks} USING (id)"
        elif sides.text:
            score = "text_score"
            scores = ["NULL AS vector_score", "text_score", "NULL AS vector_rank", "text_rank"]
            source = f"FROM text_ranks\nJOIN {chunks} USING (id)"
        else:
            score = "NULL"
            scores = [f"NULL AS {side}_{of}" for of in ("score", "rank") for side in ("vector", "text")]
            source = f"FROM {chunks}"
        if options.decay:
            mtime = f"(SELECT mtime FROM {self.layout.files} AS files WHERE files.path = {chunks}.path)"
            age = f"openclaw_age(path, source, {mtime if self.index.has_files else 'NULL'}, :now)"
            self.params |= {"now": options.now, "half_life": options.half_life}
            score = f"decay({score}, {age}, :half_life)"
            scores += [f"{age} AS age_days", f"decay(1, {age}, :half_life) AS decay"]
        columns = ["path, start_line, end_line, source", f"{score} AS score", *scores, "text", "id"]
        # Of equals the one that was indexed first comes first, as its rows do.
        columns.append(f"{chunks}.rowid AS place")
        scored = "SELECT " + ",\n  ".join(columns) + f"\n{source}"
        ctes.append(("scored AS MATERIALIZED", scored))
        order = "score DESC, vector_score IS NULL, place"
        selected = "FROM scored"
        if options.mmr:
            ctes.append(
                (
                    "diversified AS",
                    "SELECT value AS id, key AS position\nFROM json_each((\n"
                    "  SELECT mmr(id, score, openclaw_words(text), :lambda)\n"
                    f"  FROM (SELECT * FROM scored ORDER BY {order})\n))",
                )
            )
            self.params["lambda"] = options.lambda_
            selected, order = "FROM scored\nJOIN diversified USING (id)", "position"
        self.params |= {"min_score": options.min_score, "k": options.k}
        select = f"SELECT scored.*\n{selected}\nWHERE {self._passes()}\nORDER BY {order}\nLIMIT :k"
        return Statement(ctes, select, self.params)

    def _passes(self) -> str:
        passes = "score >= CAST(:min_score AS REAL)"
        if not self.sides.text:
            return passes
        if self.sides.vector:
            # If nothing passes, keyword hits that have the weight of their side.
            floor = "min(CAST(:min_score AS REAL), hybrid_score(0, 1, :vector_weight, :text_weight))"
            relaxed = f"text_score IS NOT NULL AND score >= {floor}"
        elif self.index.has_embeddings:
            relaxed = "score >= CAST(:min_score AS REAL)"
        else:
            relaxed = "score >= 0"
        return f"{passes}\n  OR NOT EXISTS (SELECT 1 FROM scored WHERE {passes}) AND {relaxed}"

    @property
    def _is_normalised(self) -> bool:
        """Whether the nearest by length are the nearest by angle."""
        return self.index.meta.get("normalised") is True

    def _vector_hits(self) -> str:
        if self.sides.scan:
            conditions = ["embed(:q) IS NOT NULL AND length(embedding) > 2", *self.filters]
            return (
                "SELECT id, cosine_similarity(embedding, embed(:q)) AS vector_score\n"
                f"FROM {self.layout.chunks}\nWHERE {all_of(conditions)}\n"
                "ORDER BY vector_score DESC\nLIMIT :candidates"
            )
        if self._is_normalised:
            conditions = ["embed(:q) IS NOT NULL AND embedding MATCH embed(:q) AND k = :candidates"]
            if self.filters:
                conditions.append("id IN (SELECT id FROM allowed)")
            return (
                "SELECT id, 1 - vec_distance_cosine(embedding, embed(:q)) AS vector_score\n"
                f"FROM {self.layout.chunks_vec}\nWHERE {all_of(conditions)}"
            )
        conditions = ["embed(:q) IS NOT NULL", *self.filters]
        return (
            "SELECT vectors.id, 1 - vec_distance_cosine(vectors.embedding, embed(:q)) AS vector_score\n"
            f"FROM {self.layout.chunks_vec} AS vectors\nJOIN {self.layout.chunks} USING (id)\n"
            f"WHERE {all_of(conditions)}\nORDER BY vector_score DESC\nLIMIT :candidates"
        )

    def _text_hits(self) -> str:
        fts = self.layout.chunks_fts
        conditions = []
        rank = "bm25_norm(rank)"
        if self.index.tokenizer != "trigram":
            conditions.append(f"{fts} MATCH openclaw_query(:q)")
        else:
            # Its trigrams find no word of fewer than three characters; those of CJK are looked for.
            tokens = openclaw_tokens(self.q)
            if any(not _is_short(token) for token in tokens) or not tokens:
                conditions.append(f"{fts} MATCH openclaw_query(:q, 'trigram')")
            else:
                rank = "bm25_norm(0)"
            if any(_is_short(token) for token in tokens):
                missing = "SELECT 1 FROM json_each(openclaw_short_words(:q)) WHERE NOT instr(text, value)"
                conditions.append(f"NOT EXISTS ({missing})")
        order = "rank" if rank == "bm25_norm(rank)" else "rowid"
        return (
            f"SELECT id, {rank} AS text_score\nFROM {fts}\n"
            f"WHERE {all_of([*conditions, *self.filters])}\nORDER BY {order}\nLIMIT :candidates"
        )

    def _keyword_hits(self) -> str:
        """Without vectors: each word that says something for itself, and the best of them counts."""
        fts = self.layout.chunks_fts
        # json_each has a column path as well.
        filters = [re.sub(r"(?<!:)\bpath\b", f"{fts}.path", condition) for condition in self.filters]
        conditions = [f"{fts} MATCH value", *filters]
        trigram = ", 'trigram'" if self.index.tokenizer == "trigram" else ""
        return (
            f"SELECT {fts}.id, max(bm25_norm(rank)) AS text_score\n"
            f"FROM json_each(openclaw_keywords(:q{trigram}))\nJOIN {fts} ON {all_of(conditions)}\n"
            f"GROUP BY {fts}.id\nORDER BY text_score DESC"
        )


def openclaw_query(text: object, tokenizer: object = "unicode61") -> str:
    """OpenClaw's MATCH expression: every run of letters, digits and _ is a word, and all must be there."""
    tokens = openclaw_tokens(text)
    if tokenizer == "trigram":
        tokens = [token for token in tokens if not _is_short(token)]
    return " AND ".join(f'"{token}"' for token in tokens) or NO_MATCH


def openclaw_tokens(text: object) -> list[str]:
    """Its words of a question."""
    return _TOKEN.findall(text)[:MAX_TERMS] if isinstance(text, str) else []


def openclaw_short_words(text: object) -> str:
    """JSON array of the words that its trigram table cannot find, and that it looks for in the text."""
    tokens = openclaw_tokens(text)
    return json.dumps([token for token in tokens if _is_short(token)], ensure_ascii=False)


def openclaw_keywords(text: object, tokenizer: object = "unicode61") -> str:
    """JSON array of the MATCH expressions of an index without vectors, each asked for by itself."""
    if not isinstance(text, str):
        return "[]"
    terms: dict[str, None] = {}
    for segment in filter(None, _SEPARATORS.split(text.lower())[:MAX_TERMS]):
        for term in _expanded(segment, tokenizer == "trigram"):
            if _says_something(term):
                terms.setdefault(term)
    expressions = [openclaw_query(term, tokenizer) for term in terms or [text]]
    return json.dumps(expressions[:MAX_TERMS], ensure_ascii=False)


def _expanded(segment: str, is_trigram: bool) -> list[str]:
    if _KANA.search(segment):
        terms = []
        for part in _JAPANESE_PARTS.findall(segment):
            terms.append(part)
            if _HAN.match(part) and not is_trigram:
                terms += map("".join, pairwise(part))
        return terms
    if _HAN.search(segment):
        run = "".join(_HAN.findall(segment))
        return [run] if is_trigram else [*run, *map("".join, pairwise(run))]
    if _HANGUL.search(segment):
        ends = [end for end in _KOREAN_PARTICLES if segment.endswith(end) and segment != end]
        stem = segment.removesuffix(ends[0]) if ends else None
        return [segment] + ([stem] if stem and (len(stem) > 1 or not _HANGUL.search(stem)) else [])
    return [segment]


def _says_something(term: str) -> bool:
    if term in STOP_WORDS or not any(character.isalnum() for character in term):
        return False
    return not (term.isascii() and term.isalpha() and len(term) < 3) and not term.isdigit()


def _is_short(token: str) -> bool:
    return len(token) < 3 and _SHORT_IN_TRIGRAM.search(token) is not None


def openclaw_age(path: object, source: object, mtime_ms: object, now: object) -> float | None:
    """Days of age by OpenClaw's rules: of memory/2026-01-05.md by its name; none of MEMORY.md and
    of other files in memory/; of any other file by the time it was changed."""
    moment = parse_moment(now)
    if not isinstance(path, str) or moment is None:
        return None
    is_dated = _DATED_PATH.search(path) is not None
    day = date_of_path(path) if is_dated else None
    if day is not None:
        return max(0.0, (moment - day).total_seconds() / _SECONDS_A_DAY)
    is_evergreen = path in ("MEMORY.md", "memory.md") or (path.startswith("memory/") and not is_dated)
    # A transcript's path leads nowhere in the workspace, where it looks for the time.
    if source != "memory" or is_evergreen or not isinstance(mtime_ms, (int, float)):
        return None
    now_s = (moment - datetime(1970, 1, 1)).total_seconds()
    return max(0.0, (now_s - mtime_ms / 1000) / _SECONDS_A_DAY)


def openclaw_words(text: object) -> str | None:
    """The words that its MMR compares, of a snippet of 700 units of UTF-16, with characters and
    bigrams of CJK written as words of their own."""
    if not isinstance(text, str):
        return None
    units = text.encode("utf-16-le", "surrogatepass")[: 2 * _SNIPPET_UNITS]
    snippet = units.decode("utf-16-le", "ignore").lower()
    words = re.findall("[a-z0-9_]+", snippet)
    characters = [(place, match) for place, match in enumerate(snippet) if _ALIKE_CJK.match(match)]
    words += [f"\u00e6{ord(character):x}" for _, character in characters]
    words += [
        f"\u00e6{ord(first):x}\u00e6{ord(second):x}"
        for (place, first), (next_place, second) in pairwise(characters)
        if next_place == place + 1
    ]
    return " ".join(dict.fromkeys(words))
