"""How long indexing and searching take, as ratios to what SQLite alone needs in the same process.

Makes a synthetic memory in a temporary directory, so that every run measures the same notes.
See docs/performance.md for results and what they mean.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from functools import partial
from itertools import accumulate, count, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from datasette.app import Datasette

from datasette_agent_memory.chunking import chunk_markdown
from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.connections import sqlite3 as sqlite3_in_use
from datasette_agent_memory.embeddings.base import Provider, ProviderSettings, Vectors
from datasette_agent_memory.embeddings.chain import PROVIDERS_OF_ENVIRONMENT
from datasette_agent_memory.embeddings.embedded import EmbeddedProvider
from datasette_agent_memory.embeddings.queries import QUERY_VECTORS
from datasette_agent_memory.ingest import IndexSettings, update_index
from datasette_agent_memory.keywords import fts_query
from datasette_agent_memory.report import IndexReport
from datasette_agent_memory.schema import FTS_TOKENIZER
from datasette_agent_memory.search import Answer, search

SEED = 20260105
CHINESE_SHARE = 0.15
# fmt: off
STOP_WORDS = [
    "the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "was", "on", "with", "as", "we", "be",
    "this", "by", "are", "at", "from", "have", "not", "or", "an", "but", "they",
]
# fmt: on

Connection = Any
Action = Callable[[], object]


# The notes


class Language:
    """Words whose frequencies follow Zipf's law, and how they are set into lines."""

    def __init__(self, words: Sequence[str], joint: str, end: str, words_a_note: tuple[int, int]) -> None:
        self.words = words
        self.cumulative = list(accumulate(1 / rank for rank in range(1, len(words) + 1)))
        self.joint = joint
        self.end = end
        self.words_a_note = words_a_note

    def draw(self, chance: random.Random, number: int, without_first: int = 0) -> list[str]:
        """Words as often as in the notes, optionally without the commonest ones."""
        weights = self.cumulative[without_first:]
        if without_first:
            weights = [weight - self.cumulative[without_first - 1] for weight in weights]
        return chance.choices(self.words[without_first:], cum_weights=weights, k=number)

    def note(self, chance: random.Random) -> str:
        words = self.draw(chance, chance.randint(*self.words_a_note))
        lines = [f"# {self.joint.join(words[:4])}", ""]
        start = 4
        while start < len(words):
            length = chance.randint(6, 24)
            mark = "- " if chance.random() < 0.6 else ""
            lines.append(f"{mark}{self.joint.join(words[start : start + length])}{self.end}")
            start += length
        return "\n".join(lines) + "\n"


def english() -> Language:
    chance = random.Random(SEED)
    syllables = [consonant + vowel for consonant in "bcdfghklmnprstvw" for vowel in "aeiou"]
    made_up = {"".join(chance.choices(syllables, k=chance.randint(2, 4))): None for _ in range(20_000)}
    return Language([*STOP_WORDS, *made_up], joint=" ", end=".", words_a_note=(80, 600))


def chinese() -> Language:
    chance = random.Random(SEED)
    characters = [chr(0x4E00 + offset) for offset in chance.sample(range(5000), 1200)]
    made_up = {"".join(chance.choices(characters, k=chance.randint(1, 3))): None for _ in range(8_000)}
    return Language(list(made_up), joint="", end="。", words_a_note=(60, 450))


def synthetic_notes() -> Iterator[tuple[str, str]]:
    """Paths and texts of a memory without end, always the same."""
    chance = random.Random(SEED)
    languages = (english(), chinese())
    for number in count():
        day = date(2020, 1, 1) + timedelta(days=number % 2000)
        language = languages[chance.random() < CHINESE_SHARE]
        yield f"memory/{day:%Y-%m}/{day.isoformat()}-{number}.md", language.note(chance)


def notes_of_chunks(chunks: int) -> Iterator[tuple[str, str]]:
    """As many notes as make this many chunks."""
    made = 0
    for path, text in synthetic_notes():
        yield path, text
        made += len(list(chunk_markdown(text)))
        if made >= chunks:
            return


def write_notes(root: Path, notes: Iterable[tuple[str, str]]) -> Path:
    for path, text in notes:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    return root


