"""Bringing a database up to date with its sources.

Find, read, chunk and embed are steps that touch no database; one writer, in writer.py,
stands at their end. Text comes first, so that keywords find it in seconds; its vectors are
filled in behind. An index that is to be made again goes on answering until it is whole.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .chunked import chunks_of, details_of
from .chunking import DEFAULT_OVERLAP, DEFAULT_TOKENS, Chunk
from .config import MAX_DIMENSIONS, ParameterError
from .connections import (
    Connection,
    DatabaseError,
    database_errors,
    open_readonly,
    open_writable,
    sqlite3,
)
from .embeddings.base import EmbeddingError, Provider, TemporaryError
from .embeddings.batches import Embedded, Interrupted, Text, embed_in_batches
from .embeddings.cache import Embedding, EmbeddingCache
from .embeddings.chain import PassedOver
from .locks import clear_locks, embedding_turn
from .passages import PassageTable
from .report import Guessed, IndexIncomplete, IndexReport, Listener, WidthChanged
from .scan import Found, is_within
from .scopes import Scope, check_folder, check_root, narrow, real_path
from .sources import (
    NotASource,
    SourceError,
    SourceFile,
    SourceText,
    UnreadableFile,
    milliseconds,
    read_source,
    sha256,
)
from .writer import Changes, ChunkedFile, IndexWriter

#: Chunks that are read together, so that memory holds no more.
_BATCH_CHUNKS = 64
#: A run waits so long for others that write to its database.
_LONGEST_WAIT_S = 1800.0


@dataclass(frozen=True)
class IndexSettings:
    """What to index and how."""

    root: Path
    paths: Sequence[Path] = ()
    extra: Sequence[Path] = ()
    #: The files and folders of the root that are taken, or globs of them; None is as the index was
    #: made, and empty goes by what is in the root.
    memory: Sequence[str] | None = None
    #: Whether transcripts are indexed, of the folders of earlier runs too.
    with_sessions: bool = True
    sessions: Sequence[Path] = ()
    #: Whether symbolic links out of the root are followed, and .gitignore is heeded; None is as
    #: the index was made.
    follow_links: bool | None = None
    gitignore: bool | None = None
    #: In the order in which they are tried; None is for keywords only.
    providers: Sequence[Provider | None] = (None,)
    #: What of provider, model and dimensions was asked for, which the next run goes on with.
    asked: Mapping[str, Any] | None = None
    #: Those that could not even be tried.
    passed_over: Sequence[PassedOver] = ()
    #: Other indexes, whose embeddings of the same texts are taken before any is computed.
    cache_from: Sequence[Path] = ()
    #: The most embeddings that the cache keeps, None for all.
    max_cached: int | None = None
    chunk_tokens: int = DEFAULT_TOKENS
    chunk_overlap: int = DEFAULT_OVERLAP
    #: Make the whole index again.
    force: bool = False
    #: Whether that is to be of the same paths as before, and not only of those that are named.
    keeps_paths: bool = False
    dry_run: bool = False

    @property
    def is_afresh(self) -> bool:
        """Whether what earlier runs were told is forgotten."""
        return self.force and not self.keeps_paths


def remembered_root(meta: Mapping[str, Any]) -> Path | None:
    """The folder that an index was made of."""
    root = meta.get("root")
    return Path(root) if isinstance(root, str) and root else None


def chunk_size(
    meta: Mapping[str, Any], tokens: int | None = None, overlap: int | None = None
) -> tuple[int, int]:
    """Tokens of a chunk and of an overlap: those asked for, else those of the index; raises
    ParameterError."""
    sizes: list[int] = []
    for asked, name, default in (
        (tokens, "chunkTokens", DEFAULT_TOKENS),
        (overlap, "chunkOverlap", DEFAULT_OVERLAP),
    ):
        before = meta.get(name)
        if asked is None:
            asked = before if isinstance(before, int) and before >= 0 else default
        sizes.append(asked)
    if sizes[1] >= sizes[0]:
        raise ParameterError("--chunk-overlap must be below --chunk-tokens")
    return sizes[0], sizes[1]


#: Writes a file with the embeddings of its text hashes.
Write = Callable[[ChunkedFile, dict[str, Embedding]], Changes]


def update_index(
    database: Path,
    settings: IndexSettings,
    listener: Listener | None = None,
    stop: threading.Event | None = None,
) -> IndexReport:
    """Index a folder into a database file, made if it is not there.

    Setting `stop`, from a signal handler or another thread, ends the embedding soon, as
    IndexIncomplete. Raises SourceError, DatabaseError and EmbeddingError, each of which
    leaves the index as it was, but for what was already written whole.
    """
    started = time.perf_counter()
    check_folder(settings.root)
    passed_over = list(settings.passed_over)
    was_there = os.path.exists(database)
    try:
        with ExitStack() as stack:
            stack.enter_context(database_errors(database))
            caches = [stack.enter_context(open_readonly(path)) for path in settings.cache_from]
            conn = stack.enter_context(_opened(database, settings.dry_run))
            has_written = False
            for number, provider in enumerate(settings.providers, 1):
                run = _Run(
                    conn, caches, database, settings, provider, passed_over, listener, stop, has_written
                )
                try:
                    report = run.run()
                    break
                except IndexIncomplete as error:
                    if number == len(settings.providers) or settings.paths or not error.is_for_good:
                        raise
                    passed_over.append(PassedOver(run.report.provider, str(error.cause)))
                    has_written = True
                    run.listener.handed_over(passed_over[-1], settings.providers[number])
    finally:
        # Of a run that did not get as far as to a table.
        if not was_there and os.path.isfile(database) and not os.path.getsize(database):
            database.unlink()
        clear_locks(database)
    report.took_s = round(time.perf_counter() - started, 3)
    return report


def _opened(database: Path, dry_run: bool) -> AbstractContextManager[Connection]:
    if not dry_run:
        return open_writable(database)
    return open_readonly(database) if os.path.exists(database) else closing(sqlite3.connect(":memory:"))


class _Run:
    """One run of the indexer."""

    def __init__(
        self,
        conn: Connection,
        caches: Sequence[Connection],
        database: Path,
        settings: IndexSettings,
        provider: Provider | None,
        passed_over: Sequence[PassedOver],
        listener: Listener | None,
        stop: threading.Event | None,
        has_written: bool,
    ) -> None:
        self.database = database
        self.listener = listener or Listener()
        self.stop = stop or threading.Event()
        self.waited_since: float | None = None
        #: Whether another provider has had its turn in this run, and left text without vectors.
        self.has_written = has_written
        self.root = real_path(settings.root)
        self.settings = settings
        self.provider = provider
        self.writer = IndexWriter(
            conn,
            database,
            self.root,
            provider,
            settings.chunk_tokens,
            settings.chunk_overlap,
            self._wait_for_other_writer,
        )
        self.other_caches = [EmbeddingCache(cache, provider) for cache in caches if provider]
        self.report = IndexReport(
            self.writer.provider,
            self.writer.model,
            self.writer.dims,
            dry_run=settings.dry_run,
            passed_over=tuple(passed_over),
        )
        #: Whether an index that is there is made again, and answers meanwhile.
        self.is_rebuild = False
        #: Files that turned out not to be sources when they were read.
        self.rejected: set[str] = set()
        #: The files that are new or changed.
        self.changed: set[str] = set()
        #: The hashes of texts whose embeddings were there.
        self.found: set[str] = set()
        #: The texts whose embeddings have to be computed, by their hashes.
        self.missing: dict[str, Text] = {}
        check_root(database, self.root, self.writer.meta, settings.force)
        self.scanned = Found()
        self.scope = Scope.of_run(
            self.root,
            settings.extra,
            settings.sessions,
            self.writer.meta,
            settings.follow_links,
            settings.gitignore,
            settings.is_afresh,
            settings.memory,
            settings.with_sessions,
        )

    def run(self) -> IndexReport:
        self.scanned = found = self.scope.find(() if self.settings.is_afresh else self.writer.known)
        found.files, scopes = narrow(
            found.files, self.settings.paths, self.settings.root, self.scope, self.writer.known
        )
        rebuild = self.settings.force or self.writer.needs_rebuild
        if rebuild and scopes != [""] and self.writer.known:
            why = "--force makes" if self.settings.force else "the index has other settings, which makes"
            raise SourceError(f"{why} the whole index again: run without PATHs")
        self.is_rebuild = self.report.is_rebuilt = rebuild and self.writer.has_index
        if self.settings.dry_run:
            counts = self.writer.chunk_counts
            self._go_through(found, rebuild, write=lambda file, _: self._would_change(file, rebuild))
            gone = self._gone(found, scopes)
            self.report.files_removed = len(gone)
            self.report.chunks_removed += sum(counts.get(path, 0) for path in gone)
            pending = [] if rebuild else self._pending(without={*gone, *self.changed})
            texts = {text.hash: text for text in pending}
            for known in self._known(texts):
                del texts[known]
            texts |= self.missing
            if not self.settings.force:
                for refused in self.writer.refused(list(texts)):
                    del texts[refused]
            self._plan(texts)
            self.report.embeddings_computed = len(texts)
        elif self.is_rebuild:
            self._rebuild(found)
        else:
            self.writer.prepare(self.scope.paths(), self._meta())
            self._go_through(found, rebuild, write=self.writer.write_file)
            for path in self._gone(found, scopes):
                self.report.chunks_removed += self.writer.delete_file(path)
                self.report.files_removed += 1
            self._write_meta()
            self._embed_pending()
            # Now the width is known.
            self._write_meta()
        if not self.settings.dry_run:
            self._fill_passages()
            self.writer.keep_compact()
        if self.settings.max_cached is not None and not self.settings.dry_run:
            self.writer.prune_cache(self.settings.max_cached)
        self.report.dims = self.writer.dims
        self.report.chunks_total = self.writer.count_chunks()
        if self.settings.dry_run:
            self.report.chunks_total += self.report.chunks_added - self.report.chunks_removed
        # A rebuild goes through the files twice.
        self.report.skipped = sorted(set(found.skipped), key=lambda skipped: skipped.path)
        return self.report

    # What there is, and what is to be done

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
        """Read, chunk and write the files that are new or changed, with what is cached of their vectors."""
        for batch in self._batches(found, rebuild):
            self._stop_if_asked()
            embeddings = self._cached(batch)
            for file in batch:
                self.changed.add(file.file.path)
                if file.file.path in self.writer.known:
                    self.report.files_updated += 1
                else:
                    self.report.files_added += 1
                if guessed := file.content.guessed:
                    self.report.guessed.append(Guessed(file.file.path, guessed))
                changes = write(file, embeddings)
                self.report.chunks_added += changes.added
                self.report.chunks_removed += len(changes.outdated)

    def _would_change(self, file: ChunkedFile, rebuild: bool) -> Changes:
        if not rebuild and self.writer.has_index:
            return self.writer.changes(file)
        # All that is there goes.
        there = [None] * self.writer.chunk_counts.get(file.file.path, 0)
        return Changes(0, len(set(file.chunk_ids(self.writer.model))), there)

    def _wait_for_other_writer(self) -> None:
        """Called now and then while another process writes, which a rebuild may do for long."""
        self._stop_if_asked()
        now = time.monotonic()
        if self.waited_since is None:
            self.waited_since = now
            self.listener.waits_for_writer()
        elif now - self.waited_since > _LONGEST_WAIT_S:
            raise DatabaseError(
                f"{self.database}: another process has been writing to it for over "
                f"{_LONGEST_WAIT_S / 60:.0f} minutes; run again when it has ended"
            )

    def _stop_if_asked(self) -> None:
        if self.stop.is_set():
            message = "interrupted; what is written is whole: run again to go on"
            raise IndexIncomplete(message, Interrupted("interrupted"), has_vectors=True)

    def _batches(self, found: Found, rebuild: bool) -> Iterator[list[ChunkedFile]]:
        batch: list[ChunkedFile] = []
        chunks = 0
        for done, file in enumerate(found.files, 1):
            if not rebuild and self._is_old_transcript(file):
                self.report.files_unchanged += 1
                continue
            try:
                content = read_source(file)
                if not rebuild and self._is_current(file.path, content):
                    self.report.files_unchanged += 1
                    continue
                batch.append(self._chunked(file, content))
                chunks += len(batch[-1].chunks)
            except NotASource as error:
                found.leave_out(file.path, str(error))
                self.rejected.add(file.path)
                continue
            except UnreadableFile as error:
                found.miss(file.path, str(error))
                continue
            # Whatever is in a file, it costs no other file anything.
            except (MemoryError, RecursionError, ArithmeticError, LookupError, ValueError) as error:
                found.miss(file.path, f"unexpected {type(error).__name__}")
                continue
            if chunks >= _BATCH_CHUNKS or len(batch) >= _BATCH_CHUNKS:
                yield batch
                batch, chunks = [], 0
                self.listener.files(done, len(found.files))
        yield batch
        self.listener.files(len(found.files), len(found.files))

    def _is_old_transcript(self, file: SourceFile) -> bool:
        """Whether a transcript has the size and time that it had when it was indexed.

        There are gigabytes of them, to which programs only add; of notes the text decides.
        """
        before = self.writer.transcripts.get(file.path)
        if before is None or self.writer.has_lost_chunks or not self.writer.known[file.path]:
            return False
        try:
            status = file.file.stat()
        except OSError:
            return False
        return before == (status.st_size, milliseconds(status))

    def _is_current(self, path: str, content: SourceText) -> bool:
        if self.writer.known.get(path) != content.hash:
            return False
        # Where the index has lost chunks, each file is counted; equal segments are one chunk.
        return not self.writer.has_lost_chunks or self.writer.chunk_counts.get(path, 0) == len(
            {(chunk.start_line, chunk.end_line, chunk.text) for chunk in self._chunks(content)}
        )

    def _chunks(self, content: SourceText) -> list[Chunk]:
        return chunks_of(content, self.settings.chunk_tokens, self.settings.chunk_overlap)

    def _chunked(self, file: SourceFile, content: SourceText) -> ChunkedFile:
        chunks = self._chunks(content)
        details = details_of(content, chunks, self.settings.chunk_tokens, self.settings.chunk_overlap)
        return ChunkedFile(file, content, details, chunks, [sha256(chunk.text) for chunk in chunks])

    def _cached(self, batch: Sequence[ChunkedFile]) -> dict[str, Embedding]:
        """The embeddings of a batch's text hashes that this index, or another one, has got already."""
        if self.provider is None:
            return {}
        texts = {
            hash: Text(hash, chunk.text, file.file.path, chunk.start_line, chunk.end_line)
            for file in batch
            for hash, chunk in zip(file.hashes, file.chunks, strict=True)
        }
        embeddings = self._known(texts)
        self.missing |= {hash: text for hash, text in texts.items() if hash not in embeddings}
        return embeddings

    def _known(self, texts: Mapping[str, Text]) -> dict[str, Embedding]:
        """The embeddings of text hashes that this index's cache, or another one, has."""
        embeddings = self.writer.cached(texts)
        if embeddings:
            self._check_width(embeddings)
        for cache in self.other_caches:
            others = cache.read(texts.keys() - embeddings.keys(), self.writer.dims)
            self.report.embeddings_taken_over += len(others.keys() - self.found)
            if others and not self.settings.dry_run:
                self._keep(others)
            embeddings |= others
        self.report.embeddings_cached += len(embeddings.keys() - self.found)
        self.found |= embeddings.keys()
        return embeddings

    def _plan(self, texts: dict[str, Text]) -> None:
        tokens = sum(text.tokens for text in texts.values())
        self.report.tokens += tokens
        if self.provider is not None and (texts or self.settings.dry_run):
            self.listener.plan(self.provider, len(texts), tokens, self.report.embeddings_cached)

    def _embed_pending(self) -> None:
        """Give a vector to every chunk that waits for one, of other runs' too; raises IndexIncomplete."""
        if self.other_caches:
            # They may have what the provider refuses.
            known = self._known({text.hash: text for text in self.writer.pending_texts()})
            if known:
                self._write_vectors(known)
        while self._pending():
            with embedding_turn(self.database) as is_ours:
                if not is_ours:
                    # It looks again after its turn, and so finds what this run has written.
                    self.listener.left_to_another()
                    return
                pending = {text.hash: text for text in self._pending()}
                known = self._known(pending)
                if known:
                    self._write_vectors(known)
                unknown = [text for hash, text in pending.items() if hash not in known]
                self._embed(unknown, self._write_vectors)

    def _fill_passages(self) -> None:
        """Give each longer chunk the vectors of its passages, where the provider wants that."""
        if self.provider is None or not self.provider.has_passages:
            self.writer.drop_passages()
            return
        table = PassageTable(self.writer.conn, self.provider)
        while table.is_free() and not table.is_current():
            with embedding_turn(self.database) as is_ours:
                if not is_ours:
                    return
                with self.writer.writing():
                    table.prepare()
                hashes = table.missing()
                self.listener.passages(0, len(hashes))
                done = 0
                for rows in table.make(hashes):
                    self._stop_if_asked()
                    with self.writer.writing():
                        table.write(rows)
                    done += len(rows)
                    self.listener.passages(done, len(hashes))

    def _pending(self, without: Container[str] = ()) -> list[Text]:
        """The texts that wait for a vector, but for those that the provider has refused, now or before."""
        texts = self.writer.pending_texts(without)
        refused = self.writer.refused(text.hash for text in texts)
        refused |= {one.text.hash for one in self.report.refused}
        return [text for text in texts if text.hash not in refused]

    def _embed(self, texts: Sequence[Text], keep: Callable[[dict[str, Embedding]], None]) -> None:
        """Compute embeddings and keep them, batch by batch; raises IndexIncomplete."""
        if self.provider is None:
            return
        self._plan({text.hash: text for text in texts})
        # Where the width is known from the index alone, one text shows whether it still holds.
        first = 1 if self.provider.dims is None and self.writer.dims is not None else len(texts)
        try:
            for part in (texts[:first], texts[first:]):
                for embedded in embed_in_batches(self.provider, part, self.stop, self.listener.waits):
                    self._keep_embedded(embedded, keep)
        except EmbeddingError as error:
            if not self.is_rebuild:
                self._write_meta(failure=str(error))
            elif self.writer.is_ours:
                self.writer.note_failure(str(error))
            raise self._incomplete(error, len(texts)) from error

    def _keep_embedded(self, embedded: Embedded, keep: Callable[[dict[str, Embedding]], None]) -> None:
        if embedded.vectors:
            keep({hash: self.writer.as_stored(vector) for hash, vector in embedded.vectors.items()})
        refused = [one.text.hash for one in embedded.refused if one.is_final]
        if refused:
            self.writer.refuse(refused)
        self.report.embeddings_computed += len(embedded.vectors)
        self.report.refused += embedded.refused
        self.listener.embedded(len(embedded.vectors) + len(embedded.refused), embedded.tokens)

    def _incomplete(self, error: EmbeddingError, texts: int) -> IndexIncomplete:
        done = self.report.embeddings_computed
        if self.is_rebuild and not self.has_written:
            message = f"{error}; the index is as it was, and {done} of {texts} texts are embedded and kept"
        else:
            message = f"{error}; {done} of {texts} texts are embedded and kept, and keywords find all of them"
        again = (
            "run again to go on"
            if isinstance(error, (TemporaryError, Interrupted))
            else ("run again when that is mended, or with another --provider or --model")
        )
        if self.has_written:
            reasons = [one.reason for one in self.report.passed_over]
            message = "; ".join([*reasons, message])
        return IndexIncomplete(f"{message}: {again}", error, self.writer.has_own_vectors())

    def _write_meta(self, is_rebuilt: bool = False, failure: str | None = None) -> None:
        self.writer.write_meta(self.scope.paths(), self._meta(failure), is_rebuilt)

    def _meta(self, failure: str | None = None) -> dict[str, Any]:
        """What `meta` is to say of this run and of what is indexed."""
        meta: dict[str, Any] = {
            "passedOver": [vars(one) for one in self.report.passed_over],
            "refusedChunks": self.writer.count_refused(),
            **self.scope.as_meta(self.scanned),
        }
        if failure is not None:
            meta["failure"] = failure
        if self.settings.asked is not None:
            meta["asked"] = dict(self.settings.asked)
        return meta

    def _write_vectors(self, embeddings: dict[str, Embedding]) -> None:
        self._check_width(embeddings)
        self.writer.write_vectors(embeddings)

    def _keep(self, embeddings: dict[str, Embedding]) -> None:
        self._check_width(embeddings)
        self.writer.cache(embeddings)

    def _check_width(self, embeddings: dict[str, Embedding]) -> None:
        dims = next(iter(embeddings.values())).count(",") + 1
        if self.writer.dims == dims:
            return
        if dims > MAX_DIMENSIONS:
            raise EmbeddingError(
                f"{self.provider} gives {dims} dimensions, and an index can have {MAX_DIMENSIONS}; "
                "--dimensions asks for less"
            )
        if self.writer.dims is not None and not self.is_rebuild:
            raise WidthChanged(
                f"{self.provider} now gives {dims} dimensions, and the index has {self.writer.dims}; "
                "--force makes the index again"
            )
        self.writer.change_width(dims)

    def _warm_cache(self, found: Found) -> None:
        """Have the embeddings of all texts in the cache; raises IndexIncomplete."""
        while True:
            self.missing.clear()
            for batch in self._batches(found, rebuild=True):
                self._stop_if_asked()
                self._cached(batch)
            width = self.writer.dims
            refused = self.writer.refused(self.missing)
            self._embed([text for hash, text in self.missing.items() if hash not in refused], self._keep)
            if width in (None, self.writer.dims):
                return
            # The model's width has changed, which has made useless what was cached.

    def _rebuild(self, found: Found) -> None:
        """Make the whole index again, while the old one goes on answering."""
        self.report.chunks_removed = self.writer.count_chunks()
        if self.provider is not None:
            # First the slow part, into the cache alone, so that the transaction is short.
            self.writer.prepare_cache()
            if self.settings.force:
                self.writer.forget_refused()
            with embedding_turn(self.database) as is_ours:
                if not is_ours:
                    raise DatabaseError(
                        f"{self.database}: another run is embedding for this index; "
                        "run again when it has ended"
                    )
                self._warm_cache(found)
        with self.writer.rebuilding():
            self._go_through(found, rebuild=True, write=self.writer.write_file)
            for skipped in found.skipped:
                if skipped.path in found.unseen and any(
                    is_within(path, skipped.path) for path in self.writer.known
                ):
                    raise SourceError(
                        f"{skipped.path}: {skipped.reason}; nothing was changed, so as not to lose it"
                    )
            self._write_meta(is_rebuilt=True)
        self.report.files_removed = len(self._gone(found, [""]))
        self.is_rebuild = False
        # Of files that have changed meanwhile.
        self._embed_pending()
