"""What a run speaks for: its root, its extra paths, and the PATHs that narrow it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .scan import (
    STAYS,
    Found,
    ScanOptions,
    extra_prefixes,
    find_files,
    is_within,
    path_in_database,
    refuse_empty_mounts,
    session_prefixes,
)
from .sources import MEMORY, SESSIONS, SourceError, SourceFile, reason_of

#: The folder of a workspace.
_NOTES = "memory"


@dataclass(frozen=True)
class Scope:
    """What an index is made of: remembered, so that the next run need not be told."""

    root: Path
    extra: Sequence[Path]
    #: Folders of transcripts.
    sessions: Sequence[Path]
    scan: ScanOptions
    #: The folders of the last run, with what told them from others.
    folders: Mapping[str, Any]

    @classmethod
    def of_run(
        cls,
        root: Path,
        extra: Sequence[Path],
        sessions: Sequence[Path],
        meta: Mapping[str, Any],
        follow_links: bool | None,
        gitignore: bool | None,
        is_afresh: bool,
        memory: Sequence[str] | None = None,
        with_sessions: bool = True,
    ) -> Scope:
        """What is named now, and what earlier runs were told, unless this one starts afresh; raises
        SourceError."""
        before = {} if is_afresh else meta
        is_same_root = before.get("root") == str(root)
        whole = before.get("wholeFolder") if is_same_root else None
        folders = before.get("folders") if is_same_root else None
        of_root = meta if meta.get("root") == str(root) else {}
        folders_of_sessions = [*map(Path, paths_of(before, SESSION_FOLDERS)), *_named_folders(sessions)]
        return cls(
            root,
            list(dict.fromkeys([*map(Path, paths_of(before, EXTRA)), *_named_paths(extra)])),
            list(dict.fromkeys(folders_of_sessions)) if with_sessions else [],
            ScanOptions(
                bool(before.get("followLinks")) if follow_links is None else follow_links,
                bool(before.get("gitignore")) if gitignore is None else gitignore,
                # Not afresh: an agent's folder has much that is no memory.
                tuple(paths_of(of_root, "memory") if memory is None else memory),
                whole if isinstance(whole, bool) else None,
            ),
            folders if isinstance(folders, dict) else {},
        )

    def find(self, known: Collection[str]) -> Found:
        """The files that there are; `known` are the paths of the index. Raises SourceError."""
        found = find_files(self.root, self.extra, self.scan, self.sessions)
        if self.scan.whole is False and not found.files and known and not found.has_workspace:
            raise SourceError(
                f"{self.root}: has neither MEMORY.md nor memory/ any more; its index is kept, until ROOT is "
                "given with --force"
            )
        refuse_empty_mounts(found, self.root, self.folders, known)
        for path, reason in found.broken.items():
            if any(is_within(one, path) for one in known):
                found.miss(path, f"{reason}; {STAYS}")
        if _NOTES in self.folders and _NOTES not in found.folders and not found.whole:
            # It may be a mount, too, or on its way.
            lost = sum(is_within(path, _NOTES) for path in known)
            if lost and not found.is_unseen(_NOTES):
                found.miss(_NOTES, f"no such folder any more; {STAYS}")
        return found

    def paths(self) -> dict[str, list[str]]:
        """The paths that `meta` remembers, by their names there."""
        return {EXTRA: list(map(str, self.extra)), SESSION_FOLDERS: list(map(str, self.sessions))}

    def as_meta(self, found: Found) -> dict[str, Any]:
        """What `meta` remembers of it, beside the paths."""
        folders = {path: list(identity) for path, identity in found.folders.items()}
        # One that is not mounted is still to be told from the empty folder in its place.
        folders |= {path: self.folders[path] for path in found.unseen if path in self.folders}
        return {
            "sources": [MEMORY, SESSIONS] if self.sessions else [MEMORY],
            "followLinks": self.scan.follow_links,
            "gitignore": self.scan.gitignore,
            "memory": list(self.scan.only),
            "wholeFolder": found.whole,
            "folders": folders,
        }


#: The names in `meta` of the paths beside the root.
EXTRA, SESSION_FOLDERS = "extraPaths", "sessionFolders"


def check_root(database: Path, root: Path, meta: Mapping[str, Any], force: bool) -> None:
    """Raise SourceError where a database is the index of another folder that is there."""
    old = meta.get("root")
    if isinstance(old, str) and old != str(root) and os.path.isdir(old) and not force:
        raise SourceError(
            f"{database}: is the index of {old}; choose another -d for {root}, or replace it with --force"
        )


def real_path(path: Path) -> Path:
    """A path that was named, without `~` and links; raises SourceError."""
    try:
        return path.expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise SourceError(f"{path}: {reason_of(error)}") from error


def check_there(path: Path, what: str = "file or folder") -> None:
    """Raise SourceError where there is nothing, or nobody may look."""
    try:
        os.stat(path)
    except FileNotFoundError as error:
        raise SourceError(f"{path}: no such {what}") from error
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: {reason_of(error)}") from error


def check_folder(path: Path) -> None:
    """Raise SourceError for what is no folder."""
    if not os.path.isdir(path):
        check_there(path, "folder")
        raise SourceError(f"{path}: is a file, not a folder")


def paths_of(meta: Mapping[str, Any], name: str) -> list[str]:
    """The paths that an index's `meta` remembers under a name."""
    paths = meta.get(name)
    return [path for path in paths if isinstance(path, str)] if isinstance(paths, list) else []