# Timing


@dataclass(frozen=True)
class Comparison:
    """One thing beside its reference: the median ratio and seconds, and the greatest ratio."""

    what: str
    reference: str
    ratio: float
    greatest_ratio: float
    seconds: float
    reference_seconds: float


def seconds_of(action: Action) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def median_seconds(repeat: int, actions: Sequence[Action]) -> list[float]:
    """The median of each action's times.

    The actions take turns, so that whatever else the machine does meets them all alike.
    """
    for action in actions:  # warm caches, compiled statements and the model
        action()
    rounds = [[seconds_of(action) for action in actions] for _ in range(repeat)]
    return [median(times) for times in zip(*rounds, strict=True)]


def compare(what: str, reference: str, pairs: Iterable[tuple[float, float]]) -> Comparison:
    """The comparison of pairs of seconds, each of one query or one run."""
    pairs = list(pairs)
    ratios = [own / other for own, other in pairs]
    return Comparison(
        what=what,
        reference=reference,
        ratio=median(ratios),
        greatest_ratio=max(ratios),
        seconds=median(own for own, _ in pairs),
        reference_seconds=median(other for _, other in pairs),
    )


# Indexing


def index(root: Path, database: Path, provider: Provider | None = None) -> IndexReport:
    return update_index(database, IndexSettings(root, providers=[provider]))


