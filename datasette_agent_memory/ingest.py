"""Bringing a database up to date with its sources.

Find, read, chunk and embed are steps that touch no database; one writer, in writer.py,
stands at their end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chunking import DEFAULT_OVERLAP, DEFAULT_TOKENS, Chunk, chunk_markdown
from .connections import Connection, DatabaseError, open_readonly, open_writable, sqlite3
from .sources import (
    Found,
    NotASource,
    Skipped,
    SourceError,
    SourceFile,
    SourceText,
    UnreadableFile,
    extra_prefixes,
    find_files,
    is_within,
    path_in_database,
    read_source,
    sha256,
)
from .writer import ChunkedFile, Embedding, IndexWriter, extra_paths_of

if TYPE_CHECKING:
    from .embeddings.base import Provider

#: Chunks embedded together: enough to keep every core busy, few enough to lose little.
_BATCH_CHUNKS = 64


@dataclass(frozen=True)
class IndexSettings:
    """What to index and how."""

    root: Path
    paths: Sequence[Path] = ()
    extra: Sequence[Path] = ()
    provider: Provider | None = None
    chunk_tokens: int = DEFAULT_TOKENS
    chunk_overlap: int = DEFAULT_OVERLAP
    force: bool = False
    dry_run: bool = False


@dataclass
class IndexReport:
    """What a run did, or, dry, would do."""

    provider: str
    model: str
    dims: int | None
    dry_run: bool = False
    files_added: int = 0
    files_updated: int = 0
    files_unchanged: int = 0
    files_removed: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    chunks_added: int = 0
    chunks_removed: int = 0
    chunks_total: int = 0
    embeddings_computed: int = 0
    embeddings_cached: int = 0
    took_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        report: dict[str, Any] = {
            "ok": True,
            "files": {
                "added": self.files_added,
                "updated": self.files_updated,
                "unchanged": self.files_unchanged,
                "removed": self.files_removed,
                "skipped": [{"path": skipped.path, "reason": skipped.reason} for skipped in self.skipped],
            },
            "chunks": {
                "added": self.chunks_added,
                "removed": self.chunks_removed,
                "total": self.chunks_total,
            },
            "embeddings": {"computed": self.embeddings_computed, "cached": self.embeddings_cached},
            "provider": self.provider,
            "model": self.model,
            "dims": self.dims,
            "took_s": self.took_s,
        }
        return {**report, "dry_run": True} if self.dry_run else report


Progress = Callable[[int, int], None]

#: Writes a file with the embeddings of its text hashes, and says how many chunks it replaced.
Write = Callable[[ChunkedFile, dict[str, Embedding]], int]


def update_index(database: Path, settings: IndexSettings, progress: Progress | None = None) -> IndexReport:
    """Index a folder into a database file, made if it is not there.

    `progress` is called with the files done and their number. Raises SourceError,
    DatabaseError and EmbeddingError, each of which leaves the index as it was, but for
    files that were already written whole.
    """
    started = time.perf_counter()
    if not settings.root.is_dir():
        what = "is a file, not a folder" if settings.root.is_file() else "no such folder"
        raise SourceError(f"{settings.root}: {what}")
    try:
        with _opened(database, settings.dry_run) as conn:
            writer = IndexWriter(
                conn,
                database,
                settings.root.resolve(),
                settings.provider,
                settings.chunk_tokens,
                settings.chunk_overlap,
            )
            report = _Run(writer, database, settings, progress).run()
    except sqlite3.Error as error:
        raise DatabaseError(f"{database}: {error}") from error
    report.took_s = round(time.perf_counter() - started, 3)
    return report


def _opened(database: Path, dry_run: bool) -> AbstractContextManager[Connection]:
    if not dry_run:
        return open_writable(database)
    return open_readonly(database) if database.exists() else closing(sqlite3.connect(":memory:"))


class _Run:
    """One run of the indexer."""

    def __init__(
        self, writer: IndexWriter, database: Path, settings: IndexSettings, progress: Progress | None
    ) -> None:
        self.writer = writer
        self.root = settings.root.resolve()
        self.settings = settings
        self.progress = progress or (lambda done, total: None)
        self.report = IndexReport(writer.provider, writer.model, writer.dims, dry_run=settings.dry_run)
        #: Files that turned out not to be sources when they were read.
        self.rejected: set[str] = set()
        self._check_root(database)
        self.extra = self._extra_paths()

    def run(self) -> IndexReport:
        found = find_files(self.root, self.extra)
        found.files, scopes = self._narrowed(found)
        rebuild = self.settings.force or self.writer.needs_rebuild
        if rebuild and scopes != [""] and self.writer.known:
            why = "--force makes" if self.settings.force else "the index has other settings, which makes"
            raise SourceError(f"{why} the whole index again: run without PATHs")
        if self.settings.dry_run:
            self._go_through(found, rebuild, write=lambda file, embeddings: 0)
            self.report.files_removed = len(self._gone(found, scopes))
        elif rebuild and self.writer.has_index:
            self._rebuild(found)
        else:
            self.writer.prepare(self.extra)
            self._go_through(found, rebuild, write=self.writer.write_file)
            for path in self._gone(found, scopes):
                self.report.chunks_removed += self.writer.delete_file(path)
                self.report.files_removed += 1
            self.writer.write_meta(self.extra)
        self.report.chunks_total = self.writer.count_chunks()
        # A rebuild goes through the files twice.
        self.report.skipped = sorted(set(found.skipped), key=lambda skipped: skipped.path)
        return self.report

    # What there is, and what is to be done

    def _check_root(self, database: Path) -> None:
        old = self.writer.meta.get("root")
        if isinstance(old, str) and old != str(self.root) and Path(old).is_dir() and not self.settings.force:
            raise SourceError(
                f"{database}: is the index of {old}; choose another -d for {self.root}, "
                "or replace it with --force"
            )

    def _extra_paths(self) -> list[Path]:
        """Those of earlier runs, unless --force starts afresh, and those named now."""
        old = [] if self.settings.force else extra_paths_of(self.writer.meta)
        named = [path.expanduser().resolve() for path in self.settings.extra]
        for path in named:
            if not path.exists():
                raise SourceError(f"{path}: no such file or folder")
            if not path.is_dir() and path.suffix != ".md":
                raise SourceError(f"{path}: is not a folder or a .md file")
        return list(dict.fromkeys([*map(Path, old), *named]))

    def _narrowed(self, found: Found) -> tuple[list[SourceFile], list[str]]:
        """The files that the PATHs name, and the paths in the database that the run speaks for."""
        if not self.settings.paths:
            return found.files, [""]
        there = [*(file.path for file in found.files), *self.writer.known]
        scopes = [self._scope(path, there) for path in self.settings.paths]
        return [file for file in found.files if any(is_within(file.path, scope) for scope in scopes)], scopes

    def _scope(self, path: Path, there: Iterable[str]) -> str:
        """The path in the database of one of the PATHs, from where we are or from the root."""
        folders = [(self.root, ""), *extra_prefixes(self.root, self.extra)]
        inside = [
            f"{prefix}/{below}".strip("/") if prefix else below
            for place in (_without_links_above(path), _without_links_above(self.root / path), path.resolve())
            for folder, prefix in folders
            if (below := path_in_database(folder, place)) is not None
        ]
        if not inside:
            raise SourceError(f"{path}: is not inside {self.settings.root}")
        for scope in inside:
            if any(is_within(known, scope) for known in there):
                return scope
        raise SourceError(
            f"{path}: has no memory file; memory is MEMORY.md and memory/**/*.md, "
            "and other paths need --extra"
        )

    def _gone(self, found: Found, scopes: Iterable[str]) -> list[str]:
        """Files of the index that a scan of their folder did not find."""
        there = {file.path for file in found.files} - self.rejected
        return [
            path
            for path in self.writer.known
            if path not in there
            and any(is_within(path, scope) for scope in scopes)
            and not found.is_unseen(path)
        ]

    # The steps

    def _go_through(
        self,
        found: Found,
        rebuild: bool,
        write: Write,
    ) -> None:
        """Read, chunk, embed and write the files that are new or changed."""
        for batch in self._batches(found, rebuild):
            vectors = self._embed(batch)
            for file in batch:
                if file.file.path in self.writer.known:
                    self.report.files_updated += 1
                else:
                    self.report.files_added += 1
                self.report.chunks_added += len(set(file.chunk_ids(self.writer.model)))
                self.report.chunks_removed += write(file, vectors)

    def _batches(self, found: Found, rebuild: bool) -> Iterator[list[ChunkedFile]]:
        batch: list[ChunkedFile] = []
        chunks = 0
        for done, file in enumerate(found.files, 1):
            try:
                content = read_source(file)
            except NotASource as error:
                found.leave_out(file.path, str(error))
                self.rejected.add(file.path)
                continue
            except UnreadableFile as error:
                found.miss(file.path, str(error))
                continue
            if not rebuild and self._is_current(file.path, content):
                self.report.files_unchanged += 1
            else:
                batch.append(self._chunked(file, content))
                chunks += len(batch[-1].chunks)
            if chunks >= _BATCH_CHUNKS or len(batch) >= _BATCH_CHUNKS:
                yield batch
                batch, chunks = [], 0
                self.progress(done, len(found.files))
        yield batch
        self.progress(len(found.files), len(found.files))

    def _is_current(self, path: str, content: SourceText) -> bool:
        if self.writer.known.get(path) != content.hash:
            return False
        # Where the index has lost chunks, each file is counted; equal segments are one chunk.
        return not self.writer.has_lost_chunks or self.writer.chunk_counts.get(path, 0) == len(
            {(chunk.start_line, chunk.end_line, chunk.text) for chunk in self._chunks(content)}
        )

    def _chunks(self, content: SourceText) -> list[Chunk]:
        chunks = chunk_markdown(
            content.text, self.settings.chunk_tokens, self.settings.chunk_overlap, whole_characters=True
        )
        return [chunk for chunk in chunks if chunk.text.strip()]

    def _chunked(self, file: SourceFile, content: SourceText) -> ChunkedFile:
        chunks = self._chunks(content)
        return ChunkedFile(file, content, chunks, [sha256(chunk.text) for chunk in chunks])

    def _embed(self, batch: Sequence[ChunkedFile]) -> dict[str, Embedding]:
        """An embedding for each text hash, from the cache or, once a text, from the provider."""
        texts = {
            hash: chunk.text for file in batch for hash, chunk in zip(file.hashes, file.chunks, strict=True)
        }
        if self.settings.provider is None:
            return dict.fromkeys(texts, "[]")
        embeddings = self.writer.cached(texts)
        missing = {hash: text for hash, text in texts.items() if hash not in embeddings}
        self.report.embeddings_cached += len(embeddings)
        self.report.embeddings_computed += len(missing)
        if missing and not self.settings.dry_run:
            computed = _compute(self.settings.provider, missing)
            self.writer.cache(computed)
            embeddings |= computed
        return embeddings

    def _rebuild(self, found: Found) -> None:
        """Make the whole index again, while the old one goes on answering."""
        self.report.chunks_removed = self.writer.count_chunks()
        computed = 0
        if self.settings.provider is not None:
            # First the slow part, into the cache alone, so that the transaction is short.
            self.writer.prepare_cache()
            for batch in self._batches(found, rebuild=True):
                self._embed(batch)
            computed = self.report.embeddings_computed
            self.report.embeddings_computed = self.report.embeddings_cached = 0
        with self.writer.rebuilding():
            self._go_through(found, rebuild=True, write=self.writer.write_file)
            for skipped in found.skipped:
                if skipped.path in found.unseen and any(
                    is_within(path, skipped.path) for path in self.writer.known
                ):
                    raise SourceError(
                        f"{skipped.path}: {skipped.reason}; nothing was changed, so as not to lose it"
                    )
            self.writer.write_meta(self.extra, is_rebuilt=True)
        self.report.files_removed = len(self._gone(found, [""]))
        self.report.embeddings_computed += computed
        self.report.embeddings_cached -= computed


def _compute(provider: Provider, texts: dict[str, str]) -> dict[str, Embedding]:
    """The embeddings of texts, by their hashes; raises EmbeddingError."""
    from .embeddings.base import EmbeddingError, is_unit_length, to_json

    vectors = provider.embed_documents(list(texts.values()))
    if vectors.shape != (len(texts), provider.dims) or not is_unit_length(vectors):
        raise EmbeddingError(
            f"{provider.name} {provider.model} gave vectors that are not {len(texts)} of unit length "
            f"and {provider.dims} dimensions"
        )
    return {hash: to_json(vector) for hash, vector in zip(texts, vectors, strict=True)}


def _without_links_above(path: Path) -> Path:
    """The absolute path, whose folders are real; what it names may be a link, or gone."""
    path = Path(os.path.abspath(path))
    return path.parent.resolve() / path.name if path.name else path
