"""The map of a memory: every chunk a point, near to those that are like it, and a bar in time."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from datasette.utils import sqlite_timelimit

from .connections import Connection, snapshot, sqlite3
from .dates import folder_of, month_bounds, month_of
from .schema import MemoryIndex, as_line, as_text
from .search import NotAMemoryDatabase
from .sql_functions import date_of_path

if TYPE_CHECKING:
    from .embeddings.base import Vectors

#: Of more chunks than these an even sample is shown, and a smaller one where that takes too long.
MAX_POINTS = 20_000
FEW_POINTS = 4_000
#: What a short id has at least, so that it stays unique for a while.
_MIN_ID_CHARS = 10
#: Bars are of days up to this many, then of weeks up to this many, then of months.
_MAX_BARS = 400
#: A memory of before or after is one with a slip in its name.
_YEARS = range(1970, 2101)
_DECIMALS = 4

_NOTHING_TO_COMPARE = "No chunk has a vector that can be compared with others, so there is no map."

_maps: WeakKeyDictionary[Any, dict[str, MemoryMap]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Place:
    """Where a chunk with a usable vector stands."""

    id: str
    path: str
    source: str
    start_line: int
    end_line: int

    @property
    def folder(self) -> str:
        return folder_of(self.path)

    @property
    def month(self) -> str:
        return month_of(self.path)


@dataclass(frozen=True)
class Bar:
    """The chunks of one day, week or month: both dates are its own."""

    since: date
    until: date
    chunks: int


@dataclass(frozen=True)
class Timeline:
    unit: str
    #: By date; a time without chunks has none.
    bars: list[Bar]
    #: How many chunks have no date in their path, and do not age.
    undated: int
    #: The first and the last day with chunks, None where there are none.
    days: tuple[date, date] | None
    #: How many chunks have a date of other times than agents have, and would leave no room for the rest.
    far: int

    @classmethod
    def of_paths(cls, chunks_by_path: dict[str, int]) -> Timeline:
        days: Counter[date] = Counter()
        undated = 0
        for path, chunks in chunks_by_path.items():
            moment = date_of_path(path)
            if moment is None:
                undated += chunks
            else:
                days[moment.date()] += chunks
        near = Counter({day: chunks for day, chunks in days.items() if day.year in _YEARS})
        far = days.total() - near.total() if near else 0
        days = near or days
        span = (min(days), max(days)) if days else None
        unit = _unit((span[1] - span[0]).days) if span else "day"
        bars: Counter[tuple[date, date]] = Counter()
        for day, chunks in days.items():
            bars[_bounds(day, unit)] += chunks
        return cls(
            unit, [Bar(*bounds, chunks) for bounds, chunks in sorted(bars.items())], undated, span, far
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "since": [bar.since.isoformat() for bar in self.bars],
            "until": [bar.until.isoformat() for bar in self.bars],
            "chunks": [bar.chunks for bar in self.bars],
            "undated": self.undated,
            "far": self.far,
        }


@dataclass(frozen=True)
class MemoryMap:
    """What the map's page shows of one state of an index."""

    #: What changes when the index does.
    state: tuple[Any, ...]
    index: MemoryIndex
    places: list[Place]
    #: Their coordinates, from -1 to 1, on one scale for both.
    x: list[float]
    y: list[float]
    #: The share of all variance that lies in the two directions, None where vectors do not differ.
    explained: float | None
    #: How many chunks were looked at: all, or an even sample.
    sampled: int
    #: Why there are no points, or not all.
    problem: str | None
    chunks_by_path: dict[str, int]
    #: How many characters of an id tell all chunks apart.
    id_chars: int

    @property
    def is_sample(self) -> bool:
        return self.sampled < self.index.chunk_count

    @property
    def skipped(self) -> int:
        """How many of the chunks looked at have no usable vector."""
        return self.sampled - len(self.places)

    @cached_property
    def timeline(self) -> Timeline:
        return Timeline.of_paths(self.chunks_by_path)

    @cached_property
    def chunks_by_month(self) -> list[tuple[str, int]]:
        """Chunks by their month, "" for those without a date, which come last."""
        months = _counted((month_of(path), chunks) for path, chunks in self.chunks_by_path.items())
        return sorted(months, key=lambda pair: (not pair[0], pair[0]))

    @cached_property
    def chunks_by_folder(self) -> list[tuple[str, int]]:
        """Chunks by their folder, "" for the top, the fullest first."""
        folders = _counted((folder_of(path), chunks) for path, chunks in self.chunks_by_path.items())
        return sorted(folders, key=lambda pair: (-pair[1], pair[0]))

    @cached_property
    def columns(self) -> str:
        """The points as JSON, by columns: it is the same for every search."""
        columns: dict[str, Any] = {"x": self.x, "y": self.y}
        columns["id"] = [self.short_id(place.id) for place in self.places]
        columns["start_line"] = [place.start_line for place in self.places]
        columns["end_line"] = [place.end_line for place in self.places]
        names = {}
        for name in ("path", "source", "folder", "month"):
            values = [getattr(place, name) for place in self.places]
            names[f"{name}s"] = sorted(set(values))
            numbers = {value: number for number, value in enumerate(names[f"{name}s"])}
            columns[name] = [numbers[value] for value in values]
        return json.dumps({**names, "points": columns}, separators=(",", ":"))

    @cached_property
    def _point_of_id(self) -> dict[str, int]:
        return {place.id: point for point, place in enumerate(self.places)}

    def short_id(self, id: str) -> str:
        return id[: self.id_chars]

    def points_of(self, ids: Iterable[str]) -> list[int | None]:
        """The point of each chunk, None for one that the map does not show."""
        return [self._point_of_id.get(id) for id in ids]


