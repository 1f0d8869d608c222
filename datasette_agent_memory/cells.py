"""The cells of a memory on Datasette's own pages: read, and not 6,000 characters of a vector.

In a table of the memory's own a column is what its name says. In the result of a query it may be
anything's, so a row counts as a chunk's if it has path, start_line and end_line, or as a file's if
it has path and source; a vector is known by the name `embedding` and by what it holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup, escape

from .config import MAX_DIMENSIONS
from .files import file_href
from .known import KnownMemory, known_memory
from .schema import as_line
from .visible import visible
from .web import memory_path

#: How much of a text is shown, and in how many lines.
_TEXT_CHARS, _TEXT_LINES = 600, 24
_PATH_CHARS = 200
_SHORT_CHARS = 10
#: A number in JSON has hardly more characters.
_NUMBER_CHARS = 32
_FIRST_NUMBERS = 3
_SPARK_WIDTH, _SPARK_HEIGHT = 72, 16

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class _Cell:
    memory: KnownMemory
    #: The memory's own table, None in the result of a query.
    table: str | None
    #: The search page of the database.
    page: str
    row: Mapping[str, Any]
    value: Any

    def is_chunk(self) -> bool:
        if self.table is not None:
            return self.table in (self.memory.layout.chunks, self.memory.layout.chunks_fts)
        return self._has("path", "start_line", "end_line")

    def is_file(self) -> bool:
        return self.table == self.memory.layout.files or (self.table is None and self._has("path", "source"))

    def _has(self, *columns: str) -> bool:
        return set(columns) <= set(self.row)

    def file_page(self) -> str:
        """The file page, at the lines of a chunk."""
        path = self.row.get("path")
        if not isinstance(path, str):
            return ""
        start, end = (self.row.get(name) for name in ("start_line", "end_line"))
        lines = (as_line(start), as_line(end)) if isinstance(start, int) else (None, None)
        return file_href(self.page, path, *lines)


def render_cell(
    datasette: Any, row: Any, value: Any, column: str, table: str | None, database: str
) -> Markup | None:
    """What a cell shows, None where Datasette is to show it."""
    shape = _SHAPES.get(column)
    memory = known_memory(datasette, database) if shape is not None else None
    if shape is None or memory is None or value is None:
        return None
    layout = memory.layout
    own = (layout.files, layout.chunks, layout.embedding_cache, layout.chunks_vec, layout.chunks_fts)
    if table is not None and table not in own and not (table == "passages" and table in memory.hidden_tables):
        return None
    page = memory_path(datasette, datasette.databases[database])
    return shape(_Cell(memory, table, page, {name: row[name] for name in row.keys()}, value))  # noqa: SIM118


def css_urls(datasette: Any, database: str | None, columns: Any) -> list[str]:
    """The style of the cells, on pages that have some."""
    if not columns or known_memory(datasette, database) is None:
        return []
    return [str(datasette.urls.static_plugins("datasette_agent_memory", "agent_memory_cells.css"))]


# Vectors


def _embedding(cell: _Cell) -> Markup | None:
    value = cell.value
    if isinstance(value, str):
        numbers = _of_json(value)
        if numbers is None:
            return None if cell.table is None else _note(f"no vector: {len(value):,} characters of text")
    elif isinstance(value, bytes):
        numbers = _of_blob(value, cell.memory.dims)
        if numbers is None:
            return None if cell.table is None else _note(f"no vector: {len(value):,} bytes")
    else:
        return None
    return _vector(numbers)


def _of_json(text: str) -> Any:
    """The numbers of a JSON array, None for what is none."""
    import numpy as np

    if not text.startswith("[") or len(text) > MAX_DIMENSIONS * _NUMBER_CHARS:
        return None
    try:
        values = json.loads(text)
        # Texts and truth values are no numbers, though numpy reads them as some; null is one lost.
        if any(value is not None and type(value) not in (int, float) for value in values):
            return None
        return np.array(values, dtype=np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def _of_blob(blob: bytes, dims: int | None) -> Any:
    """The numbers of a blob: float32, or float64 where only so they are as many as the index has."""
    import numpy as np

    if len(blob) % 4 or len(blob) > MAX_DIMENSIONS * 8:
        return None
    is_wide = dims is not None and len(blob) == dims * 8
    return np.frombuffer(blob, dtype="<f8" if is_wide else "<f4").astype(np.float64)


def _vector(numbers: Any) -> Markup:
    import numpy as np

    if not len(numbers):
        return _note("none")
    finite = numbers[np.isfinite(numbers)]
    with np.errstate(all="ignore"):
        length = float(np.linalg.norm(finite))
    said = f"{len(numbers):,} number{'s' if len(numbers) != 1 else ''}"
    if len(finite) < len(numbers):
        said += f", {len(numbers) - len(finite):,} not finite"
    elif not finite.any():
        said += ", all 0"
    else:
        said += f", length {length:.2f}" if length < 1e6 else f", length {length:.2g}"
    first = ", ".join(f"{number:.3g}" for number in numbers[:_FIRST_NUMBERS])
    rest = ", …" if len(numbers) > _FIRST_NUMBERS else ""
    return Markup('<span class="am-cell-vector">{} {}<small>[{}{}]</small></span>').format(
        _spark(numbers), said, first, rest
    )


def _spark(numbers: Any) -> Markup:
    """A bar for each few numbers, as high as the one of them that is furthest from 0."""
    import numpy as np

    numbers = np.nan_to_num(numbers, nan=0, posinf=0, neginf=0)
    bars = [max(part, key=abs) for part in np.array_split(numbers, min(len(numbers), _SPARK_WIDTH // 2))]
    highest = max(abs(bar) for bar in bars) or 1
    middle = _SPARK_HEIGHT / 2
    step = _SPARK_WIDTH / len(bars)
    path = "".join(
        f"M{place * step + step / 2:.1f} {middle:g}v{-bar / highest * (middle - 1):.1f}"
        for place, bar in enumerate(bars)
    )
    return Markup(
        '<svg class="am-cell-spark" aria-hidden="true" focusable="false" width="{w}" height="{h}"'
        ' viewBox="0 0 {w} {h}"><path d="{path}"/></svg>'
    ).format(w=_SPARK_WIDTH, h=_SPARK_HEIGHT, path=path)


def _passages(cell: _Cell) -> Markup | None:
    dims, value = cell.memory.dims, cell.value
    if cell.table != "passages" or not isinstance(value, bytes):
        return None
    if not value:
        return _note("none: the chunk is one passage")
    if not dims or len(value) % dims:
        return _note(f"no vectors: {len(value):,} bytes")
    return _note(f"{len(value) // dims:,} passages of {dims:,} numbers")


# Texts


def _text(cell: _Cell) -> Markup | None:
    if not cell.is_chunk() or not isinstance(cell.value, str):
        return None
    text: str = cell.value
    shown = "\n".join(text[:_TEXT_CHARS].split("\n")[:_TEXT_LINES])
    more = Markup("")
    if len(shown) < len(text):
        more = _linked(cell.file_page(), f"… {len(text) - len(shown):,} more characters")
    return Markup('<div class="am-cell-text"><div dir="auto">{}</div>{}</div>').format(visible(shown), more)


def _path(cell: _Cell) -> Markup | None:
    if not (cell.is_chunk() or cell.is_file()) or not isinstance(cell.value, str):
        return None
    return _linked(cell.file_page(), Markup("<bdi>{}</bdi>").format(_cut(cell.value, _PATH_CHARS)))


def _id(cell: _Cell) -> Markup | None:
    in_vectors = cell.table == cell.memory.layout.chunks_vec
    if not (cell.is_chunk() or in_vectors) or not isinstance(cell.value, str):
        return None
    page = f"{cell.page}/chunk?{urlencode({'id': cell.value}, errors='replace')}"
    return _linked(page, _cut(cell.value, _SHORT_CHARS), title=_cut(cell.value, _PATH_CHARS))


def _hash(cell: _Cell) -> Markup | None:
    if cell.table is None or not isinstance(cell.value, str):
        return None
    return Markup('<span title="{}">{}</span>').format(
        _cut(cell.value, _PATH_CHARS), _cut(cell.value, _SHORT_CHARS)
    )


# Numbers


def _moment(cell: _Cell) -> Markup | None:
    value = cell.value
    if not (cell.table or cell.is_chunk() or cell.is_file()) or type(value) not in (int, float):
        return None
    try:
        moment = _EPOCH + timedelta(milliseconds=value)
    except (OverflowError, ValueError):  # damaged
        return None
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        moment.strftime("%Y-%m-%dT%H:%M:%SZ"), value, moment.strftime("%Y-%m-%d %H:%M:%S")
    )


def _size(cell: _Cell) -> Markup | None:
    value = cell.value
    if not cell.is_file() or type(value) is not int or value < 0:
        return None
    said = f"{value:,} bytes" if value < 1000 else f"{value / 1000:,.1f} kB"
    # On its table's page the path leads to Datasette's page of the row.
    return _linked(cell.file_page() if cell.table else "", said, title=f"{value:,} bytes")


# HTML


def _linked(address: str, text: str | Markup, title: str = "") -> Markup:
    if not address:
        return Markup('<span title="{}">{}</span>').format(title, text) if title else escape(text)
    named = Markup(' title="{}"').format(title) if title else Markup("")
    return Markup('<a href="{}"{}>{}</a>').format(address, named, text)


def _note(text: str) -> Markup:
    return Markup('<span class="am-cell-note">{}</span>').format(text)


def _cut(text: str, chars: int) -> str:
    return visible(text if len(text) <= chars else text[:chars] + "…")


_SHAPES: dict[str, Callable[[_Cell], Markup | None]] = {
    "embedding": _embedding,
    "embeddings": _passages,
    "text": _text,
    "path": _path,
    "id": _id,
    "hash": _hash,
    "updated_at": _moment,
    "mtime": _moment,
    "size": _size,
}
