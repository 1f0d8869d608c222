"""Text to chunks with exact line ranges.

The boundaries are those of OpenClaw 2026.3.31, so that an index made here shows its
owner the same chunks that the agent sees. Lines are gathered until a chunk is full;
Markdown structure plays no part. Lengths are *weighted characters*: a CJK character
counts as CHARS_PER_TOKEN, every other one as 1, so that a chunk of Chinese holds about
as many tokens as a chunk of English.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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


def join_chunks(chunks: list[Chunk], tokens: int = DEFAULT_TOKENS) -> str:
    """The text that chunk_markdown(text, tokens) made these chunks of, in file order.

    Overlaps are laid on one another and cut lines joined again. Lines that no chunk holds,
    blank ones as a rule, come back empty, except at the end of the text.
    """
    pieces: list[tuple[int, str]] = []
    for chunk in chunks:
        new = chunk.text.split("\n")
        carried = _carried(pieces, chunk.start_line, new)
        line = pieces[-1][0] if pieces else 0
        if not carried:
            line = max(line, chunk.start_line - 1)
        fresh = new[carried:]
        surplus = len(fresh) - (chunk.end_line - line)
        for index, piece in enumerate(fresh):
            # Only a full segment is followed by more of its own line.
            continues = bool(pieces) and pieces[-1][0] == line and _is_full(pieces[-1][1], tokens)
            if surplus > 0 and (continues or len(fresh) - index <= surplus):
                surplus -= 1
            else:
                line += 1
            pieces.append((line, piece))
    lines: list[str] = []
    for line, piece in pieces:
        lines.extend([""] * (line - len(lines)))
        lines[line - 1] += piece
    return "\n".join(lines)


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


def _carried(pieces: list[tuple[int, str]], start_line: int, new: list[str]) -> int:
    """How many of the new segments are the last ones of the pieces, carried over."""
    for count in range(min(len(pieces), len(new)), 0, -1):
        if pieces[-count][0] == start_line and [text for _, text in pieces[-count:]] == new[:count]:
            return count
    return 0


def _is_full(segment: str, tokens: int) -> bool:
    units = len(segment) + sum(1 for _ in _ASTRAL.finditer(segment))
    return units >= max(1, tokens)
