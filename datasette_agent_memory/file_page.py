"""What a page shows of a file: its lines, as rows of a grid, and the chunks beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from .connections import Connection
from .files import (
    LINE_CHARS,
    IndexedFile,
    file_href,
    has_file,
    lines_of_fragment,
    page_of,
    page_starts,
)
from .markdown import Block, can_render, relative_path, render_markdown
from .schema import MemoryIndex
from .search import fragment_of
from .snippets import Snippet, Span, find_matches
from .sources import SESSIONS
from .visible import visible

RENDERED, SOURCE = "rendered", "source"
VIEWS = (RENDERED, SOURCE)


@dataclass(frozen=True)
class Bar:
    """The chunks that have the same lines, as a bar beside these."""

    #: The rows of the grid that it spans, those of its lines that are on the page.
    rows: str
    #: Neighbours stand in two lanes by turns, so that their overlap is seen.
    lane: int
    label: str
    #: The id of its element, None where it would be that of a line.
    anchor: str | None
    chunk_id: str


@dataclass(frozen=True)
class Row:
    """A line, and what begins with it."""

    line: int
    number: int
    bars: list[Bar]
    #: The rows of the grid that the text spans, None where none begins here.
    rows: str | None
    block: Block | None
    #: The line as it is written, in pieces, each with whether it matched.
    pieces: list[tuple[str, bool]]
    #: How many characters of the line are not shown.
    more: int


@dataclass(frozen=True)
class FilePage:
    view: str
    #: Why the page is not rendered though that was asked for.
    is_too_much: bool
    first_line: int
    last_line: int
    rows: list[Row]
    #: The first lines of the pages before and after, and of the last.
    previous: int | None
    next: int | None
    last: int


def read_page(
    conn: Connection, index: MemoryIndex, file: IndexedFile, page_path: str, q: str, view: str, line: int
) -> FilePage:
    """The page of a file that holds a line."""
    lines = file.lines
    starts = page_starts(lines)
    place = page_of(starts, line)
    first = starts[place]
    last = starts[place + 1] - 1 if place + 1 < len(starts) else len(lines)
    # A newline has two characters in files of Windows, of which nothing is hidden.
    whole = [line.removesuffix("\r") for line in lines[first - 1 : last]]
    shown = [visible(line[:LINE_CHARS]) for line in whole]
    more = [len(line) - min(len(line), LINE_CHARS) for line in whole]

    def href_of(href: str) -> str | None:
        target = relative_path(file.path, href)
        if target is None or not has_file(conn, index, target[0]):
            return None
        return file_href(page_path, target[0], *(lines_of_fragment(target[1]) or ()))

    def matches(texts: Sequence[str]) -> list[list[Span]]:
        return find_matches(texts, q)

    is_too_much = view == RENDERED and not can_render("\n".join(shown))
    # In a transcript each line is a message, and lines that belong together in Markdown don't.
    if is_too_much or file.source == SESSIONS:
        view = SOURCE
    if view == RENDERED:
        texts = [
            text + (f" … {count:,} characters more" if count else "")
            for text, count in zip(shown, more, strict=True)
        ]
        blocks = {
            block.start_line: block
            for block in render_markdown(texts, href_of, matches if q.strip() else None, first)
        }
    bars = _bars(file, first, last)
    found = matches(shown) if view == SOURCE and q.strip() else [[]] * len(shown)
    rows = []
    for offset, text in enumerate(shown):
        number = first + offset
        block = blocks.get(number) if view == RENDERED else None
        is_source = view == SOURCE
        end = number if is_source else block.end_line if block else None
        rows.append(
            Row(
                number,
                offset + 1,
                bars.get(number, []),
                _rows(number, end, first) if end else None,
                block,
                Snippet(text, tuple(found[offset])).segments() if is_source else [],
                more[offset] if is_source else 0,
            )
        )
    return FilePage(
        view,
        is_too_much,
        first,
        last,
        rows,
        starts[place - 1] if place else None,
        starts[place + 1] if place + 1 < len(starts) else None,
        starts[-1],
    )


def _rows(start_line: int, end_line: int, first: int) -> str:
    return f"{start_line - first + 1} / {end_line - first + 2}"


def _bars(file: IndexedFile, first: int, last: int) -> dict[int, list[Bar]]:
    """The bars of a page, by the line of the page that each begins with."""
    # A line longer than a chunk has many chunks, of the same lines.
    numbers: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for number, chunk in enumerate(file.chunks):
        numbers[chunk.start_line, chunk.end_line].append(number)
    # The last chunk counts the empty line that a newline at the end begins.
    end_of_file = max(1, len(file.lines))
    bars = defaultdict(list)
    for place, ((start, end_of_chunk), same) in enumerate(numbers.items()):
        end = min(end_of_chunk, end_of_file)
        if start > last or end < first:
            continue
        chunks = f"chunk {same[0] + 1}" if len(same) == 1 else f"chunks {same[0] + 1}–{same[-1] + 1}"
        lines = f"line {start}" if start == end else f"lines {start}–{end}"
        bars[max(start, first)].append(
            Bar(
                _rows(max(start, first), min(end, last), first),
                place % 2,
                f"{chunks}, {lines}",
                # As it is cited.
                fragment_of(start, end_of_chunk) if end_of_chunk > start else None,
                file.chunks[same[0]].id,
            )
        )
    return bars
