"""One file as the index holds it: its text and its chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .chunking import DEFAULT_TOKENS, Chunk, join_chunks
from .connections import Connection
from .errors import AgentMemoryError
from .schema import MemoryIndex
from .search import NotAMemoryDatabase


class FileNotIndexed(AgentMemoryError):
    """No such path is in the index."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path!r} is not in the index")


@dataclass(frozen=True)
class IndexedFile:
    path: str
    source: str
    chunks: list[Chunk]
    lines: list[str]

    def text(self, start: int = 1, count: int | None = None) -> str:
        """The lines from `start`, 1-based, all or `count` of them, each with its newline."""
        first = max(1, start) - 1
        end = len(self.lines) if count is None else first + count
        text = "\n".join(self.lines[first:end])
        return text + "\n" if end < len(self.lines) and text else text


def list_paths(conn: Connection) -> list[str]:
    """The indexed files, in the order of their paths; raises NotAMemoryDatabase."""
    index = MemoryIndex.read(conn)
    if index is None:
        raise NotAMemoryDatabase
    return [row[0] for row in conn.execute(f"select path from {index.layout.files} order by path")]


def read_file(conn: Connection, path: str) -> IndexedFile:
    """A file of the index, put together from its chunks: no other file can be read this way.

    Raises FileNotIndexed and NotAMemoryDatabase.
    """
    index = MemoryIndex.read(conn)
    if index is None:
        raise NotAMemoryDatabase
    layout = index.layout
    row = conn.execute(f"select source from {layout.files} where path = ?", (path,)).fetchone()
    if row is None:
        raise FileNotIndexed(path)
    # As they were written, which is the order of the text.
    rows = conn.execute(
        f"select start_line, end_line, text from {layout.chunks} where path = ? order by rowid", (path,)
    )
    chunks = [Chunk(start, end, text) for start, end, text in rows]
    tokens: Any = index.meta.get("chunkTokens")
    text = join_chunks(chunks, tokens if isinstance(tokens, int) else DEFAULT_TOKENS)
    return IndexedFile(path, row[0], chunks, text.split("\n") if text else [])