async def map_of(datasette: Any, database: Any) -> MemoryMap:
    """The map of a database as it is now; raises NotAMemoryDatabase."""
    time_limit_ms = datasette.setting("sql_time_limit_ms")
    maps = _maps.setdefault(datasette, {})
    known = maps.get(database.name)
    read: MemoryMap | Reading = await database.execute_fn(
        lambda conn: read_unless(conn, known, time_limit_ms)
    )
    if isinstance(read, MemoryMap):
        return read
    # Not in a connection's thread: there are three of these, and they are for SQL.
    memory_map = await asyncio.to_thread(read.as_map)
    # What could not be read now may be another time.
    if read.problem is None or not read.index.has_embeddings:
        maps[database.name] = memory_map
    return memory_map


@dataclass(frozen=True)
class Reading:
    """What was read of an index to make a map of it."""

    state: tuple[Any, ...]
    index: MemoryIndex
    #: id, path, source, start_line, end_line, embedding
    rows: list[Any]
    chunks_by_path: dict[str, int]
    ids: list[str]
    problem: str | None

    def as_map(self) -> MemoryMap:
        rows, vectors = _usable([as_vector(row[5]) for row in self.rows])
        places = [_place(self.rows[number]) for number in rows]
        order = sorted(range(len(places)), key=lambda n: (places[n].path, places[n].start_line, places[n].id))
        x, y, explained = two_directions(vectors) if places else ([], [], None)
        return MemoryMap(
            state=self.state,
            index=self.index,
            places=[places[number] for number in order],
            x=[x[number] for number in order],
            y=[y[number] for number in order],
            explained=explained,
            sampled=len(self.rows),
            problem=self.problem or (None if places else _NOTHING_TO_COMPARE),
            chunks_by_path=self.chunks_by_path,
            id_chars=unique_length(self.ids),
        )


def read_unless(conn: Connection, known: MemoryMap | None, time_limit_ms: int) -> MemoryMap | Reading:
    """The known map if the index has not changed since, else what a new one is made of."""
    with snapshot(conn):
        index = MemoryIndex.read(conn)
        if index is None:
            raise NotAMemoryDatabase
        state = _state(conn, index)
        if known is not None and known.state == state:
            return known
        return _read(conn, index, state, time_limit_ms)


def _state(conn: Connection, index: MemoryIndex) -> tuple[Any, ...]:
    """What is cheap to read, and changes with every run that changes the index: a new chunk is the
    last one, one that goes is counted, and a vector that comes later has a row of its own or is
    counted in `meta`."""
    last = conn.execute(f"select * from {index.layout.chunks} order by rowid desc limit 1").fetchone()
    last_vector = None
    if index.has_vec_table:
        query = f"select max(rowid) from {index.layout.chunks_vec}_rowids"
        last_vector = conn.execute(query).fetchone()[0]
    return index, tuple(last or ()), last_vector


def _read(conn: Connection, index: MemoryIndex, state: tuple[Any, ...], time_limit_ms: int) -> Reading:
    chunks = index.layout.chunks
    rows, counted, ids = [], [], []
    problem = None if index.has_embeddings else _no_vectors(index)
    for most in (MAX_POINTS, FEW_POINTS) if index.has_embeddings else ():
        params = {"count": index.chunk_count, "points": min(most, index.chunk_count)}
        try:
            with sqlite_timelimit(conn, time_limit_ms):
                rows = conn.execute(_vectors_sql(index), params).fetchall()
            problem = None
            break
        except sqlite3.Error as error:
            problem = f"The vectors could not be read, so there is no map: {_reason(error, time_limit_ms)}."
    try:
        with sqlite_timelimit(conn, time_limit_ms):
            counted = conn.execute(f"select path, count(*) from {chunks} group by path").fetchall()
            ids = [as_text(row[0]) for row in conn.execute(f"select id from {chunks}")] if rows else []
    except sqlite3.Error as error:
        problem = f"Not all could be read: {_reason(error, time_limit_ms)}."
    chunks_by_path = dict(_counted((as_text(path), count) for path, count in counted))
    return Reading(state, index, rows, chunks_by_path, ids, problem)


def _vectors_sql(index: MemoryIndex) -> str:
    """An even sample of so many points of all the chunks, each with its vector."""
    chunks, vec = index.layout.chunks, index.layout.chunks_vec
    embedding = "embedding"
    if index.has_vec_table and index.has_sqlite_vec:
        # A blob, which is read much faster than the JSON beside the text.
        embedding = f"(select embedding from {vec} where {vec}.id = {chunks}.id)"
    return (
        f"with numbered as (select rowid as number, row_number() over (order by rowid) as n from {chunks})"
        f" select id, path, source, start_line, end_line, {embedding}"
        f" from numbered join {chunks} on {chunks}.rowid = numbered.number"
        " where n * :points / :count > (n - 1) * :points / :count"
    )


