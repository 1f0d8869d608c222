"""Text to chunks with exact line ranges.

The boundaries are those of OpenClaw 2026.3.31, so that an index made here shows its
owner the same chunks that the agent sees. Lines are gathered until a chunk is full;
Markdown structure plays no part. Lengths are *weighted characters*: a CJK character
counts as CHARS_PER_TOKEN, every other one as 1, so that a chunk of Chinese holds about
as many tokens as a chunk of English.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

DEFAULT_TOKENS = 400
DEFAULT_OVERLAP = 80
CHARS_PER_TOKEN = 4
_MIN_CHUNK_CHARS = 32

_CJK = re.compile("[\u2e80-\u9fff\ua000-\ua4cf\uac00-\ud7af\uf900-\ufaff\U00020000-\U0002fa1f]")
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")
_TWO_UNITS = re.compile("[\U00010000-\U0001ffff\U0002fc00-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of a file's lines: 1-based, both ends inclusive."""

    start_line: int
    end_line: int
    text: str


def chunk_markdown(
    text: str,
    tokens: int = DEFAULT_TOKENS,
    overlap: int = DEFAULT_OVERLAP,
    *,
    whole_characters: bool = False,
) -> Iterator[Chunk]:
    """Yield the chunks of a text, in order.

    `tokens` bounds a chunk and `overlap` is what two neighbours share at least, both in
    tokens of four characters. A line longer than a chunk is cut into segments that become
    lines of their own in the chunk's text; the line numbers are those of the whole line.
    A chunk that starts with carried-over segments may exceed the bound by them. A blank
    text is one blank chunk: leaving it out is the caller's.

    The peer counts UTF-16 code units, and every `4 * tokens` of them its cut can fall
    inside a surrogate pair, which leaves U+FFFD on both sides. `whole_characters` moves
    such a cut behind the character, so that nothing is lost; the index is made that way.
    """
    max_chars = max(_MIN_CHUNK_CHARS, tokens * CHARS_PER_TOKEN)
    overlap_chars = max(0, overlap * CHARS_PER_TOKEN)

    # What the chunk in hand is made of: (line number, segment, weighted length with newline).
    segments: list[tuple[int, str, int]] = []
    chars = 0
    for line_number, line in enumerate(text.split("\n"), 1):
        for segment in _segments(line, max_chars, max(1, tokens), whole_characters):
            size = weighted_length(segment) + 1
            if segments and chars + size > max_chars:
                yield from _chunk(segments)
                segments = _carry_over(segments, overlap_chars)
                chars = sum(carried for _, _, carried in segments)
            segments.append((line_number, segment, size))
            chars += size
    yield from _chunk(segments)


def join_chunks(chunks: Sequence[Chunk], tokens: int = DEFAULT_TOKENS, overlap: int = DEFAULT_OVERLAP) -> str:
    """The text that chunk_markdown(text, tokens, overlap) made these chunks of, in file order.

    Overlaps are laid on one another and cut lines joined again. Lines that no chunk holds,
    blank ones as a rule, come back empty, except at the end of the text. Where a line was
    cut, its parts don't say for certain where it ends: compare the hash.
    """
    lines: list[list[str]] = []
    previous: list[str] = []
    for chunk in chunks:
        new = chunk.text.split("\n")
        carried = _count_carried(previous, new, overlap)
        if not carried:
            lines.extend([] for _ in range(len(lines), chunk.start_line - 1))
        _lay_down(lines, new[carried:], chunk.end_line, tokens)
        previous = new
    return "\n".join("".join(line) for line in lines)


def _lay_down(lines: list[list[str]], segments: list[str], end_line: int, tokens: int) -> None:
    """Add segments to the lines, each a list of its own, so that the last is end_line."""
    surplus = len(segments) - (end_line - len(lines))
    while segments:
        more = _count_more(lines[-1], segments, surplus, tokens) if lines and surplus > 0 else 0
        if more:
            lines[-1] += segments[:more]
            surplus -= more
        else:
            more = 1
            lines.append(segments[:1])
        segments = segments[more:]


def _count_more(line: list[str], segments: list[str], surplus: int, tokens: int) -> int:
    """How many of the segments belong to a line that was begun: what cutting it would give."""
    if len(segments) <= surplus:
        return len(segments)
    max_chars = max(_MIN_CHUNK_CHARS, tokens * CHARS_PER_TOKEN)
    for count in range(surplus, 0, -1):
        whole = line + segments[:count]
        if list(_segments("".join(whole), max_chars, max(1, tokens), whole_characters=True)) == whole:
            return count
    return 0


def weighted_length(text: str) -> int:
    """Length of a text in characters: a CJK one counts as CHARS_PER_TOKEN, an emoji as two.

    The peer counts UTF-16 code units and puts that right for CJK characters alone.
    """
    if text.isascii():
        return len(text)
    return len(text) + len(_TWO_UNITS.findall(text)) + (CHARS_PER_TOKEN - 1) * len(_CJK.findall(text))


def _segments(line: str, max_chars: int, tokens: int, whole_characters: bool) -> Iterator[str]:
    """The line itself, or, where it is too long for one chunk, the parts it is cut into."""
    if not line:
        yield line
        return
    for part in _cut(line, max_chars, keep_pairs=whole_characters):
        if weighted_length(part) > max_chars:
            yield from _cut(part, tokens, keep_pairs=True)
        else:
            yield part


def _cut(text: str, units: int, keep_pairs: bool) -> Iterator[str]:
    """Cut a text every so many UTF-16 code units."""
    if not _ASTRAL.search(text):
        for start in range(0, len(text), units):
            yield text[start : start + units]
        return
    encoded = text.encode("utf-16-le", "surrogatepass")
    start = 0
    while start < len(encoded):
        end = start + 2 * units
        # 0xD8 to 0xDB is the high byte of the first half of a pair.
        if keep_pairs and end < len(encoded) and 0xD8 <= encoded[end - 1] <= 0xDB:
            end += 2
        yield encoded[start:end].decode("utf-16-le", "replace")
        start = end


def _carry_over(segments: list[tuple[int, str, int]], overlap_chars: int) -> list[tuple[int, str, int]]:
    """The last segments, whole, that together reach the overlap."""
    if overlap_chars <= 0:
        return []
    carried = 0
    for index in range(len(segments) - 1, -1, -1):
        carried += segments[index][2]
        if carried >= overlap_chars:
            return segments[index:]
    return segments[:]


def _chunk(segments: list[tuple[int, str, int]]) -> Iterator[Chunk]:
    if segments:
        text = "\n".join(segment for _, segment, _ in segments)
        yield Chunk(segments[0][0], segments[-1][0], text)


def _count_carried(previous: list[str], new: list[str], overlap: int) -> int:
    """How many of a chunk's segments were carried over from the chunk before it."""
    segments = [(0, segment, weighted_length(segment) + 1) for segment in previous]
    carried = len(_carry_over(segments, overlap * CHARS_PER_TOKEN))
    return carried if previous[len(previous) - carried :] == new[:carried] else 0
