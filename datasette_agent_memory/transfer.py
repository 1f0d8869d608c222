"""An index as JSON lines, and back; and a copy of its database.

The first line names the format, the last one counts the rows, and each line between is a row
of a table: {"chunks": {"id": "…", …}}. Full-text and vector tables are not among them: they are
made of the chunks again. Lines from elsewhere can do nothing but fill the tables named here.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from .connections import (
    Connection,
    DatabaseError,
    database_errors,
    has_sqlite_vec,
    open_readonly,
    open_writable,
    snapshot,
    sqlite3,
    transaction,
    use_wal,
)
from .errors import AgentMemoryError
from .files import index_of
from .integrity import is_ours, vector_of
from .layouts import SIX_TABLES, Layout
from .locks import embedding_turn
from .passages import create_passages, has_passages
from .remembered import writer_of
from .schema import PENDING_KEY, create_tables, create_vec_table, read_meta, width_in
from .writer import check_database

FORMAT = "datasette-agent-memory"
VERSION = 1

_DATABASE_SUFFIXES = {".db", ".sqlite", ".sqlite3"}
#: What SQLite has beside a database, and takes for its own when it opens one of that name.
_BESIDE_DATABASE = ("-journal", "-wal", "-shm")
_DATABASE_BEGINS = b"SQLite format 3\0"
#: A longer line is no row of an index.
_MAX_LINE_BYTES = 1 << 28
#: The tables of an index of ours beside the six.
_OWN_TABLES = ("passages", "file_details")
#: What tells a table of ours from another one of this name.
_DETAILS = {"path", "front_matter", "properties", "lines", "whole"}
_PROGRESS_ROWS = 1000
#: Columns of numbers that programs also write with a fraction.
_FRACTIONS = ("mtime", "updated_at")

Progress = Callable[[int, int], None]


class TransferError(AgentMemoryError):
    """An index cannot be exported or imported."""


def is_database_name(path: Path) -> bool:
    """Whether an export to this name is a database, and not JSON lines."""
    return path.suffix.lower() in _DATABASE_SUFFIXES


def is_of_database(out: Path, database: Path) -> bool:
    """Whether a name is that of a database, or of what SQLite has beside it."""
    target, own = os.path.realpath(out), os.path.realpath(database)
    return target in {f"{own}{ending}" for ending in ("", *_BESIDE_DATABASE)}


def copy_database(database: Path, out: Path, force: bool) -> None:
    """Copy a database as of one moment, whatever others write meanwhile; whole, or not at all."""
    target = _target(out, force, is_database=True)
    if target.exists() and any(os.path.lexists(f"{target}{ending}") for ending in ("-journal", "-wal")):
        # Whoever has it open would go on with the log of another file.
        raise TransferError(f"{out}: is a database in use; choose another name")
    with open_readonly(database) as conn, _put_in_place(target, out, is_database=True) as part:
        try:
            with closing(sqlite3.connect(part)) as copy:
                conn.backup(copy)
                # One file, which can be read where it cannot be written.
                copy.execute("pragma journal_mode=delete")
        except sqlite3.Error as error:
            # Damage is the original's; of the rest no error says whose it is, but a copy needs room.
            with database_errors(database if "malformed" in str(error) else out):
                raise


def write_file(database: Path, out: Path, force: bool, progress: Progress = lambda done, total: None) -> None:
    """Export an index to a file of JSON lines; whole, or not at all."""
    target = _target(out, force, is_database=False)
    with _put_in_place(target, out) as part, open(part, "wb") as file:
        write_lines(database, file, progress)


def write_lines(database: Path, out: IO[bytes], progress: Progress = lambda done, total: None) -> None:
    """Export an index as JSON lines, all of one moment."""
    with open_readonly(database) as conn, snapshot(conn):
        index = index_of(conn)
        tables = _tables_of(conn, index.layout)
        first = {
            "format": FORMAT,
            "version": VERSION,
            "layout": "six tables" if index.layout == SIX_TABLES else "openclaw agent",
            "tables": {name: list(_columns(conn, table)) for name, table in tables.items()},
        }
        out.write(_line(first))
        counts = {}
        total = index.chunk_count
        for name, table in tables.items():
            counts[name] = 0
            # In the order in which they were written, which is that of the text.
            for row in conn.execute(f'select * from "{table}" order by rowid'):
                values = zip(row.keys(), row, strict=True)
                out.write(_line({name: {column: _as_json(value) for column, value in values}}))
                counts[name] += 1
                if name == "chunks" and counts[name] % _PROGRESS_ROWS == 0:
                    progress(counts[name], total)
        out.write(_line({"end": counts}))


def read_lines(
    lines: IO[bytes], name: str, database: Path, force: bool, progress: Progress = lambda done, total: None
) -> dict[str, int]:
    """Make an index of exported JSON lines, whole or not at all; how many rows each table has.

    A database that is there is only taken with `force`, and is changed in one transaction, so that
    whoever reads it goes on. Raises TransferError, with the number of the line, and DatabaseError.
    """
    target = _target(database, force, is_database=True)
    with embedding_turn(target) as is_turn:
        if not is_turn:
            raise DatabaseError(f"{database}: another run is writing this index; try again when it has ended")
        if target.exists():
            _refuse_another_file(database)
            with open_writable(target) as conn:
                check_database(conn, database)
                _check_own_tables(conn, database)
                use_wal(conn)
                return _Import(conn, lines, name, database, progress).run()
        with (
            _put_in_place(target, database, is_database=True) as part,
            open_writable(part) as conn,
        ):
            return _Import(conn, lines, name, database, progress).run()


def _check_own_tables(conn: Connection, database: Path) -> None:
    """Raise DatabaseError where a table beside the six is another program's."""
    for table, is_free in (
        ("passages", has_passages(conn)),
        ("file_details", set(_columns(conn, "file_details")) == _DETAILS),
    ):
        if _columns(conn, table) and not is_free:
            raise DatabaseError(f"{database}: has a table {table} of another program; choose another -d")