def _named_paths(named: Sequence[Path]) -> list[Path]:
    resolved = [real_path(path) for path in named]
    for path in resolved:
        if not os.path.isdir(path):
            check_there(path)
            if path.suffix != ".md":
                raise SourceError(f"{path}: is not a folder or a .md file")
    return resolved


def _named_folders(named: Sequence[Path]) -> list[Path]:
    resolved = [real_path(path) for path in named]
    for path in resolved:
        check_folder(path)
    return resolved


def narrow(
    files: Sequence[SourceFile],
    paths: Sequence[Path],
    root: Path,
    scope: Scope,
    known: Collection[str],
) -> tuple[list[SourceFile], list[str]]:
    """The files that the PATHs name, and the paths in the database that the run speaks for.

    `known` are the paths that are in the database. Raises SourceError.
    """
    if not paths:
        return list(files), [""]
    there = [*(file.path for file in files), *known]
    scopes = [_scope(path, root, scope, there) for path in paths]
    return [file for file in files if any(is_within(file.path, scope) for scope in scopes)], scopes


def _scope(path: Path, root: Path, whole: Scope, there: Sequence[str]) -> str:
    """The path in the database of one of the PATHs, from where we are or from the root."""
    folder_of_root = real_path(root)
    folders = [
        (folder_of_root, ""),
        *extra_prefixes(folder_of_root, whole.extra),
        *session_prefixes(whole.sessions),
    ]
    places = (
        _without_links_above(path),
        _without_links_above(folder_of_root / path),
        Path(os.path.realpath(path)),
    )
    inside = [
        f"{prefix}/{below}".strip("/") if prefix else below
        for place in places
        for folder, prefix in folders
        if (below := path_in_database(folder, place)) is not None
    ]
    if not inside:
        raise SourceError(f"{path}: is not inside {root}")
    for scope in inside:
        if any(is_within(known, scope) for known in there):
            return scope
    raise SourceError(
        f"{path}: has no memory file; memory is MEMORY.md and memory/**/*.md, and other paths need --extra"
    )


def _without_links_above(path: Path) -> Path:
    """The absolute path, whose folders are real; what it names may be a link, or gone."""
    path = Path(os.path.abspath(path))
    return Path(os.path.realpath(path.parent)) / path.name if path.name else path
