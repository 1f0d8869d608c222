"""What stands around a chunk: its path, its date in words, and the headings above it.

A question often names what the chunk itself does not say: the day, the file, or the
section whose heading fell into the chunk before. It becomes the `context` column of
chunks_fts, made of the chunks and the front matter that the index holds, so that the column
can be made again without the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .keywords import cjk_terms, hidden_words
from .sql_functions import date_of_path

_HEADING = re.compile(r" {0,3}(#{1,6})\s(.*)", re.DOTALL)
_FENCE = re.compile(r" {0,3}(```|~~~)")
#: What a heading or a fence begins with.
_SIGNS = frozenset("#`~")
#: A heading says what it is about at its beginning.
_MAX_HEADING_CHARS = 200
#: So much of what front matter says stands beside each chunk.
_MAX_PROPERTIES_CHARS = 2_000

_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


@dataclass(frozen=True)
class _Heading:
    line: int
    level: int
    text: str


#: Start line, end line and text of a chunk.
Place = tuple[int, int, str]


def context_terms(path: str, chunks: Sequence[Place], properties: str = "") -> list[str]:
    """The words of each chunk's context, for all chunks of a file in order.

    `properties` are the words of its front matter.
    """
    of_file = _with_terms(_path_words(path))
    if properties:
        of_file += f" {_with_terms(properties[:_MAX_PROPERTIES_CHARS])}"
    return [
        " ".join([of_file, *map(_with_terms, above), *hidden_words(text)])
        for (_, _, text), above in zip(chunks, _headings_above(chunks), strict=True)
    ]


def heading_trail(chunks: Sequence[Place], place: int, at_line: int | None = None) -> list[str]:
    """The headings that `at_line` of a chunk stands under, the nearest last.

    By default the line that the chunk's text begins with: a heading that the chunk begins with
    is among them. `chunks` are all those of its file in order,
    and `place` the chunk's among them, from 0. Reads each line of those up to it once, which
    takes about as long as SQLite takes to hand over their texts.
    """
    found: list[_Heading] = []
    headings = _Headings()
    for start, end, text in chunks[: place + 1]:
        for offset, line in enumerate(text.split("\n")):
            if heading := headings.at(min(start + offset, end), line):
                found.append(heading)
        headings.seen = end
    trail: list[_Heading] = []
    last = at_line or _text_begins(chunks[place], {one.line for one in found})
    for heading in found:
        if heading.line <= last:
            trail = _under(trail, heading)
    return [one.text for one in trail]


def first_heading(text: str) -> str | None:
    """The first heading of a text, None where it has none."""
    headings = _Headings()
    found = (headings.at(number, line) for number, line in enumerate(text.split("\n"), 1))
    return next((heading.text for heading in found if heading), None)


def _text_begins(chunk: Place, headings: set[int]) -> int:
    """The first line of a chunk that is neither blank nor a heading, or its last."""
    start, end, text = chunk
    for offset, line in enumerate(text.split("\n")):
        if line.strip() and start + offset not in headings:
            return min(start + offset, end)
    return end


def _with_terms(text: str) -> str:
    """A text with what unicode61 does not see in it."""
    return " ".join(filter(None, [text, cjk_terms(text), *hidden_words(text)]))


def _path_words(path: str) -> str:
    words = path.removeprefix("memory/")
    day = date_of_path(path)
    if day is not None:
        month = _MONTHS[day.month - 1]
        # As people write it: 5 January, January 5th, 20260105, 1月5日.
        words += f" {day.day} {month} {month[:3]} {day.year} {_ordinal(day.day)} {day:%Y%m%d}"
        words += f" {day.year}年{day.month}月{day.day}日"
    return words


def _ordinal(day: int) -> str:
    ending = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


class _Headings:
    """Finds the headings among the lines of a file's chunks, handed over in order."""

    def __init__(self) -> None:
        self._in_fence = False
        #: Of neighbours that overlap, each line counts once.
        self.seen = 0

    def at(self, number: int, line: str) -> _Heading | None:
        """The heading that a line is, None for one that is none or was seen."""
        if number <= self.seen or line.lstrip(" ")[:1] not in _SIGNS:
            return None
        if _FENCE.match(line):
            self._in_fence = not self._in_fence
        match = None if self._in_fence else _HEADING.match(line)
        title = match[2].strip().rstrip("#").rstrip() if match else ""
        return _Heading(number, len(match[1]), title[:_MAX_HEADING_CHARS]) if match and title else None


def _under(trail: list[_Heading], heading: _Heading) -> list[_Heading]:
    return [one for one in trail if one.level < heading.level] + [heading]


def _headings_above(chunks: Iterable[Place]) -> list[list[str]]:
    """For each chunk the headings that its text stands under and does not hold itself."""
    found: list[_Heading] = []
    lines: set[int] = set()
    headings = _Headings()
    trail: list[_Heading] = []
    passed = 0
    above = []
    for chunk in chunks:
        start, end, text = chunk
        for offset, line in enumerate(text.split("\n")):
            # The segments of a long line stand as lines of their own.
            if heading := headings.at(min(start + offset, end), line):
                found.append(heading)
                lines.add(heading.line)
        headings.seen = end
        # The headings that a chunk begins with end those before it; those further on don't.
        begins = _text_begins(chunk, lines)
        while passed < len(found) and found[passed].line <= begins:
            trail = _under(trail, found[passed])
            passed += 1
        above.append([one.text for one in trail if one.line < start])
    return above