def _refuse_another_file(database: Path) -> None:
    try:
        with open(database, "rb") as file:
            begins = file.read(len(_DATABASE_BEGINS))
    except OSError as error:
        raise TransferError(f"{database}: {_reason(error)}") from error
    if begins not in (b"", _DATABASE_BEGINS):
        # SQLite takes a file of one byte for an empty one.
        raise TransferError(f"{database}: is there, and is no database; choose another -d")


def _target(out: Path, force: bool, is_database: bool) -> Path:
    """The file to write for a name, behind any symbolic links; refuses what is there and is no file."""
    target = Path(os.path.realpath(out))
    try:
        # A name that is too long for the log would make a database that cannot be written.
        for ending in ("", *_BESIDE_DATABASE) if is_database else ("",):
            with suppress(FileNotFoundError):
                os.lstat(f"{target}{ending}")
        try:
            mode = os.stat(out).st_mode
        except FileNotFoundError:
            mode = None
    except OSError as error:
        raise TransferError(f"{out}: {_reason(error)}") from error
    if mode is None:
        if not target.parent.is_dir():
            raise TransferError(f"{out}: the folder {target.parent} does not exist")
    elif not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "no file but a device or a pipe"
        raise TransferError(f"{out}: is {what}; choose another name, or - for the standard streams")
    elif not force:
        raise TransferError(f"{out}: is there already; --force replaces it")
    return target


