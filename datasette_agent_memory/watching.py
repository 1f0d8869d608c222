"""Keeping an index fresh: a run at once, and then whenever the files of its memory change.

Folders are watched one by one, and not each with all that is below it: those that are not
indexed, such as node_modules, would use up what the system allows, and symbolic links would
lead anywhere.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from .errors import AgentMemoryError
from .ingest import IndexSettings, update_index
from .locks import is_watched, watching_turn
from .options import index_meta
from .report import IndexReport
from .scan import IGNORED_FOLDERS, find_files
from .scopes import Scope, real_path
from .sessions import is_transcript

#: Changes are one burst until nothing has changed for so long, or it has lasted so long.
QUIET_S = 1.5
LONGEST_BURST_S = 15.0
#: A run is made every so often in any case: the system does not tell of every change, as on network
#: file systems, and drops some where there are too many.
REGULAR_S = 300.0
#: And so often where the system does not tell of changes at all.
LOOK_S = 30.0
#: How often it is looked whether folders are there that are missing, and still there; whether it
#: is one's turn.
POLL_S = 2.0
#: The first wait after a run that failed; each further one is twice as long.
FIRST_RETRY_S = 5.0

#: The system's events are gathered so long before they are handed over, which is how often an idle
#: watcher wakes.
_STEP_MS = 200
#: So often folders are listed that go on coming while they are listed.
_LISTINGS = 5
_MAX_REASON_CHARS = 200

#: Details that are no trouble: of a watcher that waits for its turn, and of one elsewhere.
ANOTHER_WATCHES, BY_ANOTHER = "another process keeps this index fresh", "by another process"

State = Literal["starting", "watching", "looking", "indexing", "waiting", "failed", "off"]


@dataclass(frozen=True)
class WatchState:
    """What a watcher is doing, since when, and why if that is not plain."""

    state: State
    detail: str | None
    since: str

    @classmethod
    def now(cls, state: State, detail: str | None = None) -> WatchState:
        return cls(state, detail, _now())

    def as_json(self, last_run: dict[str, Any] | None = None) -> dict[str, Any]:
        return {**vars(self), "last_run": last_run}


def watch_of_others(database: Path) -> dict[str, Any] | None:
    """What is known of the watcher of another process; None where there is none."""
    if not is_watched(database):
        return None
    return {"state": "watching", "detail": BY_ANOTHER, "since": None, "last_run": None}


def scope_of(database: Path, settings: IndexSettings) -> Scope:
    """What an index is made of, as far as it remembers."""
    meta = index_meta(database)
    return Scope.of_run(
        real_path(settings.root),
        settings.extra,
        settings.sessions,
        meta,
        settings.follow_links,
        settings.gitignore,
        settings.is_afresh,
    )


def folders_to_watch(scope: Scope) -> tuple[set[str], set[str]]:
    """The folders that a scan looks into, and the symbolic links in them; raises SourceError where
    the root cannot be read."""
    found = find_files(scope.root, scope.extra, scope.scan, scope.sessions)
    # Of a file that was named, and of one that a link leads to, its own folder.
    files = [Path(os.path.realpath(file.file)).parent for file in found.files]
    folders = {str(scope.root), *found.listed, *map(str, files)}
    # The system's watcher takes no other names, and nor does the index.
    return {folder for folder in folders if os.path.isdir(folder) and _is_utf8(folder)}, set(found.links)


def kind_of_change(
    path: str, folders: Container[str], links: Container[str] = ()
) -> Literal["file", "folder", None]:
    """Whether a change of this path may change the index, as a file or as a folder."""
    folder, name = os.path.split(path)
    # A link that is gone does not say any more what it led to.
    if path in folders or path in links:
        return "folder"
    # The database and what SQLite and the locks put beside it lie in the same folder at times.
    if folder not in folders:
        return None
    if name.endswith(".md") or name == ".gitignore" or is_transcript(name):
        return "file"
    return "folder" if name not in IGNORED_FOLDERS and os.path.isdir(path) else None


def retry_wait_s(failures: int) -> float:
    """How long to wait after so many runs in a row that failed."""
    return min(REGULAR_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 16))


class Watcher:
    """Keeps one index fresh, in the thread that calls `run`."""

    def __init__(
        self,
        database: Path,
        settings: Callable[[], IndexSettings],
        on_run: Callable[[IndexReport], None] = lambda report: None,
        on_state: Callable[[WatchState], None] = lambda state: None,
        stop: threading.Event | None = None,
    ) -> None:
        """`settings` is asked before each run. `on_run` is told of each run, and `on_state` once of what
        is amiss, and when all is well again."""
        self.database = database
        self.stop = stop or threading.Event()
        self._settings = settings
        self._on_run = on_run
        self._on_state = on_state
        self._state = WatchState.now("starting")
        self._last_run: dict[str, Any] | None = None
        #: What was last said to be amiss, None for nothing.
        self._trouble: str | None = "not yet begun"
        #: How many runs in a row have failed.
        self._failures = 0
        #: The system's watcher, None where there is none yet, or none to be had, and then why.
        self._notify: Any = None
        self._why_looking: str | None = None
        self._next_try_at = 0.0
        #: What it watches, and which folders these were.
        self._folders: set[str] = set()
        self._links: set[str] = set()
        self._identities: dict[Path, object] = {}
        #: Whether there may be other folders by now.
        self._is_stale = True

    def as_json(self) -> dict[str, Any]:
        return self._state.as_json(self._last_run)

    def run(self) -> None:
        """Keep the index fresh until `stop` is set, while no other process does."""
        while not self.stop.is_set():
            with watching_turn(self.database) as is_ours:
                if is_ours:
                    self._keep_fresh()
            if not self.stop.is_set():
                self._wait_for(ANOTHER_WATCHES)
        self._set("off", "stopped")

    def _keep_fresh(self) -> None:
        try:
            while not self.stop.is_set():
                if self._update():
                    self._wait()
        finally:
            self._close()

    # A run

    def _update(self) -> bool:
        """Bring the index up to date; whether its root was there."""
        try:
            settings = self._settings()
            if not os.path.isdir(settings.root):
                self._is_stale = True
                self._wait_for(f"{settings.root}: no such folder; waiting for it")
                return False
            if self._is_stale:
                self._watch(scope_of(self.database, settings))
            self._set("indexing")
            report = update_index(self.database, settings, stop=self.stop)
        except AgentMemoryError as error:
            if not error.is_interruption:
                self._fail(str(error))
        except OSError as error:
            self._fail((error.strerror or type(error).__name__).lower())
        # Whatever it is, it ends neither the watching nor a server. Its text may be anything.
        except Exception as error:
            self._fail(f"unexpected {type(error).__name__}")
        else:
            self._failures = 0
            self._last_run = {
                "at": _now(),
                "took_s": report.took_s,
                "added": report.files_added,
                "updated": report.files_updated,
                "removed": report.files_removed,
                "skipped": len(report.skipped),
            }
            self._set_resting()
            self._on_run(report)
        return True

    def _fail(self, reason: str) -> None:
        self._failures += 1
        self._is_stale = True
        self._set("failed", " ".join(reason.split()))

    # Waiting

    def _wait(self) -> None:
        """Until a burst of changes is over, folders have come or gone, or a run is due anyway."""
        now = time.monotonic()
        due_at = now + (retry_wait_s(self._failures) if self._failures else REGULAR_S)
        first_at = last_at = None
        while not self.stop.is_set():
            if self._notify is None:
                due_at = min(due_at, now + LOOK_S)
            if self._is_moved() or time.monotonic() >= due_at:
                self._is_stale = True
                return
            over_at = due_at
            if first_at is not None and last_at is not None:
                over_at = min(last_at + QUIET_S, first_at + LONGEST_BURST_S)
                if time.monotonic() >= over_at:
                    return
            if self._has_changed(min(POLL_S, min(due_at, over_at) - time.monotonic())):
                last_at = time.monotonic()
                first_at = first_at or last_at

    def _wait_for(self, what: str) -> None:
        self._set("waiting", what)
        self.stop.wait(POLL_S)

    def _has_changed(self, timeout_s: float) -> bool:
        """Whether something changes, within this time, that may change the index."""
        if self._notify is None:
            self.stop.wait(max(0.0, timeout_s))
            return False
        try:
            # Bursts are told apart by the caller; this one hands over what there is.
            events = self._notify.watch(_STEP_MS, _STEP_MS, max(1, int(1000 * timeout_s)), self.stop)
        except (OSError, RuntimeError) as error:
            self._look_instead(str(error))
            return True
        if isinstance(events, str):  # a timeout, or the end
            return False
        kinds = {kind_of_change(path, self._folders, self._links) for _, path in events}
        self._is_stale |= "folder" in kinds
        return kinds != {None}

    def _is_moved(self) -> bool:
        """Whether a folder that was named has come, gone, or become another one, as by a mount, which
        the system's watcher does not tell."""
        return any(_identity(path) != before for path, before in self._identities.items())

    # The system's watcher

    def _watch(self, scope: Scope) -> None:
        """Have all folders watched, and any that is made meanwhile."""
        self._identities = {path: _identity(path) for path in (scope.root, *scope.extra, *scope.sessions)}
        if time.monotonic() < self._next_try_at:
            return
        try:
            from watchfiles._rust_notify import RustNotify

            for _ in range(_LISTINGS):
                self._folders, self._links = folders_to_watch(scope)
                self._close()
                self._notify = RustNotify(sorted(self._folders), False, False, 0, False, True)
                if folders_to_watch(scope)[0] == self._folders:
                    break
            self._is_stale = False
            self._why_looking = None
        except ImportError:
            self._look_instead("watchfiles cannot be imported: pip install watchfiles")
        except (OSError, RuntimeError, ValueError) as error:
            self._look_instead(str(error))

    def _look_instead(self, reason: str) -> None:
        self._close()
        self._is_stale = True
        self._next_try_at = time.monotonic() + LOOK_S
        short = reason if len(reason) <= _MAX_REASON_CHARS else reason[:_MAX_REASON_CHARS] + "…"
        self._why_looking = f"looking every {LOOK_S:.0f} s, since changes are not told: {short}"

    def _close(self) -> None:
        if self._notify is not None:
            self._notify.close()
            self._notify = None

    # What is told

    def _set_resting(self) -> None:
        if self._notify is None:
            self._set("looking", self._why_looking)
        else:
            self._set("watching")

    def _set(self, state: State, detail: str | None = None) -> None:
        if (state, detail) == (self._state.state, self._state.detail):
            return
        self._state = WatchState.now(state, detail)
        if state != "off" and (detail is not None or state == "watching") and detail != self._trouble:
            self._trouble = detail
            self._on_state(self._state)


def _identity(path: Path) -> object:
    """Which folder it is; of a file, which editors replace, only that it is there."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else "file"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
