"""Embedding many texts: batches, several calls at once, retries, and what is refused."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from ..keywords import CJK_RUN
from .base import (
    EmbeddingError,
    InputRefused,
    Provider,
    TemporaryError,
    Vectors,
    WrongCount,
    guarded,
    useless_vector,
)

#: Of one call: with waits that double from a second, half a minute, unless the provider asks for
#: more; what asks for more than the second figure is given up.
INDEX_ATTEMPTS = 6
INDEX_PATIENCE_S = 150.0

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0
#: How long calls that are under way may still take when a run is interrupted.
_LAST_CALLS_S = 3.0
#: A text that every model can embed.
_HARMLESS_TEXT = "memory"

Result = TypeVar("Result")


class Interrupted(EmbeddingError):
    """Embedding was stopped from outside."""


@dataclass(frozen=True)
class Text:
    """A text to embed, and where it stands."""

    hash: str
    text: str
    path: str
    start_line: int
    end_line: int

    @property
    def tokens(self) -> int:
        return estimate_tokens(self.text)


@dataclass(frozen=True)
class Refused:
    """A text that has got no vector."""

    text: Text
    reason: str
    #: Whether it would be refused again, as far as can be known.
    is_final: bool = True


@dataclass
class Embedded:
    """What has come of a batch."""

    vectors: dict[str, Vectors] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    tokens: int = 0


def estimate_tokens(text: str) -> int:
    """About what a model counts: 1.05 for a CJK character, and one for 3.6 others."""
    cjk = sum(len(run) for run in CJK_RUN.findall(text))
    return round(1.05 * cjk + (len(text) - cjk) / 3.6)


def embed_in_batches(
    provider: Provider,
    texts: Iterable[Text],
    stop: threading.Event,
    waits: Callable[[str, float], None] = lambda reason, seconds: None,
) -> Iterator[Embedded]:
    """Embed the texts, and give what is done as soon as it is.

    `waits` is told why a call is tried again, and after how many seconds. When `stop` is set,
    and when the provider fails, what is under way is still given; then Interrupted or the
    failure is raised.
    """
    run = _Run(provider, texts, stop, waits)
    if provider.in_process:
        yield from run.one_after_another()
    else:
        yield from run.at_once(provider.max_concurrency)


class _Run:
    def __init__(
        self,
        provider: Provider,
        texts: Iterable[Text],
        stop: threading.Event,
        waits: Callable[[str, float], None],
    ) -> None:
        self._provider = provider
        self._waiting = deque(texts)
        self._stop = stop
        self._waits = waits
        #: Ends waits as `stop` does, when one of several calls has failed for good.
        self._failed = threading.Event()
        self._lock = threading.Lock()
        #: The most texts that a call may have, which a provider may turn out to want lower.
        self._most = provider.max_batch_texts
        self._not_before = 0.0
        self._has_succeeded = False

    def one_after_another(self) -> Iterator[Embedded]:
        while batch := self._next_batch():
            yield self._embed(batch)
        if self._waiting:
            raise Interrupted("interrupted")

    def at_once(self, workers: int) -> Iterator[Embedded]:
        done: queue.Queue[Embedded | BaseException | None] = queue.Queue()

        def work() -> None:
            try:
                while not self._failed.is_set() and (batch := self._next_batch()):
                    done.put(self._embed(batch))
            except BaseException as error:
                self._failed.set()
                done.put(error)
            done.put(None)

        workers = min(workers, len(self._waiting))
        # Daemons: a call that hangs must not keep an interrupted program alive.
        for _ in range(workers):
            threading.Thread(target=work, daemon=True).start()
        failure: BaseException | None = None
        deadline = None
        try:
            while workers:
                if self._stop.is_set() and deadline is None:
                    deadline = time.monotonic() + _LAST_CALLS_S
                try:
                    item = done.get(timeout=0.2)
                except queue.Empty:
                    if deadline is not None and time.monotonic() > deadline:
                        break
                    continue
                if item is None:
                    workers -= 1
                elif isinstance(item, Embedded):
                    yield item
                elif failure is None or isinstance(failure, Interrupted):
                    failure = item
        finally:
            self._failed.set()
        if failure is not None and not isinstance(failure, Interrupted):
            raise failure
        if self._waiting or workers or failure:
            raise Interrupted("interrupted")

    def _next_batch(self) -> list[Text]:
        with self._lock:
            batch: list[Text] = []
            tokens = 0
            while self._waiting and not self._stop.is_set() and len(batch) < self._most:
                tokens += self._waiting[0].tokens
                if batch and tokens > self._provider.max_batch_tokens:
                    break
                batch.append(self._waiting.popleft())
            return batch

    def _embed(self, batch: list[Text]) -> Embedded:
        """The vectors of a batch, halved where the provider refuses it, down to a single text."""
        if len(batch) > self._most:
            return self._embed_parts(batch, self._most)
        done = Embedded(tokens=sum(text.tokens for text in batch))
        try:
            vectors = self._call(lambda: self._provider.embed_documents([text.text for text in batch]))
        except InputRefused as error:
            if len(batch) == 1:
                self._blame_text_or_provider(error)
                done.refused.append(Refused(batch[0], str(error), not isinstance(error, WrongCount)))
                return done
            half = (len(batch) + 1) // 2
            done = self._embed_parts(batch, half)
            if not done.refused:
                # It was their number, which is not to be tried again.
                self._most = min(self._most, half)
            return done
        if vectors.shape != (len(batch), self._provider.dims):
            raise EmbeddingError(
                f"{self._provider} gave an array of shape {vectors.shape} for {len(batch)} texts"
            )
        useless = []
        for text, vector in zip(batch, vectors, strict=True):
            if np.isfinite(vector).all():
                done.vectors[text.hash] = vector
                self._has_succeeded = True
            else:
                useless.append(text)
        if len(batch) == 1 and useless:
            refusal = useless_vector(self._provider)
            self._blame_text_or_provider(refusal)
            done.refused.append(Refused(batch[0], str(refusal)))
        elif useless:
            # Asked for by fewer at a time, which tells a bad text from a bad answer.
            size = len(useless) if len(useless) < len(batch) else (len(batch) + 1) // 2
            again = self._embed_parts(useless, size)
            done.vectors |= again.vectors
            done.refused += again.refused
        return done

    def _embed_parts(self, batch: list[Text], size: int) -> Embedded:
        done = Embedded()
        for start in range(0, len(batch), size):
            part = self._embed(batch[start : start + size])
            done.vectors |= part.vectors
            done.refused += part.refused
            done.tokens += part.tokens
        return done

    def _blame_text_or_provider(self, error: EmbeddingError) -> None:
        """Raise the error unless the provider can embed something: then it is the text's fault."""
        if self._has_succeeded:
            return
        try:
            vectors = self._call(lambda: self._provider.embed_documents([_HARMLESS_TEXT]))
        except InputRefused:
            raise EmbeddingError(str(error)) from None
        if not np.isfinite(vectors).all():
            raise EmbeddingError(str(error))
        self._has_succeeded = True

    def _call(self, call: Callable[[], Vectors]) -> Vectors:
        return with_retries(
            lambda: guarded(self._provider, call),
            INDEX_ATTEMPTS,
            INDEX_PATIENCE_S,
            self._wait_turn,
            self._failed_for_now,
        )

    def _wait_turn(self, seconds: float = 0.0) -> None:
        """Sleep, and until the provider may be asked again; raises Interrupted."""
        until = time.monotonic() + seconds
        while True:
            if self._stop.is_set() or self._failed.is_set():
                raise Interrupted("interrupted")
            left = max(until, self._not_before) - time.monotonic()
            if left <= 0:
                return
            self._stop.wait(min(left, 0.2))

    def _failed_for_now(self, error: TemporaryError, seconds: float) -> None:
        """Keep every call away from the provider for as long as it asks for."""
        if error.retry_after_s is not None:
            self._not_before = max(self._not_before, time.monotonic() + error.retry_after_s)
        self._waits(str(error), seconds)