@contextmanager
def _put_in_place(target: Path, out: Path, is_database: bool = False) -> Iterator[Path]:
    """A name for a new file, which takes the place of `target` when it is whole."""
    is_new = not target.exists()
    part = None
    try:
        # In a folder of its own, so that it, and what SQLite has beside it, is nobody else's.
        with tempfile.TemporaryDirectory(
            prefix=".agent-memory-", dir=target.parent, ignore_cleanup_errors=True
        ) as folder:
            part = Path(folder, "part")
            yield part
            if is_new and os.path.lexists(target):
                raise TransferError(f"{out}: has been made by another program meanwhile")
            if not is_new:
                shutil.copymode(target, part)
            if is_database and is_new:
                # Left over by a database that is gone: SQLite would play it into this one.
                for ending in _BESIDE_DATABASE:
                    with suppress(FileNotFoundError):
                        os.unlink(f"{target}{ending}")
            os.replace(part, target)
    except OSError as error:
        raise TransferError(f"{out}: {_reason(error)}") from error
    except DatabaseError as error:
        raise DatabaseError(str(error).replace(str(part), str(out))) from error


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


class _Import:
    """One reading of exported lines into a database."""

    def __init__(
        self, conn: Connection, lines: IO[bytes], name: str, database: Path, progress: Progress
    ) -> None:
        self._conn = conn
        self._lines = lines
        self._name = name
        self._database = database
        self._progress = progress
        self._number = 0
        #: Of each table its columns, with their declared types.
        self._columns: dict[str, dict[str, str]] = {}
        self._counts: dict[str, int] = {}

    def run(self) -> dict[str, int]:
        with transaction(self._conn):
            self._begin(self._next())
            while "end" not in (row := self._next()):
                self._insert(row)
            if row["end"] != self._counts:
                raise self._error("there are not as many rows as it says: some are missing")
            if self._lines.readline(1):
                self._number += 1
                raise self._error("stands behind the end")
            self._fill()
        return self._counts

    def _next(self) -> dict[str, Any]:
        try:
            line = self._lines.readline(_MAX_LINE_BYTES)
        except OSError as error:
            raise TransferError(f"{self._name}: {_reason(error)}; nothing was imported") from error
        self._number += 1
        if not line:
            raise self._error("the file ends before it says that it does")
        if len(line) == _MAX_LINE_BYTES:
            raise self._error("is longer than any row of an index")
        if self._number == 1 and line.startswith(_DATABASE_BEGINS):
            raise TransferError(
                f"{self._name}: is a database already, which needs no import: use it as it is, or copy it"
            )
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise self._error("is no JSON") from None
        if not isinstance(value, dict) or not value:
            raise self._error("is no JSON object")
        return value

    def _error(self, reason: str) -> TransferError:
        return TransferError(f"{self._name}, line {self._number}: {reason}; nothing was imported")

    def _begin(self, first: dict[str, Any]) -> None:
        if first.get("format") != FORMAT:
            raise self._error("is no export of an index")
        if first.get("version") != VERSION:
            raise self._error("is of another version of the format, which a newer release may read")
        if first.get("layout") != "six tables":
            raise self._error("is of OpenClaw's later layout, which can be exported and not imported")
        tables = first.get("tables")
        if not isinstance(tables, dict):
            raise self._error("names no tables")
        for table in (*vars(SIX_TABLES).values(), *_OWN_TABLES):
            self._conn.execute(f"drop table if exists {table}")
        create_tables(self._conn)
        create_passages(self._conn)
        for table in ("meta", "files", "chunks", "embedding_cache", *_OWN_TABLES):
            if columns := _columns(self._conn, table):
                self._columns[table] = columns
        self._counts = dict.fromkeys(tables, 0)
        for table in tables:
            if table not in self._columns:
                raise self._error(f"has a table {str(table)[:40]!r}, which no index has")

    def _insert(self, line: dict[str, Any]) -> None:
        table, row = next(iter(line.items()))
        if table not in self._counts or len(line) > 1 or not isinstance(row, dict):
            raise self._error("is no row of a table that the first line names")
        columns = [column for column in row if column in self._columns[table]]
        if not columns or len(columns) != len(row):
            raise self._error(f"has a column that {table} has not")
        try:
            values = [_from_json(row[column]) for column in columns]
            for column, value in zip(columns, values, strict=True):
                _check_type(value, column, self._columns[table][column])
            self._conn.execute(
                f"insert into {table} ({', '.join(columns)}) values ({', '.join('?' * len(columns))})",
                values,
            )
        except (sqlite3.IntegrityError, ValueError, TypeError, OverflowError, binascii.Error) as error:
            is_told = isinstance(error, (sqlite3.Error, _WrongType))
            reason = str(error) if is_told else "has a value that no column can have"
            raise self._error(reason) from error
        self._counts[table] += 1
        if table == "chunks" and self._counts[table] % _PROGRESS_ROWS == 0:
            self._progress(self._counts[table], self._counts[table])

    def _fill(self) -> None:
        """The tables that are made of the others."""
        meta = read_meta(self._conn)
        if "passages" not in self._counts:
            self._conn.execute("drop table passages")
        pending = self._conn.execute("select value from meta where key = ?", (PENDING_KEY,)).fetchone()
        if is_ours(self._conn, meta) and meta.get("generator"):
            writer_of(self._conn, self._database, meta).fill_tables()
        else:
            self._fill_as_the_peer(meta)
        if pending is None:
            self._conn.execute("delete from meta where key = ?", (PENDING_KEY,))

    def _fill_as_the_peer(self, meta: dict[str, Any]) -> None:
        self._conn.execute("drop table chunks_fts")
        if "file_details" not in self._counts:
            self._conn.execute("drop table file_details")
        is_trigram = meta.get("ftsTokenizer") == "trigram"
        self._conn.execute(
            "create virtual table chunks_fts using fts5(text, id unindexed, path unindexed, source unindexed,"
            " model unindexed, start_line unindexed, end_line unindexed"
            + (", tokenize='trigram case_sensitive 0')" if is_trigram else ")")
        )
        self._conn.execute(
            "insert into chunks_fts (rowid, text, id, path, source, model, start_line, end_line)"
            " select rowid, text, id, path, source, model, start_line, end_line from chunks order by rowid"
        )
        dims = width_in(meta)
        if dims is None or not has_sqlite_vec(self._conn):
            return
        create_vec_table(self._conn, dims)
        for identifier, embedding in self._conn.execute("select id, embedding from chunks order by rowid"):
            vector = vector_of(embedding, dims)
            if vector is not None:
                self._conn.execute(
                    "insert into chunks_vec (id, embedding) values (?, ?)", (identifier, vector.tobytes())
                )


