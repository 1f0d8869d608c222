"""Why a search returned a chunk, or did not: every number, and the first step at which it fell out.

The numbers come from the statement of the search itself, with other rows selected of its
table expressions, and what would have shown a chunk has been tried before it is said.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from datasette.utils import sqlite_timelimit

from .config import MANY_CHUNKS, MAX_CANDIDATES, PARAMETERS
from .connections import Connection, snapshot, sqlite3
from .explanation import Explanation, Step, Word
from .fused_sql import FILTERS, Statement
from .keywords import plain_words, query_terms
from .openclaw import openclaw_keywords, openclaw_tokens
from .schema import as_line, as_text
from .search import Answer, score_parts, statement_of
from .sources import SESSIONS

#: More chunks of a file than this are not explained at once.
_MAX_CHUNKS = 20
#: How many are put in order where there are many chunks.
_LARGE_DEPTH = 1024
#: So many changes of settings are tried one after another.
_MAX_REMEDIES = 10
#: How many times the time limit of a statement the whole may take.
_PATIENCE = 2
#: How much of a chunk says which one it is.
_BEGINNING_CHARS = 60
#: Below any score, which may be a negative cosine.
_NO_MINIMUM = -1e9


#: Runs the same search with other settings beside its own; None for one that is not set.
Again = Callable[[Mapping[str, object]], Answer]


class Explainer:
    """Explains chunks of one answer, on the connection that it was found on."""

    def __init__(
        self,
        conn: Connection,
        answer: Answer,
        again: Again,
        time_limit_ms: int | None = None,
        deadline: float | None = None,
    ) -> None:
        self._conn = conn
        self._answer = answer
        self._again = again
        self._time_limit_ms = time_limit_ms
        self._options = answer.options
        self._layout = answer.index.layout
        self._hits = {hit.id: hit for hit in answer.hits}
        if time_limit_ms and deadline is None:
            deadline = time.monotonic() + time_limit_ms / 1000 * _PATIENCE
        self._deadline = deadline
        #: Whether something could not be had in time, and so is not known.
        self._is_cut_short = False

    def hits(self) -> list[Explanation]:
        """Of each result, the first _MAX_CHUNKS of them."""
        with snapshot(self._conn):
            return [self._chunk(hit.id) for hit in self._answer.hits[:_MAX_CHUNKS]]

    def place(self, path: str, line: int | None = None) -> list[Explanation]:
        """Of each chunk of a file, or each with that line; of the place itself where there is none."""
        with snapshot(self._conn):
            paths = self._paths(path)
            if len(paths) > 1:
                step = Step("indexed", False, f"several files end so: {', '.join(paths)}; say which")
                return [Explanation(path, start_line=line, end_line=line, steps=[step])]
            rows = self._conn.execute(
                f"SELECT id, start_line, end_line FROM {self._layout.chunks} WHERE path = ?"
                " ORDER BY start_line, rowid",
                (paths[0] if paths else path,),
            ).fetchall()
            ids = [
                as_text(identifier)
                for identifier, start, end in rows
                if line is None or as_line(start) <= line <= as_line(end)
            ]
            if not ids:
                last = max((as_line(end) for *_, end in rows), default=0)
                return [self._nowhere(path, line, last)]
            return [self._chunk(identifier) for identifier in ids[:_MAX_CHUNKS]]

    def _paths(self, path: str) -> list[str]:
        """The path in the index that is meant; several where it is the end of several, up to three."""
        root = self._answer.index.meta.get("root")
        if isinstance(root, str) and path.startswith(root.rstrip("/") + "/"):
            path = path[len(root.rstrip("/")) + 1 :]
        path = path.removeprefix("./")
        rows = self._conn.execute(
            f"SELECT DISTINCT path FROM {self._layout.chunks} WHERE path = :path"
            " OR substr(path, -length(:path) - 1) = '/' || :path ORDER BY path <> :path, path LIMIT 3",
            {"path": path},
        ).fetchall()
        found = [as_text(row[0]) for row in rows]
        return [path] if path in found else found

    def _nowhere(self, path: str, line: int | None, last: int) -> Explanation:
        if last:
            detail = f"the file is indexed up to line {last}, and no chunk has line {line}"
        elif self._is_known(path):
            detail = "the file is in the index, and has no text in it"
        elif not path.endswith(".md"):
            detail = "no such file in the index, which has files whose names end in .md alone"
        else:
            detail = (
                "no such file in the index; datasette agent-memory index takes MEMORY.md, memory.md and "
                "memory/**/*.md of its folder, and --extra others"
            )
        step = Step("indexed", False, detail)
        return Explanation(path, start_line=line, end_line=line, steps=[step])

    def _is_known(self, path: str) -> bool:
        if not self._answer.index.has_files:
            return False
        query = f"SELECT 1 FROM {self._layout.files} WHERE path = ?"
        return self._conn.execute(query, (path,)).fetchone() is not None

    # One chunk

    def _chunk(self, identifier: str, is_asked: bool = True) -> Explanation:
        row = self._row(identifier)
        if row is None:  # since a moment ago
            step = Step("indexed", False, "it is gone from the index since the search")
            return Explanation(self._hits[identifier].path, identifier, steps=[step])
        found = Explanation(
            as_text(row["path"]),
            identifier,
            " ".join(as_text(row["begins"]).split()),
            as_line(row["start_line"]),
            as_line(row["end_line"]),
        )
        found.cosine, found.passage = row["cosine"], row["passage"]
        found.words = self._words(identifier)
        text = self._text_places.get(identifier)
        if text is not None:
            found.text_place, found.bm25 = text["place"], text["bm25"]
            found.every_word = None if text["every_word"] is None else bool(text["every_word"])
        vector = self._vector_places.get(identifier)
        if vector is not None:
            found.vector_place, found.vector_score = vector["place"], vector["vector_score"]
        nearest = self._nearest_places.get(identifier)
        found.nearest_place = nearest["place"] if nearest else None
        hit, candidate = self._hits.get(identifier), self._candidates.get(identifier)
        if hit is not None:
            found.position = list(self._hits).index(identifier) + 1
            found.score, found.decay, found.age_days = hit.score, hit.decay, hit.age_days
            found.vector_score, found.text_score = hit.vector_score, hit.text_score
        elif candidate is not None:
            found.score = candidate["score"]
            found.vector_score, found.text_score = candidate["vector_score"], candidate["text_score"]
            found.decay, found.age_days = candidate["decay"], candidate["age_days"]
        if found.score is not None:
            found.parts = score_parts(found.vector_score, found.text_score, found.decay, self._options)
        found.steps = self._steps(found, identifier, row)
        found.rules = self._rules(found)
        if is_asked and not found.returned and not self._is_late:
            found.settings = self._remedy(found, identifier)
        return found

    @property
    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def _row(self, identifier: str) -> Any:
        passage = "NULL"
        join = ""
        if self._answer.sides.passages:
            passage = "passage_similarity(passages.embeddings, embed(:q))"
            join = " LEFT JOIN passages USING (hash)"
        filters = "".join(
            f", {condition} AS passes_{name}"
            for name, condition in FILTERS.items()
            if getattr(self._options, name)
        )
        params = {"q": self._answer.q, "id": identifier}
        params |= {name: getattr(self._options, name) for name in FILTERS if getattr(self._options, name)}
        cosine = "cosine_similarity(embedding, embed(:q))" if self._answer.sides.vector else "NULL"
        return self._conn.execute(
            f"SELECT path, substr(trim(text, char(10, 13, 32, 35)), 1, {_BEGINNING_CHARS}) AS begins,"
            f" start_line, end_line, {cosine} AS cosine, {passage} AS passage,"
            f" length(embedding) > 2 AS is_embedded{filters}"
            f" FROM {self._layout.chunks}{join} WHERE id = :id",
            params,
        ).fetchone()

    def _words(self, identifier: str) -> list[Word]:
        if not self._terms or self._is_late:
            return []
        texts, having = self._word_source
        adds, in_text = "NULL", "NULL"
        place = "id = :id"
        if texts == self._layout.chunks_fts:
            if self._has_its_place(identifier):
                # A row that is known by its number need not be looked for among all with the word.
                place = f"rowid = (SELECT rowid FROM {self._layout.chunks} WHERE id = :id)"
            adds = f"(SELECT -rank FROM {texts} WHERE {having} AND {place})"
            if self._answer.index.has_cjk:
                in_columns = f"{texts} MATCH '{{text cjk}} : (' || value || ')'"
                in_text = f"EXISTS (SELECT 1 FROM {texts} WHERE {in_columns} AND {place})"
        rows = self._run(
            f"SELECT value, {adds} AS adds, {in_text} AS in_text"
            " FROM (SELECT value FROM json_each(:terms))"
            f" WHERE EXISTS (SELECT 1 FROM {texts} WHERE {having} AND {place})",
            {"terms": json.dumps([term for term, *_ in self._terms]), "id": identifier},
        )
        here = {row["value"]: row for row in rows}
        words = []
        for term, chunks, weight in self._terms:
            row = here.get(term)
            adds_here = row["adds"] if row is not None else None
            is_in_text = bool(row["in_text"]) if row is not None and row["in_text"] is not None else None
            words.append(Word(term, chunks, weight, row is not None, adds_here, is_in_text))
        return words

    def _has_its_place(self, identifier: str) -> bool:
        """Whether a chunk's row of the full-text table has its rowid, as in an index of ours."""
        chunks, fts = self._layout.chunks, self._layout.chunks_fts
        query = f"SELECT 1 FROM {chunks} JOIN {fts} ON {fts}.rowid = {chunks}.rowid"
        rows = self._run(f"{query} WHERE {chunks}.id = :id AND {fts}.id = :id", {"id": identifier})
        return bool(rows)

    @cached_property
    def _terms(self) -> list[tuple[str, int, float]]:
        """The terms of the question, how many chunks have each, and the most that it adds to bm25."""
        if not self._answer.sides.text:
            return []
        if self._answer.sides.substring:
            terms = plain_words(self._answer.q)
        elif self._options.is_replay and not self._answer.index.has_embeddings:
            terms = json.loads(openclaw_keywords(self._answer.q, self._answer.index.tokenizer))
        elif self._options.is_replay:
            terms = [f'"{word}"' for word in openclaw_tokens(self._answer.q)]
            if self._answer.index.tokenizer == "trigram":
                terms = [word.strip('"') for word in terms]
        else:
            terms = query_terms(self._answer.q, self._options.match)
        texts, having = self._word_source
        total = f"(SELECT count(*) FROM {self._layout.chunks})"
        rows = self._run(
            f"SELECT value, chunks, bm25_ceiling(chunks, {total}) AS weight\n"
            f"FROM (SELECT value, (SELECT count(*) FROM {texts} WHERE {having}) AS chunks\n"
            "  FROM (SELECT value FROM json_each(:terms)))",
            {"terms": json.dumps(terms)},
        )
        return [(row["value"], row["chunks"], row["weight"] or 0.0) for row in rows]

    @property
    def _word_source(self) -> tuple[str, str]:
        """The table that words are looked for in, and the condition that it has one."""
        if self._answer.sides.substring:
            return self._layout.chunks, "word_count(text, value) > 0"
        if self._options.is_replay and self._answer.index.tokenizer == "trigram":
            # Its trigrams are parts of words, and what is shorter it looks for in the text.
            return self._layout.chunks, "instr(lower(text), lower(value))"
        return self._layout.chunks_fts, f"{self._layout.chunks_fts} MATCH value"

    # The search as a whole

    @cached_property
    def _wide(self) -> Statement:
        """The search with as many candidates as can be had in time."""
        options = replace(self._options, k=self._depth, candidate_multiplier=1)
        return statement_of(self._answer.index, self._answer.q, options, self._answer.sides)

    @property
    def _depth(self) -> int:
        return MAX_CANDIDATES if self._answer.index.chunk_count <= MANY_CHUNKS else _LARGE_DEPTH

    @cached_property
    def _text_places(self) -> dict[str, Any]:
        if not self._answer.sides.text:
            return {}
        columns, order = "bm25, every_word", "every_word DESC, bm25"
        if self._options.is_replay:
            columns, order = "NULL AS bm25, NULL AS every_word", "text_score DESC"
        return self._places("text_hits", f"id, text_score, {columns}", order)

    @cached_property
    def _vector_places(self) -> dict[str, Any]:
        if not self._answer.sides.vector:
            return {}
        return self._places("vector_hits", "id, vector_score", "vector_score DESC")

    @cached_property
    def _nearest_places(self) -> dict[str, Any]:
        """By the one vector of a chunk, where only the first of these have their passages compared."""
        if not self._answer.sides.passages or not self._wide.has("nearest"):
            return {}
        return self._places("nearest", "id", "cosine DESC", {"nearest": self._depth})

    def _places(
        self, hits: str, columns: str, order: str, more: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any]:
        """The rows of a table expression with their places, which notes and sessions have apart
        where they are put forward apart."""
        source = "NULL"
        if self._shares:
            source = f"(SELECT source FROM {self._layout.chunks} AS chunks WHERE chunks.id = {hits}.id)"
        select = f"SELECT {columns}, {source} AS source FROM {hits} ORDER BY {order}"
        params = dict(self._wide.params)
        if self._answer.sides.passages and "nearest" in params:
            # As many as the search itself looks into.
            params["nearest"] = self._answer.params["nearest"]
        places: dict[str, Any] = {}
        reached: Counter[bool] = Counter()
        for row in self._run(self._wide.selecting(select), {**params, **more}):
            kind = row["source"] == SESSIONS
            reached[kind] += 1
            places[as_text(row["id"])] = {**dict(row), "place": reached[kind]}
        return places

    @property
    def _shares(self) -> bool:
        """Whether notes and sessions are put forward apart, and share the results."""
        return self._answer.statement.has("shared")

    @cached_property
    def _candidates(self) -> dict[str, Any]:
        """All candidates in the order of the search, whatever their score."""
        return self._in_order(self._answer.statement)

    @cached_property
    def _without_mmr(self) -> dict[str, Any]:
        return self._in_order_of(mmr=False)

    @cached_property
    def _without_share(self) -> dict[str, Any]:
        return self._in_order_of(session_share=1.0)

    def _in_order_of(self, **changes: Any) -> dict[str, Any]:
        options, answer = replace(self._options, **changes), self._answer
        return self._in_order(statement_of(answer.index, answer.q, options, answer.sides))

    def _in_order(self, statement: Statement) -> dict[str, Any]:
        params = {**statement.params, "k": 2 * MAX_CANDIDATES, "min_score": _NO_MINIMUM}
        candidates = {}
        for place, row in enumerate(self._run(statement.sql, params), 1):
            values = {"decay": 1.0, "age_days": None, **dict(row), "place": place}
            candidates[as_text(row["id"])] = values
        return candidates

    def _run(self, sql: str, params: Mapping[str, Any]) -> list[Any]:
        """The rows, or none where SQLite cannot give them in time: what they would say stays unsaid."""
        limit_ms = self._time_limit_ms
        if limit_ms is not None and self._deadline is not None:
            limit_ms = min(limit_ms, int((self._deadline - time.monotonic()) * 1000))
            if limit_ms <= 0:
                self._is_cut_short = True
                return []
        try:
            with sqlite_timelimit(self._conn, limit_ms) if limit_ms else nullcontext():
                return list(self._conn.execute(sql, params).fetchall())
        except sqlite3.Error:
            self._is_cut_short = True
            return []

    # In words

    def _rules(self, found: Explanation) -> list[str]:
        rules = []
        options = self._options
        if found.bm25 is not None and found.text_score is not None:
            rules.append(f"text score {found.text_score:.3f}: {self._text_rule(found)}")
        elif self._answer.sides.text and found.text_score is None and found.is_considered:
            rules.append("no text score: " + self._text_absence(found))
        if found.vector_score is not None:
            if found.passage is not None and math.isclose(found.vector_score, found.passage, abs_tol=1e-6):
                rules.append(
                    f"vector score {found.vector_score:.3f}: the best of its passages; "
                    f"the chunk as a whole has {found.cosine or 0:.3f}"
                )
            else:
                rules.append(
                    f"vector score {found.vector_score:.3f}: the cosine of the chunk and the question"
                )
        if found.score is not None and options.mode == "hybrid":
            if found.parts:
                terms = [f"{part.weight:.2f} × {part.value or 0:.3f} ({part.side})" for part in found.parts]
                times = f" × {found.decay:.3f} (decay)" if options.decay else ""
                total = " + ".join(terms)
                rules.append(f"score {found.score:.3f}: {f'({total})' if times else total}{times}")
            else:
                rules.append(f"score {found.score:.3f}: by reciprocal ranks, 61 / (60 + place) of each side")
        elif found.score is not None and options.decay:
            rules.append(f"score {found.score:.3f}: that of the one side × {found.decay:.3f} (decay)")
        if options.decay:
            age = "evergreen" if found.age_days is None else f"{found.age_days:.1f} days old"
            rules.append(f"decay {found.decay:.3f}: {age}, half life {options.half_life:g} days")
        return rules

    def _text_rule(self, found: Explanation) -> str:
        r = -(found.bm25 or 0)
        norm = self._options.text_norm
        if norm == "relevance":
            return f"r / (1 + r) with r = {r:.4g}, bm25 without its sign"
        if norm == "rank":
            return f"1 / (1 + position), of bm25 {found.bm25:.4g}, position 0 first"
        if norm == "max":
            return f"bm25 {found.bm25:.4g} over that of the best keyword hit"
        ceiling = sum(word.weight for word in found.words)
        coverage = min(1.0, r / ceiling) if ceiling else 0.0
        text = (
            f"coverage {coverage:.3f} = {r:.4g} / {ceiling:.4g}, bm25 over the most that the words can give"
        )
        return f"(1 + coverage) / 2, since it has every word; {text}" if found.every_word else text

    def _text_absence(self, found: Explanation) -> str:
        having = sum(word.in_chunk for word in found.words)
        if not found.words:
            return (
                "not known, for it took too long"
                if self._is_cut_short or self._is_late
                else ("the question has no words to look for")
            )
        if not having:
            return "it has none of the question's words"
        wants_all = self._options.match == "all" or self._options.is_replay
        if having < len(found.words) and wants_all and self._answer.index.has_embeddings:
            missing = ", ".join(word.term.strip('"') for word in found.words if not word.in_chunk)
            return f"every word must be there, and it lacks {missing}"
        if found.text_place:
            most = self._answer.params.get("ranked", self._answer.params["candidates"])
            return f"it is at place {found.text_place:,} by keywords, of which the first {most:,} are scored"
        return f"it has {having} of the question's {len(found.words)} words"

    # The way through the search

    def _steps(self, found: Explanation, identifier: str, row: Any) -> list[Step]:
        steps = [Step("indexed", True, f"lines {found.start_line} to {found.end_line} are a chunk")]
        for check in (self._filter_step, self._candidate_step):
            steps.append(check(found, identifier, row))
            if not steps[-1].passed:
                return steps
        if identifier in self._candidates:
            steps += self._final_steps(found, identifier)
        return steps

    def _filter_step(self, found: Explanation, identifier: str, row: Any) -> Step:
        failing = [
            f"{name} {getattr(self._options, name)}"
            for name in FILTERS
            if getattr(self._options, name) and not row[f"passes_{name}"]
        ]
        if failing:
            return Step("filters", False, f"left out by {', '.join(failing)}")
        return Step("filters", True, "passes" if self._options.is_filtered else "none are set")

    def _candidate_step(self, found: Explanation, identifier: str, row: Any) -> Step:
        most = self._answer.params["candidates"]
        details = []
        if self._answer.sides.vector:
            looked_into = self._answer.params.get("nearest")
            if found.vector_place is not None:
                details.append(f"place {found.vector_place:,} by vectors")
            elif not row["is_embedded"]:
                details.append("no vector")
            elif found.nearest_place is not None and looked_into is not None:
                details.append(
                    f"place {found.nearest_place:,} by its own vector, "
                    f"and the passages of the {looked_into:,} nearest are compared"
                )
            elif self._is_cut_short:
                details.append("place by vectors not known, for it took too long")
            else:
                details.append(f"not among the {self._depth:,} nearest by vectors")
        if self._answer.sides.text:
            if found.text_place is not None:
                details.append(f"place {found.text_place:,} by keywords")
            else:
                details.append(self._text_absence(found))
        passed = found.returned or identifier in self._candidates
        of_each = " notes and as many sessions" if self._shares else ""
        searched = "; ".join(details) or "nothing was searched"
        detail = f"{searched}; each side puts forward {most:,}{of_each}"
        return Step("candidates", passed, detail)

    def _final_steps(self, found: Explanation, identifier: str) -> list[Step]:
        options = self._options
        steps = []
        score = found.score if found.score is not None else _NO_MINIMUM
        place = self._candidates[identifier]["place"]
        minimum = options.min_score
        passes = score >= minimum
        if options.mmr:
            without = self._without_mmr.get(identifier, {}).get("place")
            moved = f"place {place} of the candidates, {without} without MMR"
            is_dropped = (
                not found.returned and passes and without is not None and without <= options.k < place
            )
            steps.append(Step("mmr", not is_dropped, moved))
        if passes:
            steps.append(Step("min_score", True, f"{score:.3f} is not below {minimum:g}"))
        elif found.text_score is not None:
            detail = f"{score:.3f} is below {minimum:g}; a keyword hit fills a free place all the same"
            if not found.returned:
                detail = (
                    f"{score:.3f} is below {minimum:g}, and better keyword hits took what places were left"
                )
                if options.is_replay:
                    detail = f"{score:.3f} is below {minimum:g}"
            steps.append(Step("min_score", found.returned, detail))
        else:
            steps.append(Step("min_score", found.returned, f"{score:.3f} is below {minimum:g}"))
        if all(step.passed for step in steps) and self._shares:
            steps += self._share_steps(found, identifier)
        if not all(step.passed for step in steps):
            return steps
        if found.returned:
            steps.append(Step("k", True, f"result {found.position} of {options.k} at most"))
        else:
            steps.append(Step("k", False, f"place {place} by score, and {options.k} are returned"))
        return steps

    def _share_steps(self, found: Explanation, identifier: str) -> list[Step]:
        """Whether notes took its place, of a chunk of a session."""
        candidate = self._candidates[identifier]
        if candidate["source"] != SESSIONS:
            return []
        turn, most = candidate["turn"], self._options.most_sessions
        detail = f"session {turn:,} by score, and {most:,} are returned as long as notes have others"
        if turn <= most:
            return [Step("session_share", True, detail)]
        if found.returned:
            return [Step("session_share", True, f"{detail}; it has a place that notes left free")]
        without = self._without_share.get(identifier, {}).get("place")
        if without is None or without > self._options.k:
            return []
        return [Step("session_share", False, f"{detail}; without this rule it is result {without:,}")]

    def _remedy(self, found: Explanation, identifier: str) -> dict[str, Any] | None:
        """Settings with which the search returns the chunk, tried out one after another."""
        settings: dict[str, Any] = {}
        explainer = self
        for attempt in range(_MAX_REMEDIES):
            change = explainer._change(found, attempt)
            if change is None or settings.items() >= change.items() or self._is_late:
                break
            settings |= change
            answer = self._again(settings)
            if _has(answer, identifier):
                return self._needed(settings, identifier)
            explainer = Explainer(self._conn, answer, self._again, self._time_limit_ms, self._deadline)
            found = explainer._chunk(identifier, is_asked=False)
        return None

    def _needed(self, settings: dict[str, Any], identifier: str) -> dict[str, Any]:
        """Those of the settings that it is not shown without."""
        for name in list(settings):
            fewer = {other: value for other, value in settings.items() if other != name}
            if fewer and not self._is_late and _has(self._again(fewer), identifier):
                settings = fewer
        if "k" in settings and not self._is_late:
            place = list(self._again(settings).places).index(identifier) + 1
            if _has(self._again({**settings, "k": place}), identifier):
                settings = {**settings, "k": place}
        return settings

    def _change(self, found: Explanation, attempt: int) -> dict[str, Any] | None:
        """What may let a chunk pass the step at which it fell out of this search."""
        failed = found.fell_out
        options = self._options
        if failed is None or failed.name == "indexed":
            return None
        if failed.name == "filters":
            return {name: None for name in FILTERS if getattr(options, name)}
        if failed.name == "mmr":
            return {"mmr": 0}
        if failed.name == "session_share":
            return {"session_share": 1}
        if options.decay and found.decay < 1:
            return {"decay": 0}
        if failed.name == "k":
            place = self._candidates[found.id or ""]["place"]
            # More results are of more candidates, among which it may stand further back.
            return {"k": min(MAX_CANDIDATES, place if attempt == 0 else place + place // 4 + 1)}
        if failed.name == "min_score":
            if found.score is None or found.score < 0:
                # No minimum is below 0; what is left is a free place for a keyword hit.
                more = {"k": min(MAX_CANDIDATES, 2 * options.k)}
                return more if found.text_score is not None else None
            return {"min_score": math.floor(found.score * 1000) / 1000}
        places = [found.vector_place or found.nearest_place, found.text_place]
        nearest = min((place for place in places if place is not None), default=None)
        if nearest is None:
            if options.is_replay:
                return {"preset": None}
            if options.match == "all":
                return {"match": "any"}
            return {"mode": "hybrid"} if options.mode != "hybrid" else None
        most = int(PARAMETERS["candidate_multiplier"].maximum or 1)
        multiplier = math.ceil(nearest / options.k)
        if multiplier <= most:
            return {"candidate_multiplier": max(multiplier, options.candidate_multiplier)}
        return {"candidate_multiplier": most, "k": math.ceil(nearest / most)}


def _has(answer: Answer, identifier: str) -> bool:
    return any(hit.id == identifier for hit in answer.hits)
