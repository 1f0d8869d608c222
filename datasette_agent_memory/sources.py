"""A file to index: its text, its hash, and what there is besides."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .decoding import NotText, decode, without_surrogates
from .errors import AgentMemoryError
from .front_matter import FrontMatter, front_matter

MEMORY = "memory"
SESSIONS = "sessions"

#: A larger file is no memory, and would have to be held whole.
_MAX_BYTES = 1 << 30
#: How often a file is read that is being written meanwhile.
_READINGS = 3


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
    """What a file says. Its chunks are those of the body; the hash is of all of it."""

    text: str
    hash: str
    mtime_ms: int
    size: int
    front_matter: FrontMatter | None = None
    #: Of a transcript the line of the file that each line of the text is from.
    lines: Sequence[int] | None = None
    #: The encoding of the file, where it was guessed.
    guessed: str | None = None


def read_source(source: SourceFile) -> SourceText:
    """A file's text, hash and state; raises UnreadableFile."""
    try:
        content, status = read_content(source.file)
    except FileNotFoundError as error:
        raise NotASource(reason_of(error)) from error
    except (OSError, ValueError) as error:
        raise UnreadableFile(reason_of(error)) from error
    if source.source == SESSIONS:
        from .sessions import read_transcript

        transcript = read_transcript(content)
        return SourceText(
            transcript.text, transcript.hash, milliseconds(status), len(content), lines=transcript.lines
        )
    try:
        decoded = decode(content)
    except NotText as error:
        raise NotASource(str(error)) from error
    return SourceText(
        text=decoded.text,
        hash=sha256(decoded.text),
        mtime_ms=milliseconds(status),
        size=len(content),
        front_matter=front_matter(decoded.text),
        guessed=decoded.guessed,
    )


def sha256(text: str) -> str:
    """SHA-256 hex of the UTF-8 text; what UTF-8 cannot hold counts as U+FFFD, as in the peer."""
    try:
        return hashlib.sha256(text.encode()).hexdigest()
    except UnicodeEncodeError:
        return hashlib.sha256(without_surrogates(text).encode()).hexdigest()


def reason_of(error: Exception) -> str:
    """Why a file cannot be used, without its name."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


def milliseconds(status: os.stat_result) -> int:
    """When a file was last changed, as the index has it."""
    return status.st_mtime_ns // 1_000_000


def read_content(file: Path, most: int = _MAX_BYTES) -> tuple[bytes, os.stat_result]:
    """A file's content as of one moment, as far as can be told; raises OSError, and NotASource for
    one that is none or has too many bytes."""
    # Opening a pipe would wait for somebody to write to it.
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as opened:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise NotASource("not a regular file")
        for _ in range(_READINGS):
            if before.st_size > most:
                raise NotASource(f"larger than {most >> 20:,} MB")
            opened.seek(0)
            content = opened.read()
            after = os.fstat(descriptor)
            if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, len(content)):
                break
            before = after
    return content, after