def _no_vectors(index: MemoryIndex) -> str:
    if not index.has_chunks:
        return "The index is empty, so there is no map: no file with text has been indexed yet."
    if index.pending:
        return "No chunk has a vector yet, so there is no map; datasette agent-memory index adds them."
    return (
        "This index has no vectors, so there is no map; "
        "datasette agent-memory index --provider embedded adds them."
    )


def _reason(error: Exception, time_limit_ms: int) -> str:
    return f"it took more than {time_limit_ms} ms" if "interrupted" in str(error) else str(error)


def as_vector(value: object) -> Any:
    """The numbers of a column, a blob of float32 or a JSON array; None for anything else."""
    import numpy as np

    from .embeddings.base import from_json

    if isinstance(value, bytes) and value and len(value) % 4 == 0:
        return np.frombuffer(value, dtype="<f4")
    if isinstance(value, str) and len(value) > 2:
        try:
            vector = from_json(value)
        except (ValueError, TypeError, RecursionError):
            return None
        return vector if vector.ndim == 1 else None
    return None


def _usable(vectors: Sequence[Any]) -> tuple[list[int], Vectors]:
    """The vectors of the commonest width that have a direction, as unit vectors, and which they are."""
    import numpy as np

    widths = Counter(len(vector) for vector in vectors if vector is not None)
    if not widths:
        return [], np.zeros((0, 0), dtype=np.float32)
    width = max(widths, key=lambda width: (widths[width], width))
    numbers = [n for n, vector in enumerate(vectors) if vector is not None and len(vector) == width]
    stacked = np.stack([vectors[n] for n in numbers]).astype(np.float32)
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(stacked, axis=1)
        usable = np.isfinite(lengths) & (lengths > 0)
        stacked = stacked[usable] / lengths[usable, None]
    return [n for n, is_usable in zip(numbers, usable, strict=True) if is_usable], stacked


def two_directions(vectors: Vectors) -> tuple[list[float], list[float], float | None]:
    """Principal component analysis: coordinates in the two directions of most variance, and their
    share of it.

    The directions are the first two eigenvectors of the covariance, which is not made: it would
    be wide. They are found by multiplying a few directions with it again and again (Halko,
    Martinsson and Tropp, 2011), from the same start each time.
    """
    import numpy as np

    centred = vectors - vectors.mean(axis=0)
    total = float(np.square(centred, dtype=np.float64).sum())
    # What float32 has of noise where all vectors are alike.
    if total <= len(centred) * 1e-10:
        return [0.0] * len(centred), [0.0] * len(centred), None
    width = centred.shape[1]
    directions = np.random.default_rng(0).standard_normal((width, min(width, 12))).astype(np.float32)
    for _ in range(16):
        directions, _ = np.linalg.qr(centred.T @ (centred @ directions))
    coordinates = (centred @ directions).astype(np.float64)
    _, turned = np.linalg.eigh(coordinates.T @ coordinates)
    turned = turned[:, ::-1][:, :2]
    axes = directions @ turned
    # An eigenvector may as well point the other way: its greatest part is made positive.
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), range(axes.shape[1])])
    coordinates = coordinates @ turned * signs
    explained = float(np.square(coordinates).sum()) / total
    coordinates = np.round(coordinates / np.abs(coordinates).max(), _DECIMALS) + 0.0
    x = coordinates[:, 0].tolist()
    return x, coordinates[:, 1].tolist() if width > 1 else [0.0] * len(x), min(1.0, explained)


def unique_length(ids: Iterable[str]) -> int:
    """How many characters of each id tell it from all others, at least ten.

    In the order of their characters, ids that begin alike are neighbours.
    """
    ordered = sorted(set(ids))
    alike = 0
    for first, second in pairwise(ordered):
        while len(first) > alike and first[: alike + 1] == second[: alike + 1]:
            alike += 1
    return max(_MIN_ID_CHARS, alike + 1)


def _unit(days: int) -> str:
    if days < _MAX_BARS:
        return "day"
    return "week" if days < 7 * _MAX_BARS else "month"


def _bounds(day: date, unit: str) -> tuple[date, date]:
    """The first and the last day of the day, the week from Monday, or the month of a day."""
    if unit == "day":
        return day, day
    if unit == "week":
        monday = day - timedelta(days=day.weekday())
        # The calendar ends on a Friday.
        return monday, monday + min(timedelta(days=6), date.max - monday)
    return month_bounds(day.isoformat()[:7])


def _counted(pairs: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    counts: Counter[str] = Counter()
    for name, count in pairs:
        counts[name] += count
    return list(counts.items())


def _place(row: Any) -> Place:
    start = as_line(row[3])
    return Place(as_text(row[0]), as_text(row[1]), as_text(row[2]), start, max(start, as_line(row[4])))