def with_retries(
    call: Callable[[], Result],
    attempts: int,
    patience_s: float,
    sleep: Callable[[float], None],
    failed: Callable[[TemporaryError, float], None] = lambda error, seconds: None,
    first_wait_s: float | None = None,
) -> Result:
    """The call's result, tried again after a TemporaryError: after the time that the provider asks
    for, else after waits that double, with jitter (exponential backoff).

    Raises the last error, and at once one that asks for more than is left of `patience_s`
    seconds. `failed` is told of each error, and of the seconds until the next try.
    """
    import tenacity

    first = _FIRST_WAIT_S if first_wait_s is None else first_wait_s
    jitter = tenacity.wait_random(0, first)
    backoff = tenacity.wait_exponential(multiplier=first, max=_LONGEST_WAIT_S) + jitter

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        if not isinstance(error, TemporaryError) or error.retry_after_s is None:
            return backoff(state)
        # All calls wait for the same moment, and should not come back in the same one.
        return error.retry_after_s + jitter(state) / 4

    def before_sleep(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, TemporaryError):
            failed(error, state.upcoming_sleep)

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(TemporaryError),
        wait=wait,
        stop=tenacity.stop_after_attempt(attempts) | tenacity.stop_before_delay(patience_s),
        sleep=sleep,
        before_sleep=before_sleep,
        reraise=True,
    )
    sleep(0)
    return retrying(call)
