"""One file as the index holds it: its text and its chunks, and what became of it on disk."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import urlencode

from .chunked import at_lines, hash_of, read_details, text_of
from .chunking import DEFAULT_OVERLAP, DEFAULT_TOKENS, Chunk
from .config import SearchOptions
from .connections import Connection, sqlite3
from .errors import AgentMemoryError
from .fused_sql import FILTERS, all_of
from .scan import is_within, session_prefixes
from .schema import MemoryIndex, as_line, as_text, as_time
from .scopes import SESSION_FOLDERS, paths_of
from .search import NotAMemoryDatabase, fragment_of
from .sessions import is_transcript
from .sources import SESSIONS, NotASource, SourceFile, UnreadableFile, read_source
from .sql_functions import date_of_path

#: A row that speaks of more lines is damaged, and would be laid out in memory.
_MAX_LINES = 10_000_000

#: What one page holds of a file. A page begins at line 1, 2001, 4001 and so on, and in between
#: where the characters of the one before are used up.
PAGE_LINES = 2_000
PAGE_CHARS = 200_000
#: As much of a line is shown.
LINE_CHARS = 10_000

_MIN_ID_PREFIX = 8

OnDisk = Literal["same", "changed", "missing", "unknown"]


class FileNotIndexed(AgentMemoryError):
    """No such path is in the index."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path!r} is not in the index")


class UnknownChunk(AgentMemoryError):
    """No chunk has such an id."""


class AmbiguousId(AgentMemoryError):
    """The beginning of an id does not say which chunk is meant."""


@dataclass(frozen=True, slots=True)
class IndexedChunk(Chunk):
    id: str
    path: str
    source: str

    @classmethod
    def of_row(cls, row: Any) -> IndexedChunk:
        return cls(
            as_line(row["start_line"]),
            as_line(row["end_line"]),
            as_text(row["text"]),
            as_text(row["id"]),
            as_text(row["path"]),
            as_text(row["source"]),
        )


@dataclass(frozen=True)
class IndexedFile:
    path: str
    source: str
    chunks: list[IndexedChunk]
    content: str
    #: Whether the content is, to the letter, what was indexed.
    is_exact: bool
    #: SHA-256 of the text, bytes and time of the file as they were when it was indexed.
    hash: str | None
    size: int | None
    mtime: str | None
    indexed_at: str | None
    on_disk: OnDisk

    @cached_property
    def lines(self) -> list[str]:
        lines = self.content.split("\n")
        return lines if lines[-1] else lines[:-1]

    def text(self, start: int = 1, count: int | None = None) -> str:
        """The lines from `start`, 1-based, all or `count` of them, with their newlines."""
        lines = _with_newlines(self.content)
        first = start - 1
        return "".join(lines[first:] if count is None else lines[first : first + count])


@dataclass(frozen=True)
class ListedFile:
    """A file of the index, by its name alone."""

    path: str
    source: str

    @property
    def date(self) -> datetime | None:
        return date_of_path(self.path)


def list_files(conn: Connection, options: SearchOptions | None = None) -> list[ListedFile]:
    """The indexed files, those that pass the options' filters: first those without a date, then
    the newest; raises NotAMemoryDatabase."""
    index = index_of(conn)
    given = {name: getattr(options, name) for name in FILTERS if options and getattr(options, name)}
    where = f"where {all_of([FILTERS[name] for name in given])}" if given else ""
    table = index.layout.files if index.has_files else index.layout.chunks
    rows = conn.execute(f"select distinct path, source from {table} {where} order by path", given)
    files = [ListedFile(as_text(path), as_text(source)) for path, source in rows]
    # Of one date they stay in the order of their paths.
    return sorted(files, key=lambda file: datetime.max - (file.date or datetime.max))


def read_file(conn: Connection, path: str) -> IndexedFile:
    """A file of the index: no other file can be read this way.

    Its text is put together from the chunks and what the index holds beside them; of a
    transcript each line has the place that it has in its file. Where that is not to the letter
    what was indexed, as in an index of another program's, and the file on disk still is, the
    text is that. Raises FileNotIndexed and NotAMemoryDatabase.
    """
    index = index_of(conn)
    path = path.encode("utf-8", "replace").decode()
    known = _file_row(conn, index, path)
    chunks = chunks_of_file(conn, index, path)
    if known is None and not chunks:
        raise FileNotIndexed(path)
    details = read_details(conn, path)
    content = text_of(
        chunks,
        details,
        _number(index.meta.get("chunkTokens"), DEFAULT_TOKENS),
        _number(index.meta.get("chunkOverlap"), DEFAULT_OVERLAP),
    )
    hash = as_text(known["hash"]) if known else None
    lines = details.line_numbers
    is_exact = known is not None and hash_of(content, lines) == hash
    if lines is not None:
        content = at_lines(content, lines)
    source = as_text(known["source"]) if known else chunks[0].source
    on_disk, text_on_disk = _look_on_disk(index, path, source, hash)
    if not is_exact and lines is None and text_on_disk is not None:
        content, is_exact = text_on_disk, True
    size = known.get("size") if known else None
    return IndexedFile(
        path,
        source,
        chunks,
        content,
        is_exact,
        hash,
        size if isinstance(size, int) else None,
        as_time(known.get("mtime")) if known else None,
        _indexed_at(conn, index, path),
        on_disk,
    )


def has_file(conn: Connection, index: MemoryIndex, path: str) -> bool:
    """Whether a path is in the index."""
    table = index.layout.files if index.has_files else index.layout.chunks
    return conn.execute(f"select 1 from {table} where path = ? limit 1", (path,)).fetchone() is not None


