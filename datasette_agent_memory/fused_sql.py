"""The fused SQL: one statement for a search, laid out to be read."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import indent
from typing import Any

from .config import MAX_CANDIDATES, SearchOptions
from .layouts import Layout
from .sources import SESSIONS
from .sql_functions import BM25_B, BM25_K1

#: The constant of reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009).
RRF_K = 60

_IS_SESSION = f"source = '{SESSIONS}'"
_IS_NOTE = f"source <> '{SESSIONS}'"

#: How many times the candidates are looked at, lest notes have to be looked for by themselves.
_FOR_NOTES = 4

#: How many keyword hits are scored, at least, where each candidate has both its scores.
_RANKED = 256


@dataclass(frozen=True)
class Sides:
    """Which sides of the search run, and how."""

    vector: bool
    text: bool
    #: Vectors are compared one by one, without sqlite-vec.
    scan: bool = False
    #: How many of the nearest chunks have their passages compared, where there are vectors of
    #: these: a chunk that is about many things is not among the first by its one vector.
    passages: int = 0
    #: Words are looked for in the text itself, since the full-text table cannot find them.
    substring: bool = False
    #: There are sessions beside notes, which they must not crowd out.
    sessions: bool = False

    @property
    def mode(self) -> str:
        return "hybrid" if self.vector and self.text else "vector" if self.vector else "keyword"


@dataclass(frozen=True)
class Statement:
    """The one statement of a search, with its named parameters."""

    #: The common table expressions, each with its name.
    ctes: list[tuple[str, str]]
    select: str
    params: dict[str, Any]

    @property
    def sql(self) -> str:
        """The whole, laid out to be read."""
        return self.selecting(self.select)

    def selecting(self, select: str) -> str:
        """Something else of the same table expressions."""
        with_ = ",\n".join(f"{name} (\n{indent(body, '  ')}\n)" for name, body in self.ctes)
        return f"WITH {with_}\n{select}" if with_ else select

    def has(self, name: str) -> bool:
        """Whether there is a table expression of this name."""
        return any(cte.split()[0] == name for cte, _ in self.ctes)


def build_sql(layout: Layout, q: str, options: SearchOptions, sides: Sides) -> Statement:
    """The statement of a search."""
    return _Builder(layout, q, options, sides).build()


def all_of(conditions: list[str]) -> str:
    return "\n  AND ".join(conditions)


class _Builder:
    def __init__(self, layout: Layout, q: str, options: SearchOptions, sides: Sides) -> None:
        self.layout = layout
        self.options = options
        self.sides = sides
        self.params: dict[str, Any] = {"q": q, "candidates": options.candidates}
        self.ctes: list[tuple[str, str]] = []
        self.filters = self._filters()
        #: Whether notes and sessions put forward their candidates apart, and share the results: there
        #: are thousands of sessions, whose chunks would leave notes no place.
        self.shares = sides.sessions and not options.source and options.session_share < 1

    def build(self) -> Statement:
        options, sides = self.options, self.sides
        if sides.vector:
            self._add_vector_hits()
            self.ctes.append(ranks_of("vector", "vector_score DESC"))
        if sides.text:
            if sides.substring:
                self._add_found_substrings()
            else:
                self._add_found()
            self.ctes.append(("text_hits AS MATERIALIZED", self._text_hits()))
            self.ctes.append(ranks_of("text", "every_word DESC, bm25"))
        if sides.vector and sides.text:
            best = "text_hits"
            if self._scores_all:
                best = "(SELECT id FROM text_hits ORDER BY every_word DESC, bm25 LIMIT :candidates)"
                if self.shares:
                    hits = "SELECT id, bm25, every_word, is_session FROM text_hits"
                    hits = self._best(hits, "every_word DESC, bm25", ":candidates")
                    best = f"(\n{indent(hits, '  ')}\n)"
            self.ctes.append(("candidates AS", f"SELECT id FROM vector_hits UNION SELECT id FROM {best}"))
            if self._scores_all:
                self.ctes.append(("scores AS MATERIALIZED", self._scores()))
        scored = self._scored()

        # A keyword hit below the minimum fills a free place, and never displaces a row above it.
        passes = "score >= CAST(:min_score AS REAL)"
        where = f"WHERE {passes} OR text_score IS NOT NULL"
        # Chunks with every word come before those with some, whatever their scores.
        order = ["every_word DESC"] if sides.text and not sides.vector else []
        order += ["score DESC", "path", "start_line", "id"]
        if options.mmr:
            self.ctes.append(("scored AS MATERIALIZED", scored))
            self.ctes.append(
                (
                    "diversified AS",
                    "SELECT value AS id, key AS position\n"
                    "FROM json_each((\n"
                    "  SELECT mmr(id, score, text, :lambda)\n"
                    "  FROM (SELECT * FROM scored ORDER BY path, start_line, id)\n"
                    "))",
                )
            )
            self.params["lambda"] = options.lambda_
            columns = "scored.*, position" if self.shares else "scored.*"
            scored = f"SELECT {columns}\nFROM scored\nJOIN diversified USING (id)"
            order = ["position"]
        self.params |= {"min_score": options.min_score, "k": options.k}
        order.insert(0, f"{passes} DESC")
        if self.shares:
            self._add_shared(scored, where, order)
            # Sessions beyond their share fill what places notes leave free.
            order.insert(1, f"{_IS_SESSION} AND turn > CAST(:most_sessions AS INTEGER)")
            select = f"SELECT *\nFROM shared\nORDER BY {', '.join(order)}\nLIMIT :k"
        else:
            select = f"{scored}\n{where}\nORDER BY {', '.join(order)}\nLIMIT :k"
        return Statement(self.ctes, select, self.params)

    @property
    def _scores_all(self) -> bool:
        """Whether each candidate has its score on both sides, whichever put it forward."""
        is_hybrid = self.sides.vector and self.sides.text
        return is_hybrid and self.options.rescore and self.options.fusion == "weighted"

    @property
    def _ranked(self) -> str:
        """How many keyword hits have a text score: more than may become candidates, for those that
        the vectors put forward."""
        if not self._scores_all:
            return ":candidates"
        self.params["ranked"] = max(_RANKED, self.options.candidates)
        return ":ranked"

    def _filters(self) -> list[str]:
        """The conditions that a chunk must meet, by columns that chunks and chunks_fts both have."""
        conditions = []
        for name, condition in FILTERS.items():
            if value := getattr(self.options, name):
                conditions.append(condition)
                self.params[name] = value
        return conditions

    # Notes and sessions

    @property
    def _is_session(self) -> str:
        """One more column, where notes and sessions are told apart."""
        return f", {_IS_SESSION} AS is_session" if self.shares else ""

    @property
    def _kind(self) -> str:
        """That column, of rows that have it."""
        return ", is_session" if self.shares else ""

    def _best(self, rows: str, order: str, limit: str) -> str:
        """The first of these rows; of notes and of sessions apart, by their column is_session."""
        if not self.shares:
            return f"{rows}\nORDER BY {order}\nLIMIT {limit}"
        place = f"row_number() OVER (PARTITION BY is_session ORDER BY {order}) AS place"
        placed = f"SELECT *,\n  {place}\nFROM (\n{indent(rows, '  ')}\n)"
        return f"SELECT * FROM (\n{indent(placed, '  ')}\n)\nWHERE place <= {limit}"

    def _add_shared(self, scored: str, where: str, order: list[str]) -> None:
        """`shared`: the rows that may be results, each with its turn among the notes or the sessions."""
        if not self.options.mmr:
            self.ctes.append(("scored AS MATERIALIZED", scored))
            scored = "SELECT *\nFROM scored"
        turn = f"row_number() OVER (PARTITION BY {_IS_SESSION} ORDER BY {', '.join(order)}) AS turn"
        self.ctes.append(
            ("shared AS MATERIALIZED", scored.replace("\nFROM", f",\n  {turn}\nFROM", 1) + f"\n{where}")
        )
        self.params["most_sessions"] = self.options.most_sessions

    # The vector side

    def _add_vector_hits(self) -> None:
        if self.sides.scan:
            self.ctes.append(("vector_hits AS MATERIALIZED", self._scanned_vectors()))
            return
        if self.filters:
            allowed = f"SELECT id FROM {self.layout.chunks}\nWHERE {all_of(self.filters)}"
            self.ctes.append(("allowed AS MATERIALIZED", allowed))
        name, score, k = (
            "vector_hits",
            "1 - vec_distance_cosine(embedding, embed(:q)) AS vector_score",
            ":candidates",
        )
        if self.sides.passages:
            # The vectors have unit length, and to read one takes longer than to compare many.
            name, score, k = "nearest", "1 - distance * distance / 2 AS cosine", ":nearest"
            self.params["nearest"] = max(self.sides.passages, self.options.candidates)
        elif self.shares:
            name, k = "nearest", ":nearest"
            self.params["nearest"] = min(MAX_CANDIDATES, _FOR_NOTES * self.options.candidates)
        conditions = [f"embed(:q) IS NOT NULL AND embedding MATCH embed(:q) AND k = {k}"]
        if self.filters:
            # The nearest of those that pass, and not those of the nearest that pass.
            conditions.append("id IN (SELECT id FROM allowed)")
        nearest = f"SELECT id, {score}\nFROM {self.layout.chunks_vec}\nWHERE {all_of(conditions)}"
        self.ctes.append((f"{name} AS MATERIALIZED", nearest))
        hits = "nearest"
        if self.shares:
            self._add_nearest_notes(score, conditions[0])
            hits = "(SELECT * FROM nearest UNION SELECT * FROM nearest_notes)"
        if self.sides.passages or self.shares:
            best_passage = "coalesce(passage_similarity(passages.embeddings, embed(:q)), cosine) AS "
            self.ctes.append(
                (
                    "vector_hits AS MATERIALIZED",
                    self._best(
                        f"SELECT id, {best_passage if self.sides.passages else ''}vector_score"
                        f"{self._is_session}\nFROM {hits}\nJOIN {self.layout.chunks} USING (id)"
                        f"{self._join_passages()}",
                        "vector_score DESC",
                        ":candidates",
                    ),
                )
            )

    def _add_nearest_notes(self, score: str, nearest: str) -> None:
        """`nearest_notes`: the nearest of the notes by themselves, which takes long where there are
        many; so only where too few of them are among the nearest of all."""
        chunks = self.layout.chunks
        count = f"SELECT count(*) FROM nearest JOIN {chunks} USING (id) WHERE {_IS_NOTE}"
        # By idx_chunks_source, which <> does not use.
        is_note = f"(source < '{SESSIONS}' OR source > '{SESSIONS}')"
        notes = f"SELECT id FROM {chunks}\nWHERE {all_of([is_note, *self.filters])}"
        self.ctes += [
            ("room AS MATERIALIZED", f"SELECT 1 WHERE ({count}) < CAST(:candidates AS INTEGER)"),
            ("notes AS MATERIALIZED", notes),
            (
                "nearest_notes AS MATERIALIZED",
                f"SELECT id, {score}\nFROM room\nCROSS JOIN {self.layout.chunks_vec}\n"
                f"WHERE {all_of([nearest, 'id IN (SELECT id FROM notes)'])}",
            ),
        ]

    def _scanned_vectors(self) -> str:
        conditions = ["embed(:q) IS NOT NULL AND length(embedding) > 2", *self.filters]
        return self._best(
            f"SELECT id, {self._similarity()} AS vector_score{self._is_session}\n"
            f"FROM {self.layout.chunks}{self._join_passages()}\nWHERE {all_of(conditions)}",
            "vector_score DESC",
            ":candidates",
        )

    def _similarity(self) -> str:
        """The similarity of a row of chunks, by what the row itself holds."""
        similarity = "cosine_similarity(embedding, embed(:q))"
        if self.sides.passages:
            return f"coalesce(passage_similarity(passages.embeddings, embed(:q)), {similarity})"
        return similarity

    def _join_passages(self) -> str:
        return "\nLEFT JOIN passages USING (hash)" if self.sides.passages else ""

    # The text side

    def _add_found(self) -> None:
        """`found`: the best chunks of the full-text table, with bm25 and whether they have every word."""
        fts = self.layout.chunks_fts
        expression = "fts_query(:q)"
        if self.options.match != "auto":
            expression = "fts_query(:q, :match)"
            self.params["match"] = self.options.match
        if self.options.text_norm == "coverage":
            count = f"SELECT count(*) FROM {fts} WHERE {fts} MATCH value"
            terms = expression.replace("fts_query", "fts_terms")
            self.ctes.append(
                (
                    "words AS MATERIALIZED",
                    f"SELECT value AS word, ({count}) AS chunks\nFROM json_each({terms})",
                )
            )
        if self.options.match != "auto":
            # With `any` nobody looks whether a chunk has all.
            every_word = 1 if self.options.match == "all" else "NULL"
            found = self._best_of_fts(expression, f"id, rank AS bm25, {every_word} AS every_word")
            self.ctes.append(("found AS MATERIALIZED", found))
            return
        # Chunks with every word first. Those with some are looked for only if there is room.
        those_of_notes = " WHERE NOT is_session" if self.shares else ""
        room = f"(SELECT count(*) FROM every_word{those_of_notes}) < CAST({self._ranked} AS INTEGER)"
        self.ctes += [
            ("every_word AS MATERIALIZED", self._best_of_fts("fts_query(:q, 'every')", "id, rank AS bm25")),
            (
                "any_word AS MATERIALIZED",
                self._best_of_fts(f"CASE WHEN {room} THEN {expression} ELSE '\"\"' END", "id, rank AS bm25"),
            ),
            (
                "found AS MATERIALIZED",
                self._best(
                    f"SELECT id, bm25, 1 AS every_word{self._kind} FROM every_word\n"
                    "UNION ALL\n"
                    f"SELECT id, bm25, 0{self._kind} FROM any_word"
                    " WHERE id NOT IN (SELECT id FROM every_word)",
                    "every_word DESC, bm25",
                    self._ranked,
                ),
            ),
        ]

    def _best_of_fts(self, expression: str, columns: str) -> str:
        fts = self.layout.chunks_fts
        conditions = [f"{fts} MATCH {expression}", *self.filters]

        def best(columns: str, conditions: list[str]) -> str:
            where = all_of(conditions)
            return f"SELECT {columns}\nFROM {fts}\nWHERE {where}\nORDER BY rank\nLIMIT {self._ranked}"

        if not self.shares:
            return best(columns, conditions)
        notes = best(f"{columns}, 0 AS is_session", [*conditions, _IS_NOTE])
        sessions = best(f"{columns}, 1 AS is_session", [*conditions, _IS_SESSION])
        return "\nUNION ALL\n".join(f"SELECT * FROM (\n{indent(kind, '  ')}\n)" for kind in (notes, sessions))

    def _add_found_substrings(self) -> None:
        """`found` by looking for each word in each text: BM25 by its formula."""
        having = "\nHAVING every_word" if self.options.match == "all" else ""
        where = f"\nWHERE {all_of(self.filters)}" if self.filters else ""
        self.ctes += [
            (
                "matches AS MATERIALIZED",
                "SELECT chunks.id, chunks.path, source, length(text) AS length,\n"
                "  value AS word, word_count(text, value) AS times\n"
                f"FROM {self.layout.chunks} AS chunks\nCROSS JOIN json_each(query_words(:q))\n"
                "WHERE times > 0",
            ),
            (
                "words AS MATERIALIZED",
                "SELECT value AS word, (SELECT count(*) FROM matches WHERE word = value) AS chunks\n"
                "FROM json_each(query_words(:q))",
            ),
            (
                "size AS MATERIALIZED",
                f"SELECT count(*) AS total, avg(length(text)) AS average FROM {self.layout.chunks}",
            ),
            (
                "found AS MATERIALIZED",
                self._best(
                    "SELECT id, count(*) = (SELECT count(*) FROM words) AS every_word,\n"
                    "  -sum(bm25_ceiling(chunks, total) * times\n"
                    f"    / (times + {BM25_K1} * ({1 - BM25_B} + {BM25_B} * length / average)))"
                    f" AS bm25{self._is_session}\n"
                    f"FROM matches\nJOIN words USING (word)\nCROSS JOIN size{where}\nGROUP BY id{having}",
                    "every_word DESC, bm25",
                    self._ranked,
                ),
            ),
        ]

    def _text_hits(self) -> str:
        text_score = {
            "relevance": "bm25_norm(bm25)",
            # Equal ones share a position.
            "rank": "bm25_norm(rank() OVER (ORDER BY every_word DESC, bm25) - 1)",
            "max": "bm25 / min(bm25) OVER ()",
            "coverage": "coverage",
        }[self.options.text_norm]
        if self.options.text_norm != "coverage":
            return f"SELECT id, bm25, every_word, {text_score} AS text_score{self._kind}\nFROM found"
        ceiling = f"SELECT sum(bm25_ceiling(chunks, (SELECT count(*) FROM {self.layout.chunks}))) FROM words"
        return (
            "SELECT id, bm25, every_word,\n"
            f"  CASE every_word WHEN 1 THEN (1 + coverage) / 2 ELSE coverage END AS text_score{self._kind}\n"
            "FROM (\n"
            f"  SELECT *, min(1, -bm25 / (\n    {ceiling}\n  )) AS coverage\n"
            "  FROM found\n"
            ")"
        )

    # Both

    def _scores(self) -> str:
        """Each candidate with the scores that it has, whichever side put it forward."""
        return (
            f"SELECT id, coalesce(vector_score, {self._similarity()}) AS vector_score, text_score,\n"
            f"  vector_rank, text_rank\nFROM candidates\nJOIN {self.layout.chunks} USING (id)\n"
            f"LEFT JOIN vector_ranks USING (id)\nLEFT JOIN text_ranks USING (id){self._join_passages()}"
        )

    def _scored(self) -> str:
        """The rows with their scores, without WHERE and ORDER."""
        options, sides, chunks, params = self.options, self.sides, self.layout.chunks, self.params
        if sides.vector and sides.text:
            vector, text = "vector_score", "text_score"
            source = (
                f"FROM candidates\nJOIN {chunks} USING (id)\n"
                "LEFT JOIN vector_ranks USING (id)\nLEFT JOIN text_ranks USING (id)"
            )
            if options.fusion == "rrf":
                # 1 for the first of a side; a common factor changes no order.
                vector, text = (f"{RRF_K + 1}.0 / ({RRF_K} + {side}_rank)" for side in ("vector", "text"))
            elif self._scores_all:
                source = f"FROM scores\nJOIN {chunks} USING (id)"
            score = f"hybrid_score({vector}, {text}, :vector_weight, :text_weight)"
            params |= {"vector_weight": options.vector_weight, "text_weight": options.text_weight}
            scores = ["vector_score", "text_score", "vector_rank", "text_rank"]
        elif sides.vector:
            score = "vector_score"
            source = f"FROM vector_ranks\nJOIN {chunks} USING (id)"
            scores = ["vector_score", "NULL AS text_score", "vector_rank", "NULL AS text_rank"]
        elif sides.text:
            score = "text_score"
            source = f"FROM text_ranks\nJOIN {chunks} USING (id)"
            scores = ["NULL AS vector_score", "text_score", "NULL AS vector_rank", "text_rank"]
            if self.shares:
                scores.append("every_word")
        else:
            score = "NULL"
            source = f"FROM {chunks}"
            scores = [f"NULL AS {side}_{of}" for of in ("score", "rank") for side in ("vector", "text")]
        if options.decay:
            age = "memory_age(path, :now)"
            params |= {"now": options.now, "half_life": options.half_life}
            score = f"decay({score}, {age}, :half_life)"
            scores += [f"{age} AS age_days", f"decay(1, {age}, :half_life) AS decay"]
        columns = ["path, start_line, end_line, source", f"{score} AS score", *scores, "text", "id"]
        return "SELECT " + ",\n  ".join(columns) + f"\n{source}"


#: The condition of each filter, on columns that chunks and chunks_fts both have.
FILTERS = {
    "source": "source = :source",
    "path": "path GLOB :path",
    "since": "memory_age(path, :since) <= 0",
    "until": "memory_age(path, :until) >= 0",
}


def ranks_of(side: str, order: str) -> tuple[str, str]:
    """The table expression that gives each hit of a side its place there, 1 first."""
    return (
        f"{side}_ranks AS MATERIALIZED",
        f"SELECT *, rank() OVER (ORDER BY {order}) AS {side}_rank\n"
        f"FROM {side}_hits\nWHERE {side}_score IS NOT NULL",
    )
