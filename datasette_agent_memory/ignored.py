"""What the .gitignore files of a memory leave out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .sources import UnreadableFile, read_content

_MAX_BYTES = 1 << 20
_MAX_WILDCARDS = 8


@dataclass(frozen=True)
class FolderRules:
    """The rules that hold in one folder: those of its own file, and of the folders above it."""

    folder: Path
    #: Each with the folder that its paths start from, the nearest first.
    rules: tuple[tuple[Path, Any], ...]

    def ignores(self, name: str, is_folder: bool) -> bool:
        """Whether a file or folder of this folder is left out."""
        path = self.folder / name
        for folder, spec in self.rules:
            relative = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
            verdict: bool | None = spec.check_file(relative).include
            if verdict is not None:
                return verdict
        return False


class IgnoreRules:
    """The .gitignore files of the folders of one root."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read = cache(_read)

    def of_folder(self, folder: Path) -> FolderRules:
        return FolderRules(
            folder, tuple((above, spec) for above in self._above(folder) if (spec := self._read(above)))
        )

    def ignores(self, folder: Path, parts: Sequence[str], is_folder: bool) -> bool:
        """Whether a path below a folder is left out, itself or with one of the folders above it."""
        for number, name in enumerate(parts, 1):
            if self.of_folder(folder).ignores(name, is_folder or number < len(parts)):
                return True
            folder = folder / name
        return False

    def _above(self, folder: Path) -> list[Path]:
        """A folder and those above it: up to that of its repository, else to the root."""
        folders: list[Path] = []
        for above in (folder, *folder.parents):
            folders.append(above)
            if (above / ".git").exists():
                return folders
        return [above for above in folders if above.is_relative_to(self._root)] or [folder]


def _read(folder: Path) -> Any:
    """The rules of a folder's own file, None where it has none."""
    from pathspec import GitIgnoreSpec

    try:
        content, _ = read_content(folder / ".gitignore", _MAX_BYTES)
    except (OSError, ValueError, UnreadableFile):
        return None
    patterns: list[Any] = []
    for line in content.decode("utf-8-sig", "replace").splitlines():
        # A line that git would not take costs the others nothing, nor does one that would take for
        # ever to try.
        if line.count("*") <= _MAX_WILDCARDS:
            with suppress(ValueError):
                patterns += GitIgnoreSpec.from_lines([line]).patterns
    return GitIgnoreSpec(patterns)
