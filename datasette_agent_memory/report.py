"""What a run of the indexer tells: while it goes on, at its end, and when it is cut short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .embeddings.base import EmbeddingError, Provider, ProviderMissing, TemporaryError
from .embeddings.batches import Interrupted, Refused
from .embeddings.chain import PassedOver
from .scan import Skipped


@dataclass(frozen=True)
class Guessed:
    """A file that is not UTF-8, and what it was read as."""

    path: str
    encoding: str


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
    guessed: list[Guessed] = field(default_factory=list)
    chunks_added: int = 0
    chunks_removed: int = 0
    chunks_total: int = 0
    embeddings_computed: int = 0
    embeddings_cached: int = 0
    #: Of the cached ones, those of other indexes.
    embeddings_taken_over: int = 0
    #: Whether an index that was there is made again as a whole.
    is_rebuilt: bool = False
    #: The estimated tokens of the texts that were, or would be, embedded.
    tokens: int = 0
    refused: list[Refused] = field(default_factory=list)
    passed_over: Sequence[PassedOver] = ()
    took_s: float = 0.0

    @property
    def has_changes(self) -> bool:
        """Whether the run has changed the index."""
        files = self.files_added or self.files_updated or self.files_removed
        return bool(files or self.embeddings_computed or self.is_rebuilt)

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
            "guessed": [vars(guessed) for guessed in self.guessed],
            "chunks": {
                "added": self.chunks_added,
                "removed": self.chunks_removed,
                "total": self.chunks_total,
            },
            "embeddings": {"computed": self.embeddings_computed, "cached": self.embeddings_cached},
            "tokens": self.tokens,
            "rebuilt": self.is_rebuilt,
            "refused": [
                {
                    "path": one.text.path,
                    "start_line": one.text.start_line,
                    "end_line": one.text.end_line,
                    "reason": one.reason,
                }
                for one in self.refused
            ],
            "provider": self.provider,
            "model": self.model,
            "dims": self.dims,
            "first_choice": not self.passed_over,
            "passed_over": [vars(one) for one in self.passed_over],
            "took_s": self.took_s,
        }
        return {**report, "dry_run": True} if self.dry_run else report


class Listener:
    """Is told how a run goes on; this one does nothing with it."""

    def files(self, done: int, total: int) -> None:
        """So many files of all have been gone through; a rebuild does that twice."""

    def plan(self, provider: Provider, texts: int, tokens: int, cached: int) -> None:
        """So many texts, of about so many tokens, are to be embedded; more of them are cached."""

    def embedded(self, texts: int, tokens: int) -> None:
        """So many more texts have been embedded."""

    def passages(self, done: int, total: int) -> None:
        """So many of these chunks have got the vectors of their passages."""

    def waits(self, reason: str, seconds: float) -> None:
        """A call has failed, and is tried again after so many seconds; from any thread."""

    def waits_for_writer(self) -> None:
        """Another process is writing to the database, and has to end first."""

    def left_to_another(self) -> None:
        """Another run is embedding for this index, and will embed what is new as well."""

    def handed_over(self, passed_over: PassedOver, following: Provider | None) -> None:
        """A provider has failed for good, and the whole index is made with the following one."""


class WidthChanged(EmbeddingError):
    """A provider gives vectors of another width than those of the index."""


class IndexIncomplete(EmbeddingError):
    """Embedding has stopped; what was done is kept."""

    def __init__(self, message: str, cause: EmbeddingError, has_vectors: bool) -> None:
        super().__init__(message)
        self.cause = cause
        self.is_interruption = isinstance(cause, Interrupted)
        #: Whether the index has vectors of the provider that failed, from this run or before.
        self.has_vectors = has_vectors

    @property
    def is_for_good(self) -> bool:
        """Whether another provider is to have its turn. An index with vectors waits for its own
        provider to come back; one that has none yet does not."""
        may_come_back = isinstance(self.cause, (TemporaryError, ProviderMissing, WidthChanged))
        return not isinstance(self.cause, Interrupted) and not (may_come_back and self.has_vectors)
