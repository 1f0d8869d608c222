#!/usr/bin/env python3
"""How well the embedded model's search finds what answers a question.

  search_quality.py FOLDER

FOLDER holds sets of labelled questions: SET/queries.jsonl and SET/<workspace>/. Prints the tables
of docs/search-quality.md, in Markdown: each side alone, the presets and the defaults, what other
settings make of them, what passages do for notes of many things, and how often the rule of a
weak match is right. It takes some ten minutes on two cores.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datasette_agent_memory.comparison import bootstrap, per_query
from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.embeddings.chain import PROVIDERS_OF_ENVIRONMENT
from datasette_agent_memory.embeddings.embedded import EmbeddedProvider
from datasette_agent_memory.evaluation import Measured, Memories, Query, read_queries
from datasette_agent_memory.ingest import IndexSettings, update_index
from datasette_agent_memory.search import search

DEFAULTS = "the defaults"
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    DEFAULTS: {},
    "`mode=keyword`": {"mode": "keyword"},
    "`mode=vector min_score=0`": {"mode": "vector", "min_score": 0},
    "`preset=openclaw`": {"preset": "openclaw"},
    "`preset=rank`": {"preset": "rank"},
    "`text_norm=relevance`, 0.7 / 0.3, `min_score=0.35` (other models' defaults)": {
        "text_norm": "relevance",
        "vector_weight": 0.7,
        "text_weight": 0.3,
        "min_score": 0.35,
    },
    "`text_norm=max`, 0.7 / 0.3": {"text_norm": "max", "vector_weight": 0.7, "text_weight": 0.3},
    "`text_norm=max`": {"text_norm": "max"},
    "`fusion=rrf`, 0.5 / 0.5": {"fusion": "rrf", "vector_weight": 0.5, "text_weight": 0.5},
    "`rescore=0`": {"rescore": 0},
    "`match=any`": {"match": "any"},
    "0.1 / 0.9": {"vector_weight": 0.1, "text_weight": 0.9},
    "0.2 / 0.8": {"vector_weight": 0.2, "text_weight": 0.8},
    "0.4 / 0.6": {"vector_weight": 0.4, "text_weight": 0.6},
    "0.5 / 0.5": {"vector_weight": 0.5, "text_weight": 0.5},
    "`mmr=1`": {"mmr": 1},
}
#: Those that are measured again without vectors of passages.
WITHOUT_PASSAGES = (DEFAULTS, "`mode=vector min_score=0`")

#: Notes of many things: so many lines of another set around each answer.
DISTRACTORS = 8
#: Of each set, so many questions at most are asked of other sets' notes.
STRANGE_QUESTIONS = 150
SEED = 2026


@contextmanager
def passages(wanted: bool) -> Iterator[None]:
    before = EmbeddedProvider.has_passages
    EmbeddedProvider.has_passages = wanted
    try:
        yield
    finally:
        EmbeddedProvider.has_passages = before


def measure(
    folder: Path, queries: Sequence[Query], configurations: Mapping[str, Mapping[str, Any]]
) -> dict[str, Measured]:
    provider = PROVIDERS_OF_ENVIRONMENT.get("embedded")
    with Memories.of_workspaces(queries, folder, {"providers": [provider]}) as memories:
        return {
            name: memories.run(options, lambda done, total: None) for name, options in configurations.items()
        }


def cell(queries: Sequence[Query], found: Measured) -> str:
    means = {measure: values.mean() for measure, values in per_query(queries, found).items()}
    return f"{means['recall@6']:.3f} / {means['MRR']:.3f} / {means['nDCG@10']:.3f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def quality(folders: Sequence[Path]) -> None:
    """Each configuration on each set, and how sure the defaults are to be no worse than a side."""
    rows = defaultdict(list)
    sides: list[list[str]] = []
    for folder in folders:
        queries = read_queries(folder / "queries.jsonl")
        found = measure(folder, queries, CONFIGURATIONS)
        with passages(False):
            some = {name: CONFIGURATIONS[name] for name in WITHOUT_PASSAGES}
            without = measure(folder, queries, some)
        for name in CONFIGURATIONS:
            rows[name].append(cell(queries, found[name]))
        for name in WITHOUT_PASSAGES:
            rows[f"{name}, without passages"].append(cell(queries, without[name]))
        scores = {name: per_query(queries, found[name]) for name in found}
        rows["chars@6 of the defaults"].append(f"{scores[DEFAULTS]['chars@6'].mean():,.0f}")
        names = ("`mode=keyword`", "`mode=vector min_score=0`")
        better = max(names, key=lambda name: scores[name]["recall@6"].mean())
        difference = scores[DEFAULTS]["recall@6"] - scores[better]["recall@6"]
        low, high = bootstrap(difference)
        mean = difference.mean()
        sides.append([folder.name, better, f"{mean:+.3f}", f"{low:+.3f} to {high:+.3f}"])
    print("\n## recall@6 / MRR / nDCG@10\n")
    print(table(["", *(folder.name for folder in folders)], [[name, *cells] for name, cells in rows.items()]))
    print("\n## The defaults against the better of their sides, recall@6\n")
    print(table(["set", "better side", "difference", "95% interval"], sides))


def notes_of_many_things(folders: Sequence[Path]) -> None:
    """Each answering line of a set of short notes between lines of another set in its language."""
    pairs = [("madial-en", "locomo"), ("madial-zh", "cmrc")]
    by_name = {folder.name: folder for folder in folders}
    rows = []
    for own, strange in pairs:
        if own not in by_name or strange not in by_name:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            queries = mix(by_name[own], by_name[strange], Path(temporary))
            configurations = {name: CONFIGURATIONS[name] for name in WITHOUT_PASSAGES}
            found = measure(Path(temporary), queries, configurations)
            with passages(False):
                without = measure(Path(temporary), queries, configurations)
        name = f"{own}, among {DISTRACTORS} lines of {strange}"
        for configuration in configurations:
            cells = [cell(queries, without[configuration]), cell(queries, found[configuration])]
            rows.append([name, configuration, *cells])
    if rows:
        print("\n## Notes of many things, recall@6 / MRR / nDCG@10\n")
        print(table(["notes", "options", "without passages", "with"], rows))


def mix(own: Path, strange: Path, target: Path) -> list[Query]:
    chance = random.Random(SEED)
    distractors = [
        f"- {line.strip()}"
        for file in sorted(strange.rglob("*.md"))
        for line in file.read_text("utf-8").split("\n")
        if 15 < len(line) < 220 and not line.startswith("#")
    ]
    places = {}
    queries = read_queries(own / "queries.jsonl")
    for workspace in {query.workspace for query in queries}:
        for file in sorted((own / workspace).rglob("*.md")):
            for number, line in enumerate(file.read_text("utf-8").split("\n"), 1):
                if not line.startswith("- "):
                    continue
                path = file.relative_to(own / workspace).as_posix()
                lines = chance.sample(distractors, DISTRACTORS)
                place = chance.randrange(DISTRACTORS + 1)
                lines.insert(place, line)
                note = target / workspace / "memory" / f"{len(places)}.md"
                note.parent.mkdir(parents=True, exist_ok=True)
                note.write_text("\n".join(lines) + "\n", encoding="utf-8")
                places[workspace, path, number] = (f"memory/{note.name}", place + 1)
    return [
        Query(
            query.id,
            query.workspace,
            query.text,
            frozenset(places[query.workspace, path, line] for path, line in query.relevant),
            query.category,
        )
        for query in queries
    ]


def weak_matches(folders: Sequence[Path]) -> None:
    """How often each set's questions, asked of each set's notes, are called a weak match."""
    provider = PROVIDERS_OF_ENVIRONMENT.get("embedded")
    questions = {}
    for folder in folders:
        queries = read_queries(folder / "queries.jsonl")
        first = queries[0].workspace
        own = [query.text for query in queries if query.workspace == first]
        questions[folder.name] = (first, random.Random(SEED).sample(own, min(len(own), STRANGE_QUESTIONS)))
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for folder in folders:
            database = Path(temporary) / f"{folder.name}.db"
            update_index(database, IndexSettings(folder / questions[folder.name][0], providers=[provider]))
            with open_readonly(database) as conn:
                row = []
                for _, texts in questions.values():
                    answers = [search(conn, text) for text in texts]
                    weak = sum(answer.weak is not None or not answer.hits for answer in answers)
                    row.append(f"{weak / len(answers):.0%}")
            rows.append([folder.name, *row])
    print("\n## Called a weak match, or without a result\n")
    print(table(["notes of", *(f"asked {name}'s questions" for name in questions)], rows))


def main(folder: Path) -> None:
    folders = [file.parent for file in sorted(folder.glob("*/queries.jsonl"))]
    if not folders:
        sys.exit(f"{folder}: has no SET/queries.jsonl")
    order = ["locomo", "madial-en", "madial-zh", "cmrc"]
    folders.sort(key=lambda one: order.index(one.name) if one.name in order else len(order))
    quality(folders)
    notes_of_many_things(folders)
    weak_matches(folders)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
