"""Where agents keep their memory and their sessions, by their own conventions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .scan import ScanOptions, find_files
from .sessions import find_transcripts
from .sources import SourceError, reason_of

#: OpenClaw's agent where its configuration names none.
_MAIN = "main"


@dataclass(frozen=True)
class Home:
    """What there is of one agent on this machine."""

    #: Its own name, which its database has too.
    name: str
    root: Path
    #: The files and folders of the root that are its memory; may be globs.
    memory: tuple[str, ...]
    #: The folders with its transcripts.
    sessions: tuple[Path, ...]

    def has_memory(self) -> bool:
        return os.path.isdir(self.root) and bool(
            find_files(self.root, options=ScanOptions(only=self.memory)).files
        )

    def has_sessions(self) -> bool:
        return any(find_transcripts(folder).files for folder in self.sessions)


def find_homes(agent: str, with_sessions: bool = True) -> list[Home]:
    """What there is of an agent, which for OpenClaw may be several; raises SourceError where
    there is nothing to index."""
    homes = list(_FINDERS[agent](os.environ))
    if not with_sessions:
        homes = [replace(home, sessions=()) for home in homes]
    found = [home for home in homes if home.has_memory() or home.has_sessions()]
    if not found:
        places = dict.fromkeys(str(place) for home in homes for place in (home.root, *home.sessions))
        what = "no memory and no sessions" if with_sessions else "no memory"
        raise SourceError(f"{agent}: {what} in {', '.join(places)}")
    return found


def _claude_code(environment: Mapping[str, str]) -> Iterator[Home]:
    root = _folder(environment, "CLAUDE_CONFIG_DIR", ".claude")
    memory = ("CLAUDE.md", "rules", "projects/*/memory", "agent-memory")
    yield Home("claude-code", root, memory, _there(root / "projects"))


def _codex(environment: Mapping[str, str]) -> Iterator[Home]:
    root = _folder(environment, "CODEX_HOME", ".codex")
    memory = ("AGENTS.md", "AGENTS.override.md", "memories")
    yield Home("codex", root, memory, _there(root / "sessions", root / "archived_sessions"))


def _openclaw(environment: Mapping[str, str]) -> Iterator[Home]:
    home = _absolute(environment.get("OPENCLAW_HOME") or Path.home())
    state = _absolute(environment.get("OPENCLAW_STATE_DIR") or home / ".openclaw")
    config = _openclaw_config(Path(environment.get("OPENCLAW_CONFIG_PATH") or state / "openclaw.json"))
    agents = _dict(config.get("agents"))
    listed = agents.get("list")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    # Its later versions have them by their ids.
    entries += [{"id": id, **_dict(entry)} for id, entry in _dict(agents.get("entries")).items()]
    entries = entries or [{"id": _MAIN}]
    default = next((entry for entry in entries if entry.get("default") is True), entries[0])

    def path_of(value: object) -> Path | None:
        if not isinstance(value, str) or not value.strip():
            return None
        text = value.strip()
        # Its ~ is its own home.
        return home / text[1:].lstrip("/\\") if re.match(r"~(?=[/\\]|$)", text) else Path(text).absolute()

    usual = path_of(_dict(agents.get("defaults")).get("workspace"))
    seen: set[str] = set()
    for entry in entries:
        id = _openclaw_id(entry.get("id"))
        workspace = path_of(entry.get("workspace"))
        if workspace is None and entry is default:
            workspace = usual or home / ".openclaw" / "workspace"
        elif workspace is None:
            workspace = usual / id if usual and os.path.isdir(usual / id) else state / f"workspace-{id}"
        if id in seen:
            continue
        seen.add(id)
        yield Home(
            "openclaw" if len(entries) == 1 else f"openclaw-{id}",
            workspace,
            ("MEMORY.md", "memory.md", "memory"),
            _there(state / "agents" / id / "sessions"),
        )


#: What finds the homes of each agent, by its name.
_FINDERS: dict[str, Callable[[Mapping[str, str]], Iterator[Home]]] = {
    "openclaw": _openclaw,
    "claude-code": _claude_code,
    "codex": _codex,
}


def _folder(environment: Mapping[str, str], variable: str, usual: str) -> Path:
    return _absolute(environment.get(variable) or Path.home() / usual)


def _absolute(path: str | Path) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:  # the home of nobody
        raise SourceError(f"{path}: {reason_of(error)}") from error


def _there(*folders: Path) -> tuple[Path, ...]:
    return tuple(folder for folder in folders if os.path.isdir(folder))


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _openclaw_id(value: object) -> str:
    """The id of an agent as OpenClaw writes it in the names of folders."""
    id = re.sub("[^a-z0-9_-]+", "-", str(value).strip().lower()) if isinstance(value, str) else ""
    return id.strip("-")[:64] or _MAIN


def _openclaw_config(file: Path) -> dict[str, Any]:
    """OpenClaw's configuration, which is JSON with comments; empty where there is none. Raises
    SourceError."""
    import json5

    try:
        return _dict(json5.loads(file.expanduser().read_text("utf-8-sig")))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SourceError(f"{file}: {reason_of(error)}") from error
    # What it says of the place may quote the file, in which there are keys.
    except (ValueError, RecursionError):
        raise SourceError(f"{file}: is not JSON") from None