def _tables_of(conn: Connection, layout: Layout) -> dict[str, str]:
    """The tables of an index that are not made of others, by their names among the six."""
    names = {name: getattr(layout, name) for name in ("meta", "files", "chunks", "embedding_cache")}
    if layout == SIX_TABLES and has_passages(conn):
        names["passages"] = "passages"
    if layout == SIX_TABLES and set(_columns(conn, "file_details")) == _DETAILS:
        names["file_details"] = "file_details"
    return {name: table for name, table in names.items() if _columns(conn, table)}


def _columns(conn: Connection, table: str) -> dict[str, str]:
    return {row[1]: row[2] for row in conn.execute(f'pragma main.table_info("{table}")')}


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def _as_json(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


class _WrongType(ValueError):
    pass


def _check_type(value: Any, column: str, declared: str) -> None:
    """Raise _WrongType of a value that SQLite would keep, and nobody who reads the column expects."""
    if value is None:  # not null is SQLite's to say
        return
    kinds = {"TEXT": str, "BLOB": bytes, "INTEGER": int}
    kind = kinds[declared.upper()]
    if kind is int and isinstance(value, float) and column in _FRACTIONS and math.isfinite(value):
        return
    if not isinstance(value, kind):
        what = {str: "text", bytes: "base64", int: "whole number"}[kind]
        raise _WrongType(f"has a {column} that is no {what}")


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() != {"base64"}:
            raise ValueError
        return base64.b64decode(value["base64"], validate=True)
    if isinstance(value, (list, bool)):
        raise ValueError
    return value
