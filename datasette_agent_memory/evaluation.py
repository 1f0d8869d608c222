"""Measuring retrieval against questions whose answering lines are known."""

from __future__ import annotations

import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import DEPTH
from .connections import Connection, open_readonly
from .embeddings.base import EmbeddingError
from .errors import AgentMemoryError
from .ingest import IndexSettings, update_index
from .report import IndexIncomplete, Listener
from .scan import find_files
from .schema import MemoryIndex
from .search import Hit, NotAMemoryDatabase, ask
from .sources import SourceError, UnreadableFile, read_source

MEASURES = ("recall@6", "hit@6", "MRR", "nDCG@10", "chars@6")

_ADVERSARIAL = "adversarial"
_UNCATEGORISED = "uncategorised"
_CUTOFF = 6
#: Seconds that a query may wait for its vector: a measurement need not be quick.
_PATIENCE_S = 60.0


class QueriesError(AgentMemoryError):
    """A file of queries cannot be used."""


@dataclass(frozen=True)
class Query:
    id: str
    workspace: str
    text: str
    relevant: frozenset[tuple[str, int]]
    category: str


#: One ranked chunk: path, start line, end line, score.
Ranked = tuple[str, int, int, float]


def read_queries(file: Path) -> list[Query]:
    """The queries of a JSON lines file; raises QueriesError."""
    queries: list[Query] = []
    ids: set[str] = set()
    try:
        # Not splitlines(): a JSON string may hold other line separators.
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise QueriesError(f"{file}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            relevant = [entry.rpartition(":") for entry in row["relevant"]]
            queries.append(
                Query(
                    _text(row["id"]),
                    _text(row.get("workspace") or ""),
                    _text(row["query"]),
                    frozenset((path, int(line_number)) for path, _, line_number in relevant),
                    _text(row.get("category") or _UNCATEGORISED),
                )
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise QueriesError(
                f"{file}:{number}: is no query with id, query and relevant lines ({error})"
            ) from error
        if queries[-1].id in ids:
            raise QueriesError(f"{file}:{number}: has the id {queries[-1].id!r} of another query")
        ids.add(queries[-1].id)
        if not queries[-1].relevant:
            raise QueriesError(f"{file}:{number}: has no relevant lines")
    if not queries:
        raise QueriesError(f"{file}: has no queries")
    return queries


@dataclass(frozen=True)
class Measured:
    """What one set of options found."""

    #: By query id.
    ranked: dict[str, list[Ranked]]
    #: The characters of the first _CUTOFF chunks, by query id.
    chars: dict[str, float]


class Memories:
    """The indexes that queries are run on: of each workspace in a folder, in a temporary database,
    or one that is there already.

    Indexing raises what update_index does.
    """

    def __init__(self, queries: Sequence[Query], databases: Mapping[str, Path], root: Path | None) -> None:
        self._queries = queries
        self._databases = databases
        #: The characters of each line, by workspace and path; empty where there are no files to count.
        self._lines = {name: _line_lengths(root / name) for name in databases} if root is not None else {}

    @classmethod
    @contextmanager
    def of_workspaces(
        cls,
        queries: Sequence[Query],
        root: Path,
        settings: Mapping[str, Any],
        listener: Listener | None = None,
    ) -> Iterator[Memories]:
        """Index the queries' workspaces; `settings` are those of IndexSettings without the root."""
        with tempfile.TemporaryDirectory(prefix="agent-memory-evaluate-") as folder:
            databases: dict[str, Path] = {}
            for query in queries:
                if query.workspace in databases:
                    continue
                databases[query.workspace] = Path(folder) / f"{len(databases)}.db"
                try:
                    update_index(
                        databases[query.workspace],
                        IndexSettings(root / query.workspace, **settings),
                        listener,
                    )
                except IndexIncomplete as error:
                    # What is kept of it is in a temporary file.
                    raise error.cause from error
            yield cls(queries, databases, root)

    @classmethod
    def of_database(cls, queries: Sequence[Query], database: Path) -> Memories:
        """All queries are asked of one database, whatever their workspaces are called."""
        return cls(queries, {query.workspace: database for query in queries}, None)

    def unknown_places(self) -> list[str]:
        """The answering lines that no chunk of their index has, as path:line."""
        unknown: dict[str, None] = {}
        for database in dict.fromkeys(self._databases.values()):
            with open_readonly(database) as conn:
                index = MemoryIndex.read(conn)
                if index is None:
                    raise NotAMemoryDatabase
                where = "path = ? AND ? BETWEEN start_line AND end_line LIMIT 1"
                query = f"SELECT 1 FROM {index.layout.chunks} WHERE {where}"
                for one in self._queries:
                    if self._databases[one.workspace] == database:
                        for path, line in sorted(one.relevant):
                            if conn.execute(query, (path, line)).fetchone() is None:
                                unknown[f"{path}:{line}"] = None
        return list(unknown)

    def run(self, given: Mapping[str, object], progress: Callable[[int, int], None]) -> Measured:
        """Ask all queries with these search parameters."""
        ranked: dict[str, list[Ranked]] = {}
        chars: dict[str, float] = {}
        for database in dict.fromkeys(self._databases.values()):
            with open_readonly(database) as conn:
                for query in self._queries:
                    if self._databases[query.workspace] != database:
                        continue
                    hits = _hits(conn, query, given)
                    ranked[query.id] = [(hit.path, hit.start_line, hit.end_line, hit.score) for hit in hits]
                    chars[query.id] = sum(self._length(query, hit) for hit in hits[:_CUTOFF])
                    progress(len(ranked), len(self._queries))
        return Measured(ranked, chars)

    def _length(self, query: Query, hit: Hit) -> int:
        lines = self._lines.get(query.workspace, {}).get(hit.path)
        return len(hit.text) + 1 if lines is None else sum(lines[hit.start_line - 1 : hit.end_line])


def _hits(conn: Connection, query: Query, given: Mapping[str, object]) -> list[Hit]:
    # Enough results for the deepest measure, unless the search says otherwise.
    answer = ask(conn, query.text, {"k": DEPTH, **given}, _PATIENCE_S)
    for notice in answer.notices:
        if notice.code == "embedding_failed":
            # Keywords alone would be measured as if they were the model.
            raise EmbeddingError(notice.message)
    return answer.hits


def _line_lengths(root: Path) -> dict[str, list[int]]:
    """Characters of each line, its newline included, by path in the database."""
    lengths = {}
    try:
        files = find_files(root.resolve()).files
    except SourceError:
        return {}
    for file in files:
        try:
            lengths[file.path] = [len(line) + 1 for line in read_source(file).text.split("\n")]
        except UnreadableFile:
            continue
    return lengths


def score_query(query: Query, ranked: Sequence[Ranked]) -> dict[str, float]:
    """recall@6, hit@6, MRR and nDCG@10 of one ranking.

    A chunk is relevant when it covers a line that answers the query. recall@6 is the share
    of those lines that the first 6 chunks cover, MRR 1 / rank of the first relevant one
    within 10. In nDCG@10 a chunk's gain is the number of lines that no chunk before it
    covered; the ideal is the same gains sorted, and each missed line as a chunk of its own.
    """
    covered: set[tuple[str, int]] = set()
    gains: list[int] = []
    first = 0
    recall = 0.0
    for rank, (path, start, end, _) in enumerate(ranked[:DEPTH], 1):
        path = path.removeprefix(f"{query.workspace}/")
        covers = {line for line in query.relevant if line[0] == path and start <= line[1] <= end}
        if covers and not first:
            first = rank
        gains.append(len(covers - covered))
        covered |= covers
        if rank <= _CUTOFF:
            recall = len(covered) / len(query.relevant)
    missed = len(query.relevant) - len(covered)
    ideal = sorted([gain for gain in gains if gain] + [1] * missed, reverse=True)[:DEPTH]
    return {
        "recall@6": recall,
        "hit@6": float(recall > 0),
        "MRR": 1 / first if first else 0.0,
        "nDCG@10": _discounted(gains) / _discounted(ideal),
    }


def summarise(
    queries: Iterable[Query], results: Mapping[str, Sequence[Ranked]], chars: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Means of the measures and the number n of queries: overall, and by category.

    "no-adversarial" leaves out questions that are meant to have no answer, if there are any.
    """
    scores: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    for query in queries:
        score = {**score_query(query, results.get(query.id, ())), "chars@6": chars.get(query.id, 0.0)}
        scores["overall"].append(score)
        if query.category != _ADVERSARIAL:
            scores["no-adversarial"].append(score)
        scores[query.category].append(score)
    if len(scores["no-adversarial"]) in (0, len(scores["overall"])):
        del scores["no-adversarial"]
    if set(scores) == {"overall", _UNCATEGORISED}:
        del scores[_UNCATEGORISED]
    order = ["overall", *(["no-adversarial"] if "no-adversarial" in scores else [])]
    order += sorted(set(scores) - set(order))
    return {
        name: {
            "n": len(scores[name]),
            **{measure: sum(s[measure] for s in scores[name]) / len(scores[name]) for measure in MEASURES},
        }
        for name in order
    }


def as_table(summary: Mapping[str, Mapping[str, float]]) -> str:
    """The summary as a Markdown table."""
    lines = [
        "| category | n | " + " | ".join(MEASURES) + " |",
        "|---|--:|" + "--:|" * len(MEASURES),
    ]
    for name, row in summary.items():
        values = [f"{row[measure]:.3f}" for measure in MEASURES[:-1]] + [f"{row[MEASURES[-1]]:.0f}"]
        lines.append(f"| {as_cell(name)} | {row['n']:.0f} | " + " | ".join(values) + " |")
    return "\n".join(lines)


def _text(value: object) -> str:
    # JSON can hold half of a character, which no file can.
    return str(value).encode("utf-8", "replace").decode()


def as_cell(text: str) -> str:
    """A text as a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def _discounted(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(position + 2) for position, gain in enumerate(gains))
