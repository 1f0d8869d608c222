"""One file as the index holds it: its text and its chunks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from .chunking import DEFAULT_OVERLAP, DEFAULT_TOKENS, Chunk, join_chunks
from .config import SearchOptions
from .connections import Connection
from .errors import AgentMemoryError
from .fused_sql import FILTERS, all_of
from .schema import MemoryIndex, as_text
from .search import NotAMemoryDatabase
from .sources import SourceFile, UnreadableFile, read_source, sha256
from .sql_functions import date_of_path

#: A row that speaks of more lines is damaged, and would be laid out in memory.
_MAX_LINES = 10_000_000


class FileNotIndexed(AgentMemoryError):
    """No such path is in the index."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path!r} is not in the index")


@dataclass(frozen=True)
class IndexedFile:
    path: str
    source: str
    chunks: list[Chunk]
    content: str
    #: Whether the content is, to the letter, what was indexed.
    is_exact: bool

    @property
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
    index = _index(conn)
    given = {name: getattr(options, name) for name in FILTERS if options and getattr(options, name)}
    where = f"where {all_of([FILTERS[name] for name in given])}" if given else ""
    table = index.layout.files if index.has_files else index.layout.chunks
    rows = conn.execute(f"select distinct path, source from {table} {where} order by path", given)
    files = [ListedFile(as_text(path), as_text(source)) for path, source in rows]
    dated = sorted(
        (file for file in files if file.date), key=lambda file: file.date or datetime.min, reverse=True
    )
    return [file for file in files if not file.date] + dated


def read_file(conn: Connection, path: str) -> IndexedFile:
    """A file of the index: no other file can be read this way.

    Its text is put together from the chunks. Where that is not to the letter what was
    indexed (equal parts of a cut line are one chunk, blank chunks are left out), and the
    file on disk still is, the text is that. Raises FileNotIndexed and NotAMemoryDatabase.
    """
    index = _index(conn)
    layout = index.layout
    path = path.encode("utf-8", "replace").decode()
    # As they were written, which is the order of the text.
    rows = conn.execute(
        f"select start_line, end_line, text, source from {layout.chunks} where path = ? order by rowid",
        (path,),
    ).fetchall()
    known = (
        conn.execute(f"select source, hash from {layout.files} where path = ?", (path,)).fetchone()
        if index.has_files
        else None
    )
    if known is None and not rows:
        raise FileNotIndexed(path)
    chunks = [
        Chunk(start, end, as_text(text))
        for start, end, text, _ in rows
        if isinstance(start, int) and isinstance(end, int) and 1 <= start <= end <= _MAX_LINES
    ]
    content = join_chunks(
        chunks,
        _number(index.meta.get("chunkTokens"), DEFAULT_TOKENS),
        _number(index.meta.get("chunkOverlap"), DEFAULT_OVERLAP),
    )
    is_exact = known is not None and sha256(content) == known["hash"]
    if not is_exact and known is not None:
        on_disk = _unchanged_on_disk(index, path, known["hash"])
        if on_disk is not None:
            content, is_exact = on_disk, True
    return IndexedFile(
        path, as_text(known["source"] if known else rows[0]["source"]), chunks, content, is_exact
    )


def _index(conn: Connection) -> MemoryIndex:
    index = MemoryIndex.read(conn)
    if index is None:
        raise NotAMemoryDatabase
    return index


def _unchanged_on_disk(index: MemoryIndex, path: str, hash: str) -> str | None:
    """The text of the file that was indexed, if it is there and has the hash it had then."""
    root = index.meta.get("root")
    if not isinstance(root, str) or not root or ".." in PurePosixPath(path).parts or path.startswith("/"):
        return None
    try:
        content = read_source(SourceFile(path, Path(root) / path))
    except (UnreadableFile, ValueError):  # ValueError: a NUL in the name
        return None
    return content.text if content.hash == hash else None


def _with_newlines(content: str) -> list[str]:
    lines = [f"{line}\n" for line in content.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines


def _number(value: Any, default: int) -> int:
    return value if isinstance(value, int) and value >= 0 else default
