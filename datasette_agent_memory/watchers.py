"""The watchers of a Datasette server, a thread for each memory that it is to keep fresh.

Threads and not tasks: 0.65 starts up in another loop than it serves in.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from .config import PLUGIN_NAME
from .embeddings.server import load_secrets, providers_of
from .ingest import IndexSettings
from .layouts import SIX_TABLES
from .remembered import settings_of
from .schema import MemoryIndex
from .terminal import printable
from .watching import Watcher, WatchState

#: How long the end of a process waits for a run to stop.
_PATIENCE_S = 5.0

_log = logging.getLogger(__name__)

#: By Datasette's database: its watcher, or why it has none.
_watchers: WeakKeyDictionary[Any, Watcher | WatchState] = WeakKeyDictionary()
_threads: WeakSet[threading.Thread] = WeakSet()


def watch(datasette: Any, database: Any, index: MemoryIndex) -> None:
    """Keep a database's index fresh from now on, unless something speaks against it."""
    if database in _watchers:
        return
    obstacle = _obstacle(database, index)
    if obstacle is not None:
        _watchers[database] = WatchState.now("off", obstacle)
        _log.warning("%s is not watched: %s", printable(database.name), obstacle)
        return
    file = Path(database.path)

    def settings() -> IndexSettings:
        asyncio.run(load_secrets(datasette))
        return settings_of(file, providers_of(datasette))

    def tell(state: WatchState) -> None:
        # That one is waiting for one's turn, or all is well, is for the status alone.
        if state.state in ("failed", "looking"):
            _log.warning("%s: %s", printable(database.name), printable(str(state.detail)))

    watcher = Watcher(file, settings, on_state=tell)
    _watchers[database] = watcher
    thread = threading.Thread(target=watcher.run, name=f"watching {database.name}", daemon=True)
    _threads.add(thread)
    thread.start()


def watch_status(database: Any) -> dict[str, Any] | None:
    """What the watcher of a database does; None where there is to be none."""
    watcher = _watchers.get(database)
    return None if watcher is None else watcher.as_json()


@atexit.register
def stop_watchers() -> None:
    """End all watchers; a run that takes longer is cut short, which an index survives."""
    for watcher in _watchers.values():
        if isinstance(watcher, Watcher):
            watcher.stop.set()
    for thread in list(_threads):
        thread.join(_PATIENCE_S)


def _obstacle(database: Any, index: MemoryIndex) -> str | None:
    """Why an index cannot be kept fresh, None where it can."""
    if database.is_memory or not database.path:
        return "it is in memory, and in no file"
    if not database.is_mutable:
        return "it is served as immutable"
    if index.layout != SIX_TABLES or index.meta.get("generator") != PLUGIN_NAME:
        return "another program makes this index"
    if not isinstance(index.meta.get("root"), str):
        return "it does not say of which folder it is the index"
    path = Path(database.path)
    if not (os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK)):
        return "its file, or the folder that it is in, cannot be written"
    return None
