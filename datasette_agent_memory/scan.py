"""Finding the files of a memory: which there are, and what could not be seen."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .ignored import IgnoreRules
from .sources import MEMORY, SESSIONS, SourceError, SourceFile, reason_of, sha256

#: These hold other people's files, or none.
IGNORED_FOLDERS = {
    ".git",
    ".hg",
    ".svn",
    ".jj",
    "node_modules",
    ".pnpm-store",
    ".venv",
    "venv",
    ".tox",
    ".nox",
    "__pycache__",
}
#: A virtual environment of any name has this file.
_VIRTUAL_ENVIRONMENT = "pyvenv.cfg"

STAYS = "what was indexed of it stays, until ROOT is given with --force"

#: Which directory it was, to tell a folder from the empty mount point in its place.
Identity = tuple[int, int]


@dataclass(frozen=True)
class Skipped:
    path: str
    reason: str


@dataclass(frozen=True)
class ScanOptions:
    """What counts as memory, beyond the names."""

    #: Whether symbolic links that lead out of the folder are followed.
    follow_links: bool = False
    #: Whether what .gitignore names is left out.
    gitignore: bool = False
    #: The files and folders of the root that are taken, or globs of them; empty to go by what is in it.
    only: tuple[str, ...] = ()
    #: Whether the root is a folder of notes and taken whole, None to go by what is in it.
    whole: bool | None = None
    #: When time.monotonic() passes this, the scan stops, and says so.
    deadline: float | None = None


@dataclass
class Found:
    """What a scan found, and what of the memory it could not see."""

    files: list[SourceFile] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    #: Paths in the database, of files or folders, of which the scan knows nothing.
    unseen: list[str] = field(default_factory=list)
    #: Whether the root has MEMORY.md or memory/, and whether it was taken whole.
    has_workspace: bool = False
    whole: bool = False
    #: The real folders that were looked into, at any depth.
    listed: list[str] = field(default_factory=list)
    #: The folders that were looked through, by their paths in the database.
    folders: dict[str, Identity] = field(default_factory=dict)
    #: Those of them that have nothing in them.
    empty: list[str] = field(default_factory=list)
    #: Symbolic links, by their real folders, and those that lead nowhere, by their paths in the
    #: database with the reason.
    links: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    #: Whether there was no time for all of it.
    is_cut: bool = False

    def leave_out(self, path: str, reason: str) -> None:
        """Name what was seen and is no file to index."""
        self.skipped.append(Skipped(path.encode("utf-8", "backslashreplace").decode(), reason))

    def miss(self, path: str, reason: str) -> None:
        """Name what could not be looked at."""
        self.leave_out(path, reason)
        self.unseen.append(path)

    def is_unseen(self, path: str) -> bool:
        return any(is_within(path, unseen) for unseen in self.unseen)


def find_files(
    root: Path,
    extra: Iterable[Path] = (),
    options: ScanOptions | None = None,
    sessions: Iterable[Path] = (),
) -> Found:
    """The memory files of a workspace, those of extra paths, and transcripts, each file once.

    MEMORY.md, memory.md and memory/**/*.md; where there is neither MEMORY.md nor memory/,
    the root is a folder of notes and taken whole. Symbolic links are followed within the
    root. Raises SourceError where the root cannot be read.
    """
    return _Scan(root, options or ScanOptions()).run(extra, sessions)


def path_in_database(root: Path, path: Path) -> str | None:
    """The path of a file or folder inside the root, None for one outside."""
    if not path.is_relative_to(root):
        return None
    relative = path.relative_to(root).as_posix()
    return "" if relative == "." else relative


def is_within(path: str, folder: str) -> bool:
    """Whether a path in the database is this file, or in this folder; all are in ""."""
    return not folder or path == folder or path.startswith(folder + "/")


def extra_prefixes(root: Path, extra: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Each extra path with its path in the database: `../name/…` for one outside the root."""
    folders: dict[str, Path] = {}
    for path in extra:
        inside = path_in_database(root, path)
        if inside is not None:
            yield path, inside
            continue
        folder = path.parent if path.name.endswith(".md") and not path.is_dir() else path
        name = folder.name
        if folders.setdefault(name, folder) != folder:
            # Another folder of that name: tell them apart by where they are.
            name = f"{name}-{sha256(str(folder))[:8]}"
            folders[name] = folder
        yield path, f"../{name}" if folder == path else f"../{name}/{path.name}"


