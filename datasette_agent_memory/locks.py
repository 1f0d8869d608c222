"""One process at a time embeds for an index, since two would pay twice for the same texts, and one
keeps it fresh."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

#: For those who only look whether a turn is over.
_PATIENCE_S = 0.1


def embedding_turn(database: Path) -> AbstractContextManager[bool]:
    """Whether it is this run's turn to embed."""
    return _turn(_lock_file(database, "embedding"))


def watching_turn(database: Path) -> AbstractContextManager[bool]:
    """Whether it is this watcher's turn to keep an index fresh."""
    return _turn(_lock_file(database, "watching"))


def is_watched(database: Path) -> bool:
    """Whether another process, or thread, keeps an index fresh, as far as its lock tells."""
    if not os.path.exists(_lock_file(database, "watching")):
        return False
    with watching_turn(database) as is_ours:
        return not is_ours


def clear_locks(database: Path) -> None:
    """Remove the files that killed processes have left, of turns that are over."""
    for what in ("embedding", "watching"):
        file = _lock_file(database, what)
        if os.path.exists(file):
            with _turn(file):
                pass


def _lock_file(database: Path, what: str) -> Path:
    return Path(f"{os.path.realpath(database)}-{what}")


@contextmanager
def _turn(file: Path) -> Iterator[bool]:
    """Whether it is one's turn: not while another process, or thread, has it.

    The turn of a process that dies is over. Where no lock can be had, as on some network
    file systems, everybody has a turn.
    """
    from filelock import FileLock, Timeout

    if os.path.exists(file) and os.path.getsize(file):
        # A user's file, which a lock would empty.
        yield True
        return
    lock = FileLock(str(file), thread_local=False, is_singleton=False)
    try:
        lock.acquire(timeout=_PATIENCE_S, poll_interval=_PATIENCE_S / 5)
    except Timeout:
        yield False
        return
    except (OSError, RuntimeError):  # the second where the file system has no locks
        yield True
        return
    try:
        yield True
    finally:
        # While it is held, so that it is not another's by then.
        with suppress(OSError):
            file.unlink()
        lock.release()
