"""What there is to say of a chunk in a search, and how it is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .errors import AgentMemoryError
from .search import ScorePart


class NothingToExplain(AgentMemoryError):
    """A place is not given in a form that can be looked for."""


@dataclass(frozen=True)
class Word:
    """A term of the question."""

    term: str
    #: How many chunks have it, and the most that it can add to bm25.
    chunks: int
    weight: float
    in_chunk: bool


@dataclass(frozen=True)
class Step:
    """One step on a chunk's way into the results."""

    name: str
    passed: bool
    detail: str


@dataclass
class Explanation:
    """What a search made of one chunk, or of a place that is in no chunk."""

    path: str
    start_line: int | None = None
    end_line: int | None = None
    #: Its place in the results, from 1, None if it is not among them.
    position: int | None = None
    words: list[Word] = field(default_factory=list)
    every_word: bool | None = None
    bm25: float | None = None
    text_place: int | None = None
    text_score: float | None = None
    #: The cosine of the chunk's own vector, and the best of its passages.
    cosine: float | None = None
    passage: float | None = None
    vector_place: int | None = None
    vector_score: float | None = None
    parts: list[ScorePart] = field(default_factory=list)
    decay: float = 1.0
    age_days: float | None = None
    score: float | None = None
    rules: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    #: Settings with which the search returns it, which has been tried, None for one to be left
    #: out; None as a whole where there are none.
    settings: dict[str, Any] | None = None

    @property
    def returned(self) -> bool:
        return self.position is not None

    @property
    def fell_out(self) -> Step | None:
        """The first step that it did not pass."""
        return next((step for step in self.steps if not step.passed), None)

    def lines(self) -> list[str]:
        """The numbers, and the rules that made them."""
        words = [f"{word.term} ({word.chunks:,})" for word in self.words if word.in_chunk]
        missing = [word.term for word in self.words if not word.in_chunk]
        lines = []
        if words:
            lines.append(f"has {', '.join(words)}, each with the number of chunks that have it")
        if missing and self.words:
            lines.append(f"lacks {', '.join(missing)}")
        places = [
            f"{place:,} by {side}"
            for side, place in (("keywords", self.text_place), ("vectors", self.vector_place))
            if place is not None
        ]
        if places:
            lines.append(f"place {', '.join(places)}")
        return [*lines, *self.rules]

    def as_json(self) -> dict[str, Any]:
        fell_out = self.fell_out
        return {
            "path": self.path,
            "start_line": self.start_line,
            "end_line": self.end_line,
            "returned": self.returned,
            "position": self.position,
            "text": {
                "words": [vars(word) for word in self.words],
                "every_word": self.every_word,
                "bm25": self.bm25,
                "place": self.text_place,
                "score": self.text_score,
            },
            "vector": {
                "cosine": self.cosine,
                "passage": self.passage,
                "place": self.vector_place,
                "score": self.vector_score,
            },
            "parts": [vars(part) for part in self.parts],
            "decay": self.decay,
            "age_days": self.age_days,
            "score": self.score,
            "rules": self.rules,
            "steps": [vars(step) for step in self.steps],
            "fell_out": fell_out.name if fell_out else None,
            "settings": self.settings,
        }


def parse_place(text: str) -> tuple[str, int | None]:
    """A path, and the line after a colon if there is one; raises NothingToExplain."""
    path, colon, line = text.rpartition(":")
    if colon and line.isascii() and line.isdigit() and len(line) < 18:
        if not path or int(line) < 1:
            raise NothingToExplain(f"must be a path with a line from 1, not {text[:40]!r}")
        return path, int(line)
    if not text.strip():
        raise NothingToExplain("must be a path, such as memory/2026-01-05.md:12")
    return text, None
