"""What there is to say of a chunk in a search, and how it is said."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import AgentMemoryError
from .search import Answer, ScorePart

_PLACE = re.compile(r"(.*?)(?::|#L)([0-9]{1,17})(?:-L?[0-9]{1,17})?", re.DOTALL)


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
    #: What it adds to bm25 here: more the more often it stands here, less the longer the chunk is.
    adds: float | None = None
    #: Whether it stands in the text; else in the path, the date or the headings above.
    in_text: bool | None = None


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
    id: str | None = None
    #: How its text begins.
    begins: str = ""
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
    #: Its place by its own vector, where only the first of these have their passages compared.
    nearest_place: int | None = None
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
        """The first step that it did not pass; none for one of the results."""
        return next((step for step in self.steps if not step.passed), None) if not self.returned else None

    @property
    def is_considered(self) -> bool:
        """Whether the search looked at it, and no filter left it out before."""
        return not any(step.name in ("indexed", "filters") and not step.passed for step in self.steps)

    def lines(self) -> list[str]:
        """The numbers, and the rules that made them."""
        lines = []
        for word in self.words:
            if not word.in_chunk:
                continue
            adds = f", and adds {word.adds:.3f} of {word.weight:.3f} at most" if word.adds is not None else ""
            where = " around the text" if word.in_text is False else ""
            lines.append(f"has {word.term}{where}, as {_chunks_have(word.chunks)}{adds}")
        missing = [word.term for word in self.words if not word.in_chunk]
        if missing:
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
            "id": self.id,
            "path": self.path,
            "begins": self.begins,
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
                "nearest_place": self.nearest_place,
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


def explanations_as_json(answer: Answer, explanations: Sequence[Explanation]) -> dict[str, Any]:
    """What a search made of one place."""
    return {
        "ok": True,
        "query": answer.query_as_json(),
        "notices": answer.notices_as_json(),
        "explanations": [explanation.as_json() for explanation in explanations],
    }


def _chunks_have(chunks: int) -> str:
    return "one chunk has" if chunks == 1 else f"{chunks:,} chunks have"


def parse_place(text: str) -> tuple[str, int | None]:
    """A path, and the line if there is one: `a.md`, `a.md:3`, `a.md:3-9`, `a.md#L3-L9`.

    Raises NothingToExplain.
    """
    text = text.encode("utf-8", "replace").decode().strip()
    match = _PLACE.fullmatch(text)
    path, line = (match[1], int(match[2])) if match else (text, None)
    if not path or line == 0:
        what = f", not {text[:40]!r}" if text else ""
        raise NothingToExplain(
            f"must be a path, with a line from 1 or without: memory/2026-01-05.md:12{what}"
        )
    return path, line
