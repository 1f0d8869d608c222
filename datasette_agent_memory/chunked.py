"""A file as the chunks that are indexed of it, and what these do not hold."""

from __future__ import annotations

import json
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .chunking import Chunk, chunk_markdown, join_chunks
from .connections import Connection, sqlite3
from .decoding import without_surrogates
from .front_matter import values_of
from .sources import SourceText, sha256

#: A transcript's text has a place for each line of its file.
_MAX_LINES = 10_000_000
#: A hostile row of a few kilobytes would be unpacked into more.
_MAX_BYTES = 1 << 26


@dataclass(frozen=True)
class FileDetails:
    """What the row of a file in `file_details` holds: what its chunks do not."""

    #: The block that the file begins with, and what it says, as JSON.
    front_matter: str | None = None
    properties: str | None = None
    #: Of a transcript the line of the file that each line of its text is from, as JSON.
    lines: str | None = None
    #: The text, compressed, where it cannot be put together from the chunks.
    whole: bytes | None = None

    def __bool__(self) -> bool:
        return self != _NOTHING

    @property
    def words(self) -> str:
        """What the front matter says, without the names of its properties."""
        try:
            return " ".join(values_of(json.loads(self.properties or "{}")))
        except (ValueError, RecursionError):
            return ""

    @property
    def line_numbers(self) -> list[int] | None:
        try:
            lines = json.loads(self.lines or "null")
        except (ValueError, RecursionError):
            return None
        # A bool is an int as well.
        if not isinstance(lines, list) or not all(type(line) is int for line in lines):
            return None
        is_ordered = all(before < line for before, line in pairwise([0, *lines, _MAX_LINES + 1]))
        return lines if is_ordered else None


_NOTHING = FileDetails()


def chunks_of(content: SourceText, tokens: int, overlap: int) -> list[Chunk]:
    """The chunks of a file, without blank ones and without front matter."""
    block = content.front_matter
    body = content.text[len(block.text) :] if block else content.text
    chunks = chunk_markdown(body, tokens, overlap, whole_characters=True)
    before = block.lines if block else 0

    def in_file(line: int) -> int:
        return content.lines[line - 1] if content.lines else line + before

    return [
        Chunk(in_file(chunk.start_line), in_file(chunk.end_line), chunk.text)
        for chunk in chunks
        if chunk.text.strip()
    ]


def details_of(content: SourceText, chunks: Sequence[Chunk], tokens: int, overlap: int) -> FileDetails:
    """What the chunks of a file do not hold of it."""
    block = content.front_matter
    details = FileDetails(
        front_matter=block.text if block else None,
        # An escape may make half of a pair, or a pair of halves.
        properties=without_surrogates(json.dumps(block.properties, ensure_ascii=False)) if block else None,
        lines=None if content.lines is None else json.dumps(list(content.lines), separators=(",", ":")),
    )
    # Equal parts of a long line are one chunk, blank chunks are left out, and where a cut line
    # ends is not always sure.
    unique = list({(chunk.start_line, chunk.end_line, chunk.text): chunk for chunk in chunks}.values())
    if text_of(unique, details, tokens, overlap) == content.text:
        return details
    whole = zlib.compress(content.text.encode("utf-8", "replace"))
    return FileDetails(details.front_matter, details.properties, details.lines, whole)


def text_of(chunks: Sequence[Chunk], details: FileDetails, tokens: int, overlap: int) -> str:
    """The text that a file's chunks, in order, were made of."""
    if details.whole is not None:
        try:
            unpacking = zlib.decompressobj()
            text = unpacking.decompress(details.whole, _MAX_BYTES)
            if unpacking.eof and text.count(b"\n") <= _MAX_LINES:
                return text.decode("utf-8", "replace")
        except zlib.error:
            pass
        # A damaged row, or a hostile one: the chunks are there.
    front = details.front_matter or ""
    before, lines = front.count("\n"), details.line_numbers

    def in_text(line: int) -> int:
        return bisect_left(lines, line) + 1 if lines else line - before

    body = [Chunk(in_text(chunk.start_line), in_text(chunk.end_line), chunk.text) for chunk in chunks]
    return front + join_chunks(body, tokens, overlap)


def hash_of(text: str, lines: Sequence[int] | None) -> str:
    """A file's hash, as the peer has it: of a transcript it is also of the lines."""
    return sha256(text) if lines is None else sha256(f"{text}\n{','.join(map(str, lines))}")


def at_lines(text: str, lines: Sequence[int]) -> str:
    """A transcript's text with each line at the place that it has in its file, others blank."""
    placed = [""] * (lines[-1] if lines else 0)
    for number, line in zip(lines, text.split("\n"), strict=False):
        placed[number - 1] = line
    return "\n".join(placed)


def read_details(conn: Connection, path: str) -> FileDetails:
    """What the index holds of a file beside its chunks."""
    try:
        row = conn.execute(
            "select front_matter, properties, lines, whole from file_details where path = ?", (path,)
        ).fetchone()
    except sqlite3.Error:  # an index of another program's, or an older one
        return _NOTHING
    if row is None:
        return _NOTHING
    front_matter, properties, lines, whole = row
    return FileDetails(_as(str, front_matter), _as(str, properties), _as(str, lines), _as(bytes, whole))


def _as(kind: type, value: Any) -> Any:
    return value if isinstance(value, kind) else None