def session_prefixes(folders: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Each folder of transcripts with its path in the database: `sessions` for the first, as the
    peer has it."""
    for number, folder in enumerate(folders):
        yield folder, f"{SESSIONS}/{sha256(str(folder))[:8]}" if number else SESSIONS


def refuse_empty_mounts(found: Found, root: Path, before: Mapping[str, Any], known: Iterable[str]) -> None:
    """Take a folder that is empty, and is not the one that was indexed, for one that is not mounted.

    `before` are the folders of the last run, and `known` the paths of the index. Raises
    SourceError where it is the root.
    """
    for path in found.empty:
        if path not in before or list(found.folders[path]) == before[path]:
            continue
        lost = sum(is_within(one, path) for one in known)
        if not lost:
            continue
        reason = (
            f"is empty, and is not the folder that was indexed, perhaps since it is not mounted; its {lost} "
            "files stay in the index, until ROOT is given with --force"
        )
        if not path:
            raise SourceError(f"{root}: {reason}")
        found.miss(path, reason)


class _Scan:
    """One look at the folders."""

    def __init__(self, root: Path, options: ScanOptions) -> None:
        self._root = root
        self._options = options
        self._found = Found()
        self._rules = IgnoreRules(root) if options.gitignore else None
        #: The real files that were found, each with the path that it has in the database.
        self._seen: dict[str, str] = {}
        self._seen_folders: set[str] = set()
        #: Symbolic links wait until all real files are known: these have their own names.
        self._links: list[tuple[str, Path]] = []
        #: The folders in which a link may lead anywhere.
        self._inside = [str(root)]

    def run(self, extra: Iterable[Path], sessions: Iterable[Path]) -> Found:
        found, root = self._found, self._root
        try:
            names = set(os.listdir(root))
            status = os.stat(root)
            found.folders[""] = status.st_dev, status.st_ino
        except OSError as error:
            raise SourceError(f"{root}: {reason_of(error)}") from error
        if not names:
            found.empty.append("")
        has_memory = "memory" in names and os.path.isdir(root / "memory")
        found.has_workspace = "MEMORY.md" in names or has_memory
        found.whole = self._options.whole if self._options.whole is not None else not found.has_workspace
        if self._options.only:
            # What is taken of it is known, and need not be there yet.
            found.has_workspace, found.whole = True, False
            for place, file in self._matching(self._options.only):
                self._add(place, file, is_folder=os.path.isdir(file))
        elif found.whole:
            self._add_folder("", root)
        else:
            for name in ("MEMORY.md", "memory.md"):
                if name in names:
                    self._add(name, root / name)
            if has_memory:
                self._add("memory", root / "memory", is_folder=True)
        for path, prefix in extra_prefixes(root, extra):
            self._add_extra(prefix, path)
        # A link may lead to a folder with more of them.
        while self._links:
            links, self._links = self._links, []
            for place, link in links:
                self._follow(place, link)
        for path, prefix in session_prefixes(sessions):
            self._add_sessions(prefix, path)
        return found

    def _add_sessions(self, prefix: str, folder: Path) -> None:
        from .sessions import find_transcripts

        if not os.path.isdir(folder):
            self._found.miss(prefix, f"no such folder; {STAYS}")
            return
        transcripts = find_transcripts(folder)
        self._found.listed += transcripts.listed
        if identity := _identity(folder):
            self._note_folder(prefix, identity, is_empty=not (transcripts.skipped or _names(folder)))
        for one in transcripts.files:
            self._add_file(f"{prefix}/{one.path}", one.file, source=SESSIONS)
        for skipped in transcripts.skipped:
            place = f"{prefix}/{skipped.path}" if skipped.path else prefix
            note = self._found.miss if skipped.path in transcripts.unseen else self._found.leave_out
            note(place, skipped.reason)

    def _matching(self, globs: Iterable[str]) -> Iterator[tuple[str, Path]]:
        """What there is of the root by these globs; a symbolic link counts in its last place alone."""
        for glob in globs:
            *above, last = glob.split("/")
            folders = [("", self._root)]
            for name in above:
                folders = [
                    (path, Path(entry.path))
                    for path, entry in self._named(folders, name)
                    if entry.is_dir(follow_symlinks=False)
                ]
            yield from ((path, Path(entry.path)) for path, entry in self._named(folders, last))

    def _named(
        self, folders: Iterable[tuple[str, Path]], glob: str
    ) -> Iterator[tuple[str, os.DirEntry[str]]]:
        for prefix, folder in folders:
            for entry in self._entries(prefix, folder):
                if fnmatchcase(entry.name, glob):
                    yield f"{prefix}/{entry.name}" if prefix else entry.name, entry

    def _add_extra(self, prefix: str, path: Path) -> None:
        if not os.path.lexists(path):
            self._found.miss(prefix, f"no such file or folder; {STAYS}")
        elif os.path.isdir(path) or path.name.endswith(".md"):
            self._inside.append(str(path if os.path.isdir(path) else path.parent))
            self._add(prefix, path, os.path.isdir(path))
        else:
            self._found.leave_out(prefix, "not a folder or a .md file")

    def _add(self, path: str, file: Path, is_folder: bool = False) -> None:
        """A file or folder that is looked at by its name."""
        if os.path.islink(file):
            self._links.append((path, file))
        elif is_folder:
            self._add_folder(path, file, is_top=True)
        else:
            self._add_file(path, file)

    def _add_folder(self, prefix: str, folder: Path, is_top: bool = False) -> None:
        """The files of a folder and those below it, in the order of their names."""
        # A stack of what is still to be listed: folders may lie deeper than calls can.
        waiting: list[tuple[str, Path, Identity | None]] = [(prefix, folder, None)]
        while waiting:
            prefix, folder, above = waiting.pop()
            real = os.path.realpath(folder)
            if real in self._seen_folders:
                continue
            self._seen_folders.add(real)
            entries = self._entries(prefix, folder)
            identity = _identity(folder)
            # Those that may be mounts: what is named, what a link leads to, and another file system.
            if identity and (is_top or (above is not None and above[0] != identity[0])):
                self._note_folder(prefix, identity, is_empty=not entries)
            is_top = False
            if any(entry.name == _VIRTUAL_ENVIRONMENT for entry in entries):
                continue
            self._found.listed.append(real)
            rules = self._rules.of_folder(folder) if self._rules else None
            below = []
            for entry in entries:
                path = f"{prefix}/{entry.name}" if prefix else entry.name
                is_folder = entry.is_dir(follow_symlinks=False)
                if entry.name in IGNORED_FOLDERS and (is_folder or entry.is_symlink()):
                    continue
                if rules and rules.ignores(entry.name, is_folder):
                    continue
                if is_folder:
                    below.append((path, Path(entry.path), identity))
                elif entry.is_symlink():
                    self._links.append((path, Path(entry.path)))
                elif entry.name.endswith(".md"):
                    self._add_file(path, Path(entry.path), os.path.join(real, entry.name))
            waiting += reversed(below)

    def _note_folder(self, prefix: str, identity: Identity, is_empty: bool) -> None:
        self._found.folders[prefix] = identity
        if is_empty:
            self._found.empty.append(prefix)

    def _entries(self, prefix: str, folder: Path) -> list[os.DirEntry[str]]:
        if self._options.deadline is not None and time.monotonic() > self._options.deadline:
            self._found.is_cut = True
            return []
        try:
            with os.scandir(folder) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self._found.miss(prefix, reason_of(error))
            return []

    def _add_file(self, path: str, file: Path, real: str | None = None, source: str = MEMORY) -> None:
        """A file, by its real path where that is known."""
        try:
            path.encode()
        except UnicodeEncodeError:
            self._found.leave_out(path, "its name is not UTF-8")
            return
        try:
            status = os.stat(real or file, follow_symlinks=False)
        except OSError as error:
            self._found.miss(path, reason_of(error))
            return
        if stat.S_ISDIR(status.st_mode):
            self._found.leave_out(path, "a folder with the name of a file")
            return
        real = real or os.path.realpath(file)
        # An extra path may lie in the root, or in another one.
        if self._seen.setdefault(real, path) == path:
            self._found.files.append(SourceFile(path, file, source))

    def _follow(self, path: str, link: Path) -> None:
        """A symbolic link: to a file or folder that has no name of its own in the memory."""
        self._found.links.append(os.path.join(os.path.realpath(link.parent), link.name))
        try:
            real = os.path.realpath(link, strict=True)
            is_folder = os.path.isdir(real)
        except OSError as error:
            # What it leads to may be on its way, or not mounted.
            reason = f"a symbolic link that leads nowhere: {reason_of(error)}"
            if path.endswith(".md"):
                self._found.miss(path, reason)
            else:
                self._found.broken[path] = reason
            return
        if not is_folder and not path.endswith(".md"):
            return
        if is_folder and Path(os.path.realpath(link.parent)).is_relative_to(real):
            self._found.leave_out(path, "a symbolic link to a folder that it lies in")
        elif not self._options.follow_links and not self._is_inside(real):
            self._found.leave_out(path, "a symbolic link out of the folder, which --follow-links follows")
        elif self._is_left_out(Path(real), is_folder):
            self._found.leave_out(path, "a symbolic link to what is left out")
        elif is_folder:
            if real not in self._seen_folders:
                self._add_folder(path, link, is_top=True)
        # What is indexed by its own name needs no other.
        elif real not in self._seen:
            self._add_file(path, link, real)

    def _is_inside(self, real: str) -> bool:
        return any(Path(real).is_relative_to(folder) for folder in self._inside)

    def _is_left_out(self, real: Path, is_folder: bool) -> bool:
        """Whether a file or folder would be left out if it were come to by its own name."""
        for folder in map(Path, self._inside):
            if not real.is_relative_to(folder):
                continue
            parts = real.relative_to(folder).parts
            if set(parts if is_folder else parts[:-1]) & IGNORED_FOLDERS:
                return True
            if self._rules and self._rules.ignores(folder, parts, is_folder):
                return True
        return False


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # whoever lists it for its files will say
        return []


def _identity(folder: Path) -> Identity | None:
    try:
        status = os.stat(folder)
    except OSError:  # whoever lists it for its files will say
        return None
    return status.st_dev, status.st_ino