def chunks_of_file(conn: Connection, index: MemoryIndex, path: str) -> list[IndexedChunk]:
    """The chunks of a file as they were written, which is the order of its text.

    A damaged one without a place among the lines is left out.
    """
    has_place = (
        "typeof(start_line) = 'integer' and typeof(end_line) = 'integer'"
        f" and start_line between 1 and end_line and end_line <= {_MAX_LINES}"
    )
    return _chunks(conn, index, f"path = ? and {has_place} order by rowid", path)


def find_chunk(conn: Connection, index: MemoryIndex, id: str) -> IndexedChunk:
    """The chunk with an id, or with the one id that begins so, of at least 8 characters.

    Raises UnknownChunk and AmbiguousId.
    """
    id = id.encode("utf-8", "replace").decode()
    found = _chunks(conn, index, "id = ? limit 1", id)
    if not found:
        if len(id) < _MIN_ID_PREFIX:
            raise AmbiguousId(f"id must have at least its first {_MIN_ID_PREFIX} characters")
        # A range, which the index of the ids serves.
        found = _chunks(conn, index, "id >= ? and id < ? limit 2", id, id + "\U0010ffff")
    if not found:
        raise UnknownChunk(f"No chunk has the id {id[:80]!r}")
    if len(found) > 1:
        raise AmbiguousId(f"id {id[:80]!r} is the beginning of more than one")
    return found[0]


def page_starts(lines: Sequence[str]) -> list[int]:
    """The first line of each page of a file."""
    starts, chars = [1], 0
    for number, line in enumerate(lines, 1):
        size = min(len(line), LINE_CHARS) + 1
        if number > 1 and ((number - 1) % PAGE_LINES == 0 or chars + size > PAGE_CHARS):
            starts.append(number)
            chars = 0
        chars += size
    return starts


def page_of(starts: Sequence[int], line: int) -> int:
    """The place in page_starts of the page that holds a line, the last for one beyond."""
    return bisect_right(starts, line) - 1


def file_href(
    page_path: str, path: str, start_line: int | None = None, end_line: int | None = None, q: str = ""
) -> str:
    """The address of a file's page at these lines; `q` is what was searched for.

    What a page holds depends on the text too: a script finds the page of a line within the
    first 2,000 that is not there.
    """
    query = {"path": path}
    if start_line and start_line > PAGE_LINES:
        query["from"] = str(start_line)
    if q:
        query["q"] = q
    href = f"{page_path}/file?{urlencode(query, errors='replace')}"
    if not start_line:
        return href
    return f"{href}#{fragment_of(start_line, end_line)}"


def lines_of_fragment(fragment: str) -> tuple[int, int] | None:
    """The lines that a fragment speaks of, None for any other."""
    match = re.fullmatch(r"L([0-9]{1,9})(?:-L([0-9]{1,9}))?", fragment)
    return (int(match[1]), int(match[2] or match[1])) if match else None


def _chunks(conn: Connection, index: MemoryIndex, where: str, *values: str) -> list[IndexedChunk]:
    return [
        IndexedChunk.of_row(row)
        for row in conn.execute(
            f"select id, path, source, start_line, end_line, text from {index.layout.chunks} where {where}",
            values,
        )
    ]


def _file_row(conn: Connection, index: MemoryIndex, path: str) -> dict[str, Any] | None:
    if not index.has_files:
        return None
    row = conn.execute(f"select * from {index.layout.files} where path = ?", (path,)).fetchone()
    return dict(row) if row else None


def _indexed_at(conn: Connection, index: MemoryIndex, path: str) -> str | None:
    query = f"select max(updated_at) from {index.layout.chunks} where path = ?"
    try:
        return as_time(conn.execute(query, (path,)).fetchone()[0])
    except sqlite3.Error:  # another program's table may not say
        return None


def index_of(conn: Connection) -> MemoryIndex:
    """The index of a database; raises NotAMemoryDatabase."""
    index = MemoryIndex.read(conn)
    if index is None:
        raise NotAMemoryDatabase
    return index


def _look_on_disk(index: MemoryIndex, path: str, source: str, hash: str | None) -> tuple[OnDisk, str | None]:
    """What became of a file since it was indexed, and its text if that is the same.

    No file outside the folders that were indexed is looked at, and none by a symbolic link. A
    database that is served elsewhere than it was made has no such folders.
    """
    place = _place_on_disk(index, path, source)
    if hash is None or place is None:
        return "unknown", None
    try:
        folder = place[0].resolve()
        file = folder.joinpath(*PurePosixPath(place[1]).parts)
        if not folder.is_dir() or file.resolve() != file or not file.is_relative_to(folder):
            return "unknown", None
        content = read_source(SourceFile(path, file, source))
    except NotASource:
        return "changed" if file.exists() else "missing", None
    # ValueError: a NUL in the name; RuntimeError: links in a circle.
    except (UnreadableFile, OSError, ValueError, RuntimeError):
        return "unknown", None
    return ("same", content.text) if content.hash == hash else ("changed", None)


def _place_on_disk(index: MemoryIndex, path: str, source: str) -> tuple[Path, str] | None:
    """The folder that a file was indexed from, and its path there."""
    if source != SESSIONS:
        root = index.meta.get("root")
        return (Path(root), path) if isinstance(root, str) and root else None
    folders = map(Path, paths_of(index.meta, SESSION_FOLDERS))
    # The first one's path is the beginning of those of the others.
    for folder, prefix in reversed(list(session_prefixes(folders))):
        if is_within(path, prefix) and is_transcript(PurePosixPath(path).name):
            return folder, path.removeprefix(f"{prefix}/")
    return None


def _with_newlines(content: str) -> list[str]:
    lines = [f"{line}\n" for line in content.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines


def _number(value: Any, default: int) -> int:
    return value if isinstance(value, int) and value >= 0 else default
