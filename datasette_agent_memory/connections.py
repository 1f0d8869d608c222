"""The sqlite module in use, sqlite-vec, and opening a database file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

# pysqlite3 where it is installed, as Datasette and sqlite-utils do: connections and
# exceptions of the two modules don't mix.
from datasette.utils.sqlite import sqlite3 as sqlite3

from .errors import AgentMemoryError

if TYPE_CHECKING:
    from .embeddings.chain import Providers

Connection = Any

BUSY_TIMEOUT_S = 10.0
INSTALL_SQLITE_VEC = (
    "pip install pysqlite3 sqlite-vec, or use a Python whose sqlite3 module can load extensions"
)


#: What SQLite's words leave unsaid.
_HINTS = {
    "unable to open": ": it, or its folder, cannot be written, or is not there",
    "readonly": ": it, or its folder, cannot be written",
    "disk is full": "; what was indexed is kept",
    "disk I/O error": ": the disk is full or fails; what was indexed is kept",
    "Could not insert a new vector chunk": ": the disk is full or fails; what was indexed is kept",
    "malformed": "; datasette agent-memory doctor says more",
}


class DatabaseError(AgentMemoryError):
    """A database file cannot be used."""


def load_sqlite_vec(conn: Connection) -> bool:
    """Make sqlite-vec's functions and its vec0 table available; False where that can't be."""
    if has_sqlite_vec(conn):
        return True
    try:
        import sqlite_vec

        conn.enable_load_extension(True)
        try:
            sqlite_vec.load(conn)
        finally:
            conn.enable_load_extension(False)
    except (ImportError, AttributeError, sqlite3.Error):
        return False
    return has_sqlite_vec(conn)


def has_sqlite_vec(conn: Connection) -> bool:
    try:
        conn.execute("select vec_version()")
    except sqlite3.Error:
        return False
    return True


def prepare(conn: Connection, providers: Providers | None = None) -> None:
    """Give a connection sqlite-vec, where it can be had, and this project's SQL functions."""
    from .sql_functions import register

    load_sqlite_vec(conn)
    register(conn, providers)


@contextmanager
def open_readonly(path: str | Path) -> Iterator[Connection]:
    """A prepared connection that cannot write, to a database that is there."""
    path = Path(path)
    if not os.path.isfile(path):
        what = "is a folder, not a database file" if os.path.isdir(path) else "no such database file"
        raise DatabaseError(f"{path}: {what}")
    # In WAL mode a connection that could write clears away -wal and -shm behind it, and one that
    # could not leaves them.
    could_write = os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK)
    conn = _connect(path, "mode=rw" if could_write else "mode=ro")
    try:
        conn.execute("select 1 from sqlite_master").fetchone()
    except sqlite3.Error as error:
        if "unable to open" in str(error) or "readonly" in str(error):
            # A WAL database in a folder that cannot be written opens only as immutable.
            conn.close()
            conn = _connect(path, "mode=ro&immutable=1")
        elif "disk" in str(error):
            # On a full disk there is no room for -shm, without which one connection can do alone.
            conn.close()
            conn = _connect(path, "mode=rw" if could_write else "mode=ro")
            conn.execute("pragma locking_mode = exclusive")
    with database_errors(path), closing(conn):
        conn.execute("pragma query_only = 1")
        prepare(conn)
        conn.execute("select 1 from sqlite_master").fetchone()
        yield conn


@contextmanager
def open_writable(path: str | Path) -> Iterator[Connection]:
    """A prepared connection in autocommit mode to a database, made if it is not there."""
    path = Path(path)
    if os.path.isdir(path):
        raise DatabaseError(f"{path}: is a folder, not a database file")
    if not os.path.isdir(path.parent):
        raise DatabaseError(f"{path}: the folder {path.parent} does not exist")
    if path.suffix.lower() in (".md", ".jsonl"):
        raise DatabaseError(f"{path}: is a name for notes, and none for a database")
    with database_errors(path), closing(_connect(path, "mode=rwc")) as conn:
        conn.isolation_level = None
        prepare(conn)
        yield conn
        _fold_in_wal(conn)


def use_wal(conn: Connection) -> None:
    """Let readers go on while this connection writes; the busy timeout is set already."""
    from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

    # SQLite does not wait where two connections change the mode of a new file at once.
    is_locked = retry_if_exception(lambda error: isinstance(error, sqlite3.Error) and "locked" in str(error))
    turns = Retrying(
        retry=is_locked, stop=stop_after_delay(BUSY_TIMEOUT_S), wait=wait_fixed(0.02), reraise=True
    )
    turns(conn.execute, "pragma journal_mode=wal")
    conn.execute("pragma synchronous=normal")


def _fold_in_wal(conn: Connection) -> None:
    """Have all that was written in the file itself, as far as readers let it, so that a copy of it, or
    `datasette -i`, lacks nothing."""
    with suppress(sqlite3.Error):
        conn.execute("pragma busy_timeout = 0")
        conn.execute("pragma wal_checkpoint(truncate)").fetchall()


@contextmanager
def snapshot(conn: Connection) -> Iterator[None]:
    """What is read inside is of one moment, whatever is written meanwhile."""
    if conn.in_transaction:
        yield
        return
    conn.execute("begin")
    try:
        yield
    finally:
        conn.rollback()


@contextmanager
def transaction(conn: Connection, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """All or nothing, for a connection in autocommit mode; part of one that is open already.

    `on_wait` is called each time that another process has been writing for the busy timeout, and
    raises when that is enough; without it, that is an error.
    """
    if conn.in_transaction:
        yield
        return
    while True:
        try:
            conn.execute("begin immediate")
            break
        except sqlite3.OperationalError as error:
            if on_wait is None or "locked" not in str(error):
                raise
            on_wait()
    try:
        yield
    except BaseException:
        # Where the disk is full SQLite has rolled back itself.
        if conn.in_transaction:
            conn.execute("rollback")
        raise
    conn.execute("commit")


def _connect(path: Path, query: str) -> Connection:
    uri = f"{path.absolute().as_uri()}?{query}"
    try:
        conn = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S)
    except sqlite3.Error as error:
        raise DatabaseError(f"{path}: {error}") from error
    conn.row_factory = sqlite3.Row
    conn.text_factory = lambda value: str(value, "utf-8", "replace")
    return conn


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """SQLite's errors as DatabaseError, in words that say what to look at."""
    try:
        yield
    except sqlite3.Error as error:
        message = str(error)
        hint = next((hint for words, hint in _HINTS.items() if words in message), "")
        raise DatabaseError(f"{path}: {message}{hint}") from error


def refuse_unreadable_vectors(conn: Connection, database: str) -> None:
    """Say in one line what Datasette would fail of: a vec0 table without sqlite-vec."""
    if has_sqlite_vec(conn):
        return
    # A virtual table's module stands in its SQL, which may be looked at without it.
    try:
        has_vectors = conn.execute(
            "select 1 from sqlite_master where type = 'table' and sql like 'create virtual table%using vec0%'"
        ).fetchone()
    except sqlite3.Error:  # one that is locked, say: whoever asks it next will be told
        return
    if has_vectors:
        raise click.ClickException(
            f"Database {database} has a sqlite-vec table, and sqlite-vec cannot be loaded: "
            + INSTALL_SQLITE_VEC
        )
