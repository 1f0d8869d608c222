"""What has become of an index's files on disk since they were indexed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .connections import Connection, sqlite3
from .integrity import Problem, is_ours
from .schema import MemoryIndex, as_text
from .scopes import Scope
from .sources import MEMORY, NotASource, SourceError, SourceFile, UnreadableFile, read_source

#: As long as this may a look at the disk take.
LIMIT_S = 2.0
_SHOWN = 5


@dataclass
class DiskState:
    """The files, by their paths in the database, that an index run would change."""

    changed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    not_indexed: list[str] = field(default_factory=list)
    #: Whether there was time for all of them; if not, each is at least as many.
    is_complete: bool = True

    def counts(self) -> dict[str, Any]:
        return {
            "changed": len(self.changed),
            "missing": len(self.missing),
            "not_indexed": len(self.not_indexed),
            "complete": self.is_complete,
        }

    def problems(self) -> Iterator[Problem]:
        for code, paths in (
            ("files_changed", self.changed),
            ("files_missing", self.missing),
            ("files_not_indexed", self.not_indexed),
        ):
            if paths:
                problem = Problem.of(code, len(paths), tuple(paths[:_SHOWN]))
                if not self.is_complete:
                    problem = replace(problem, message=problem.message.replace(": ", ": at least "))
                yield problem


def look_at_disk(
    conn: Connection, index: MemoryIndex, limit_s: float = LIMIT_S, with_extra: bool = False
) -> DiskState | None:
    """What an index run would find, None where the folder that was indexed is not there.

    A file whose size and time are as they were counts as the same. Outside of the folder only
    the extra paths are looked at, and these only if asked: what a database says of them is its
    own business. No symbolic link is followed out of it.
    """
    deadline = time.monotonic() + limit_s
    root = root_of(index.meta)
    if root is None or not is_ours(conn, index.meta):
        return None
    try:
        known = {
            as_text(path): (hash, mtime, size)
            for path, source, hash, mtime, size in conn.execute(
                f"select path, source, hash, mtime, size from {index.layout.files}"
            )
            if with_extra or (source == MEMORY and not as_text(path).startswith("../"))
        }
        scope = Scope.of_run(
            root,
            (),
            (),
            index.meta,
            follow_links=None if with_extra else False,
            gitignore=None,
            is_afresh=False,
            with_sessions=with_extra,
        )
        scope = replace(
            scope,
            extra=scope.extra if with_extra else (),
            scan=replace(scope.scan, deadline=deadline),
        )
        found = scope.find(known)
    except (SourceError, sqlite3.Error, OSError, ValueError, RuntimeError):
        return None
    state = DiskState(is_complete=not found.is_cut)
    there = set()
    for file in found.files:
        there.add(file.path)
        if time.monotonic() > deadline:
            state.is_complete = False
            break
        before = known.get(file.path)
        if before is None or not _looks_the_same(file, *before[1:]):
            _compare(state, file, None if before is None else before[0])
    if state.is_complete:
        state.missing += sorted(path for path in known if path not in there and not found.is_unseen(path))
    return state


def root_of(meta: Any) -> Path | None:
    """The folder that was indexed, where it is there."""
    root = meta.get("root")
    if not isinstance(root, str) or not os.path.isabs(root):
        return None
    try:
        return Path(root) if Path(root).is_dir() else None
    except (OSError, ValueError):
        return None


def _looks_the_same(file: SourceFile, mtime: Any, size: Any) -> bool:
    try:
        status = file.file.lstat()
    except OSError:
        return False
    # No int() of what a database says: a hostile one says infinity.
    is_number = isinstance(mtime, (int, float))
    return is_number and status.st_size == size and 0 <= mtime - status.st_mtime_ns // 1_000_000 < 1


def _compare(state: DiskState, file: SourceFile, hash: str | None) -> None:
    try:
        content = read_source(file)
    except NotASource:
        if hash is not None:
            state.missing.append(file.path)
        return
    except (UnreadableFile, OSError, ValueError):
        return
    if hash is None:
        state.not_indexed.append(file.path)
    elif content.hash != hash:
        state.changed.append(file.path)
