"""Finding the files of a memory, reading and decoding them."""

from __future__ import annotations

import codecs
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .errors import AgentMemoryError

MEMORY = "memory"

#: In a folder that is taken whole, these hold other people's files.
_IGNORED_FOLDERS = {".git", ".hg", ".svn", "node_modules", ".venv", "venv", ".tox", "__pycache__"}

# UTF-32's mark begins with UTF-16's.
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class SourceError(AgentMemoryError):
    """A folder or path that was named cannot be used."""


class UnreadableFile(Exception):
    """A file could not be looked at, so that what is known of it stands; the message is the reason."""


class NotASource(UnreadableFile):
    """A file was looked at, and is none to index: what is known of it is no longer true."""


@dataclass(frozen=True)
class SourceFile:
    """A file to index, and its path in the database: relative to the root, with `/`."""

    path: str
    file: Path
    source: str = MEMORY


@dataclass(frozen=True)
class SourceText:
    text: str
    hash: str
    mtime_ms: int
    size: int


@dataclass(frozen=True)
class Skipped:
    path: str
    reason: str


@dataclass
class Found:
    """What a scan found, and what of the memory it could not see."""

    files: list[SourceFile] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    #: Paths in the database, of files or folders, of which the scan knows nothing.
    unseen: list[str] = field(default_factory=list)

    def leave_out(self, path: str, reason: str) -> None:
        """Name what was seen and is no file to index."""
        self.skipped.append(Skipped(path.encode("utf-8", "backslashreplace").decode(), reason))

    def miss(self, path: str, reason: str) -> None:
        """Name what could not be looked at."""
        self.leave_out(path, reason)
        self.unseen.append(path)

    def is_unseen(self, path: str) -> bool:
        return any(is_within(path, unseen) for unseen in self.unseen)


def find_files(root: Path, extra: Iterable[Path] = ()) -> Found:
    """The memory files of a workspace, and those of extra paths, each file once.

    MEMORY.md, memory.md and memory/**/*.md; where there is neither MEMORY.md nor memory/,
    the root is a folder of notes and taken whole. Symbolic links are not followed. Raises
    SourceError where the root cannot be read.
    """
    found = Found()
    try:
        names = set(os.listdir(root))
    except OSError as error:
        raise SourceError(f"{root}: {_reason(error)}") from error

    seen: set[Path] = set()
    has_memory = "memory" in names and (root / "memory").is_dir()
    if "MEMORY.md" in names or has_memory:
        for name in ("MEMORY.md", "memory.md"):
            if name in names:
                _add_file(found, seen, name, root / name)
        if has_memory:
            _add_folder(found, seen, "memory", root / "memory", ignored=set())
    else:
        _add_folder(found, seen, "", root, ignored=_IGNORED_FOLDERS)

    for path, prefix in extra_prefixes(root, extra):
        if not os.path.lexists(path):
            found.miss(prefix, "no such file or folder; what was indexed of it stays, until --force")
        elif path.is_dir() and not path.is_symlink():
            _add_folder(found, seen, prefix, path, ignored=_IGNORED_FOLDERS)
        elif path.name.endswith(".md"):
            _add_file(found, seen, prefix, path)
        else:
            found.leave_out(prefix, "not a folder or a .md file")
    return found


def path_in_database(root: Path, path: Path) -> str | None:
    """The path of a file or folder inside the root, None for one outside."""
    if not path.is_relative_to(root):
        return None
    relative = path.relative_to(root).as_posix()
    return "" if relative == "." else relative


def is_within(path: str, folder: str) -> bool:
    """Whether a path in the database is this file, or in this folder; all are in ""."""
    return not folder or path == folder or path.startswith(folder + "/")


def read_source(source: SourceFile) -> SourceText:
    """A file's text, hash and state; raises UnreadableFile."""
    try:
        status = source.file.stat()
        # Reading a pipe or a device would never end.
        if not stat.S_ISREG(status.st_mode):
            raise NotASource("not a regular file")
        content = source.file.read_bytes()
    except FileNotFoundError as error:
        raise NotASource(_reason(error)) from error
    except OSError as error:
        raise UnreadableFile(_reason(error)) from error
    text = _decode(content)
    return SourceText(
        text=text,
        hash=sha256(text),
        mtime_ms=status.st_mtime_ns // 1_000_000,
        size=len(content),
    )


def sha256(text: str) -> str:
    """SHA-256 hex of the UTF-8 text; what UTF-8 cannot hold counts as U+FFFD, as in the peer."""
    try:
        return hashlib.sha256(text.encode()).hexdigest()
    except UnicodeEncodeError:
        valid = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return hashlib.sha256(valid.encode()).hexdigest()


def _decode(content: bytes) -> str:
    """UTF-8, or what the byte order mark says; bytes that are neither become U+FFFD."""
    for bom, encoding in _BOMS:
        if content.startswith(bom):
            return content[len(bom) :].decode(encoding, "replace")
    if b"\0" in content:
        raise NotASource("binary: it has NUL bytes")
    return content.decode("utf-8", "replace")


def _add_folder(found: Found, seen: set[Path], prefix: str, folder: Path, ignored: set[str]) -> None:
    """Add the files of a folder and those below it, in the order of their names."""
    if folder.is_symlink():
        found.leave_out(prefix, "symbolic link")
        return
    # A stack of what is still to be listed: folders may lie deeper than calls can.
    waiting = [(prefix, folder)]
    while waiting:
        prefix, folder = waiting.pop()
        below = []
        for entry in _entries(found, prefix, folder):
            path = f"{prefix}/{entry.name}" if prefix else entry.name
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in ignored:
                    below.append((path, Path(entry.path)))
            elif entry.is_symlink() and os.path.isdir(entry.path):
                found.leave_out(path, "symbolic link")
            elif entry.name.endswith(".md"):
                _add_file(found, seen, path, Path(entry.path))
        waiting += reversed(below)


def _entries(found: Found, prefix: str, folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        found.miss(prefix, _reason(error))
        return []


def _add_file(found: Found, seen: set[Path], path: str, file: Path) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        found.leave_out(path, "its name is not UTF-8")
        return
    try:
        status = file.lstat()
    except OSError as error:
        found.miss(path, _reason(error))
        return
    if stat.S_ISLNK(status.st_mode):
        found.leave_out(path, "symbolic link")
    elif stat.S_ISDIR(status.st_mode):
        found.leave_out(path, "a folder with the name of a file")
    elif file not in seen:
        # An extra path may lie in the root, or in another one.
        seen.add(file)
        found.files.append(SourceFile(path, file))


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


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
