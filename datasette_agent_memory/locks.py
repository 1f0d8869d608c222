"""One run at a time embeds for an index: two would pay twice for the same texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def embedding_turn(database: Path) -> Iterator[bool]:
    """Whether it is this run's turn: not while another process, or thread, has it.

    The turn of a process that dies is over. Where no lock can be had, as on some network
    file systems, everybody has a turn.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(f"{database.resolve()}-embedding", thread_local=False, is_singleton=False)
    try:
        lock.acquire(timeout=0)
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
            Path(lock.lock_file).unlink()
        lock.release()
