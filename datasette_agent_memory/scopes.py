"""What a run speaks for: its root, its extra paths, and the PATHs that narrow it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from .sources import SourceError, SourceFile, extra_prefixes, is_within, path_in_database
from .writer import extra_paths_of


def check_root(database: Path, root: Path, meta: Mapping[str, Any], force: bool) -> None:
    """Raise SourceError where a database is the index of another folder that is there."""
    old = meta.get("root")
    if isinstance(old, str) and old != str(root) and Path(old).is_dir() and not force:
        raise SourceError(
            f"{database}: is the index of {old}; choose another -d for {root}, or replace it with --force"
        )


def extra_paths(named: Sequence[Path], meta: Mapping[str, Any], force: bool) -> list[Path]:
    """Those of earlier runs, unless --force starts afresh, and those named now; raises SourceError."""
    old = [] if force else extra_paths_of(dict(meta))
    resolved = [path.expanduser().resolve() for path in named]
    for path in resolved:
        if not path.exists():
            raise SourceError(f"{path}: no such file or folder")
        if not path.is_dir() and path.suffix != ".md":
            raise SourceError(f"{path}: is not a folder or a .md file")
    return list(dict.fromkeys([*map(Path, old), *resolved]))


def narrow(
    files: Sequence[SourceFile],
    paths: Sequence[Path],
    root: Path,
    extra: Sequence[Path],
    known: Collection[str],
) -> tuple[list[SourceFile], list[str]]:
    """The files that the PATHs name, and the paths in the database that the run speaks for.

    `known` are the paths that are in the database. Raises SourceError.
    """
    if not paths:
        return list(files), [""]
    there = [*(file.path for file in files), *known]
    scopes = [_scope(path, root, extra, there) for path in paths]
    return [file for file in files if any(is_within(file.path, scope) for scope in scopes)], scopes


def _scope(path: Path, root: Path, extra: Sequence[Path], there: Sequence[str]) -> str:
    """The path in the database of one of the PATHs, from where we are or from the root."""
    folder_of_root = root.resolve()
    folders = [(folder_of_root, ""), *extra_prefixes(folder_of_root, extra)]
    places = (_without_links_above(path), _without_links_above(folder_of_root / path), path.resolve())
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
    return path.parent.resolve() / path.name if path.name else path