def files_of(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        yield from (Path(folder, name) for name in names)


def index_into_bare_fts5(root: Path, database: Path) -> None:
    with closing(sqlite3.connect(database)) as conn, conn:
        conn.execute(
            f"create virtual table notes using fts5(path unindexed, text, tokenize = '{FTS_TOKENIZER}')"
        )
        conn.executemany(
            "insert into notes (path, text) values (?, ?)",
            ((str(file), file.read_text("utf-8")) for file in files_of(root)),
        )


def hash_files(root: Path) -> None:
    for file in files_of(root):
        hashlib.sha256(file.read_bytes()).digest()


def index_keywords(root: Path, databases: Iterator[Path], repeat: int) -> Comparison:
    seconds, reference = median_seconds(
        repeat,
        [lambda: index(root, next(databases)), lambda: index_into_bare_fts5(root, next(databases))],
    )
    return compare("index, without vectors", "bare FTS5 table", [(seconds, reference)])


def index_unchanged(root: Path, database: Path, repeat: int) -> Comparison:
    seconds, reference = median_seconds(repeat, [lambda: index(root, database), lambda: hash_files(root)])
    return compare("unchanged re-index", "read and hash the files", [(seconds, reference)])


def index_embedded(root: Path, databases: Iterator[Path], repeat: int) -> Comparison:
    database = next(databases)
    index(root, database)
    with open_readonly(database) as conn:
        texts = [row["text"] for row in conn.execute("select text from chunks")]
    provider = PROVIDERS_OF_ENVIRONMENT.get("embedded")
    seconds, reference = median_seconds(
        repeat,
        [lambda: index(root, next(databases), provider), lambda: provider.embed_documents(texts)],
    )
    return compare(f"index {len(texts):,} chunks, embedded model", "embed the chunks", [(seconds, reference)])


class RandomVectors(EmbeddedProvider):
    """Stands in for the embedded model where only the number of vectors matters, not their sense."""

    def __init__(self) -> None:
        super().__init__(ProviderSettings())
        self._generator = np.random.default_rng(SEED)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        vectors = self._generator.standard_normal((len(texts), self.dims), dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# Searching


@dataclass(frozen=True)
class QueryTimes:
    """Median seconds of one query."""

    bare_fts: float
    bare_vec: float
    in_process: float
    page: float
    html_page: float
    embedding: float = 0.0

    @property
    def bare(self) -> float:
        return self.bare_fts + self.bare_vec


def queries_by_kind(number: int) -> dict[str, list[str]]:
    chance = random.Random(SEED + 1)
    in_english, in_chinese = english(), chinese()

    def words(fewest: int, most: int) -> list[str]:
        return in_english.draw(chance, chance.randint(fewest, most), without_first=len(STOP_WORDS))

    def among_stop_words() -> list[str]:
        mixed = ["the", *chance.sample(STOP_WORDS[1:], chance.randint(0, 3)), *words(1, 4)]
        chance.shuffle(mixed)
        return mixed

    kinds: dict[str, Callable[[], str]] = {
        "1 word": lambda: " ".join(words(1, 1)),
        "2-3 words": lambda: " ".join(words(2, 3)),
        "4-8 words": lambda: " ".join(words(4, 8)),
        "2-8 words with 'the'": lambda: " ".join(among_stop_words()),
        "Chinese, 2-4 words": lambda: "".join(in_chinese.draw(chance, chance.randint(2, 4))),
    }
    return {kind: [make() for _ in range(number)] for kind, make in kinds.items()}


class SearchedMemory:
    """An indexed memory, open for searches by the product and by bare SQL."""

    def __init__(self, conn: Connection, database: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.conn = conn
        self.name = database.stem
        self.loop = loop
        # By default Datasette interrupts a search after a second, which would hide what it takes.
        self.datasette = Datasette([str(database)], settings={"sql_time_limit_ms": 60_000})
        loop.run_until_complete(self.datasette.invoke_startup())

    def in_process(self, q: str) -> Answer:
        return search(self.conn, q)

    def page(self, q: str) -> dict[str, Any]:
        return dict(self._get(q, ".json").json())

    def html_page(self, q: str) -> None:
        self._get(q, "")

    def _get(self, q: str, format: str) -> Any:
        response = self.loop.run_until_complete(
            self.datasette.client.get(f"/{self.name}/-/agent-memory{format}", params={"q": q})
        )
        response.raise_for_status()
        return response

    def bare_fts(self, expression: str, limit: int) -> None:
        self.conn.execute(
            "select id, rank from chunks_fts where chunks_fts match ? order by rank limit ?",
            (expression, limit),
        ).fetchall()

    def bare_vec(self, vector: bytes, k: int) -> None:
        self.conn.execute(
            "select id, distance from chunks_vec where embedding match ? and k = ?", (vector, k)
        ).fetchall()

    def times(self, q: str, repeat: int) -> QueryTimes:
        answer = self.in_process(q)
        is_hybrid = answer.options.mode == "hybrid"
        self._check(q, answer, self.page(q))
        candidates = answer.params["candidates"]
        actions: list[Action] = [
            partial(self.bare_fts, fts_query(q), candidates),
            partial(self.in_process, q),
            partial(self.page, q),
            partial(self.html_page, q),
        ]
        if is_hybrid:
            provider = PROVIDERS_OF_ENVIRONMENT.of_index(answer.index.meta)
            actions += [
                partial(self.bare_vec, QUERY_VECTORS.computed(provider, q), candidates),
                partial(provider.embed_query, q),
            ]
        bare_fts, in_process, page, html_page, *vector = median_seconds(repeat, actions)
        bare_vec, embedding = vector or (0.0, 0.0)
        return QueryTimes(bare_fts, bare_vec, in_process, page, html_page, embedding)

    def _check(self, q: str, answer: Answer, page: dict[str, Any]) -> None:
        """A search that did less than it should would be measured as a fast one."""
        codes = {notice["code"] for notice in page["notices"]} - {"no_vectors"}
        same = [hit.id for hit in answer.hits] == [row["id"] for row in page["results"]]
        if codes or not answer.hits or not same:
            raise click.ClickException(f"the search for {q!r} failed: {sorted(codes)}")


def time_searches(database: Path, queries: int, repeat: int) -> dict[str, list[QueryTimes]]:
    with open_readonly(database) as conn, closing(asyncio.new_event_loop()) as loop:
        memory = SearchedMemory(conn, database, loop)
        return {
            kind: [memory.times(q, repeat) for q in asked] for kind, asked in queries_by_kind(queries).items()
        }


def filtered_searches(database: Path, queries: int, repeat: int) -> Iterator[Comparison]:
    """Searches with a filter, as ratios to the same ones without."""
    asked = queries_by_kind(queries)["2-3 words"]
    filters = {"source=memory (all pass)": {"source": "memory"}, "path=*7.md (a tenth)": {"path": "*7.md"}}
    with open_readonly(database) as conn:
        for name, given in filters.items():
            times = []
            for q in asked:
                actions: list[Action] = [partial(search, conn, q), partial(search, conn, q, given)]
                plain, filtered = median_seconds(repeat, actions)
                times.append((filtered, plain))
            yield compare(f"search(), {name}", "the same without the filter", times)


def keyword_searches(times: dict[str, list[QueryTimes]]) -> Iterator[Comparison]:
    every = [one for of_kind in times.values() for one in of_kind]
    reference = "bare FTS5 query"
    yield compare("keyword search()", reference, [(one.in_process, one.bare_fts) for one in every])
    yield compare("keyword JSON page", reference, [(one.page, one.bare_fts) for one in every])
    yield compare("keyword HTML page", reference, [(one.html_page, one.bare_fts) for one in every])


def hybrid_searches(times: dict[str, list[QueryTimes]]) -> Iterator[Comparison]:
    every = [one for of_kind in times.values() for one in of_kind]
    reference = "bare vector + bare FTS5 query"
    for kind, of_kind in {**times, "all queries": every}.items():
        yield compare(f"search(), {kind}", reference, [(one.in_process, one.bare) for one in of_kind])
        yield compare(f"JSON page, {kind}", reference, [(one.page, one.bare) for one in of_kind])
        yield compare(f"HTML page, {kind}", reference, [(one.html_page, one.bare) for one in of_kind])
    yield compare("bare vector query", "bare FTS5 query", [(one.bare_vec, one.bare_fts) for one in every])
    yield compare("embed a new query", reference, [(one.embedding, one.bare) for one in every])


# The whole


def machine() -> str:
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"SQLite {sqlite3_in_use.sqlite_version} ({sqlite3_in_use.__name__}), "
        f"bare FTS5 table made by SQLite {sqlite3.sqlite_version}"
    )


def run(
    folder: Path, notes: int, embedded_notes: int, chunks: int, queries: int, repeat: int
) -> Iterator[Comparison]:
    """The comparisons, each as soon as it is known."""
    databases = (folder / f"memory{number}.db" for number in count())
    if notes:
        root = write_notes(folder / "notes", islice(synthetic_notes(), notes))
        yield index_keywords(root, databases, repeat)
        database = next(databases)
        index(root, database)
        yield index_unchanged(root, database, repeat)
        yield from keyword_searches(time_searches(database, queries, repeat))
    if embedded_notes:
        root = write_notes(folder / "embedded", islice(synthetic_notes(), embedded_notes))
        yield index_embedded(root, databases, repeat)
    if chunks:
        root = write_notes(folder / "chunks", notes_of_chunks(chunks))
        database = next(databases)
        index(root, database, RandomVectors())
        yield from hybrid_searches(time_searches(database, queries, repeat))
        yield from filtered_searches(database, queries, repeat)


def as_row(found: Comparison) -> str:
    return (
        f"{found.what:40} {found.ratio:7.2f} x {found.reference:30} (at most {found.greatest_ratio:6.2f})"
        f" {1000 * found.seconds:10.1f} ms {1000 * found.reference_seconds:10.1f} ms"
    )


@click.command(help=__doc__)
@click.option("--notes", default=10_000, show_default=True, help="Notes to index without vectors.")
@click.option("--embedded-notes", default=200, show_default=True, help="Notes to index with the model.")
@click.option("--chunks", default=100_000, show_default=True, help="Chunks to search by vectors and words.")
@click.option("--queries", default=12, show_default=True, help="Queries of each kind.")
@click.option("--repeat", default=5, show_default=True, help="Timed runs, of which the median counts.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with seconds.")
def main(notes: int, embedded_notes: int, chunks: int, queries: int, repeat: int, as_json: bool) -> None:
    comparisons = []
    if not as_json:
        click.echo(machine())
    with TemporaryDirectory() as folder:
        for found in run(Path(folder), notes, embedded_notes, chunks, queries, repeat):
            comparisons.append(asdict(found))
            if not as_json:
                click.echo(as_row(found))
    if as_json:
        click.echo(json.dumps({"machine": machine(), "comparisons": comparisons}, indent=2))


if __name__ == "__main__":
    main()
