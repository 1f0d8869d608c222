"""The vectors of queries: the process's cache of them, and asking a provider for one.

SQL has no time limit inside a Python function, so `embed()` asks no network: the page, the
JSON and the command line put a query's vector into the cache before they run the SQL.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import OrderedDict, deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from functools import partial

from .base import InputRefused, Provider, TemporaryError, guarded
from .batches import with_retries

_CACHE_SIZE = 512
#: A thread that has had nothing to ask for so long ends.
_IDLE_S = 60.0
_WORKERS = 4
_ATTEMPTS = 3
_FIRST_WAIT_S = 0.2
#: A provider that has failed is left alone this long, or as long as it asks for.
_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 600.0
#: A longer query says no more, and costs more.
_MAX_QUERY_CHARS = 4000

_Key = tuple[str, str]
_Jobs = queue.SimpleQueue[tuple[float, Provider, _Key, "Future[bytes]"]]


class _Crowded(TemporaryError):
    """A query was not even sent: it says nothing of the provider."""


class _Paused(TemporaryError):
    """A query was not sent, since the provider is left alone."""


class TooManyQueries(TemporaryError):
    """A query was not sent, since those of its kind are limited."""

    def __init__(self) -> None:
        super().__init__("too many queries")


@dataclass
class _Workers:
    """The threads that ask one provider, and what they are to ask."""

    jobs: _Jobs = field(default_factory=queue.SimpleQueue)
    count: int = 0


@dataclass(frozen=True)
class Asked:
    """How asking a provider for a query's vector went."""

    #: Why there is no vector, None if there is.
    failure: str | None = None
    took_ms: float = 0.0


NOT_ASKED = Asked()


class QueryVectors:
    """A bounded cache of query vectors, filled by the providers with one call for equal queries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._vectors: OrderedDict[_Key, bytes] = OrderedDict()
        self._under_way: dict[_Key, Future[bytes]] = {}
        #: Of each provider, so that one that hangs holds up no other.
        self._workers: dict[str, _Workers] = {}
        #: By a provider's key: until when it is left alone, and why.
        self._failures: dict[str, tuple[float, str]] = {}
        self._paid_for: deque[float] = deque()

    def cached(self, provider_key: str, text: str) -> bytes | None:
        """The vector as little-endian float32, None where it is not known."""
        key = (provider_key, _shortened(text))
        with self._lock:
            vector = self._vectors.get(key)
            if vector is not None:
                self._vectors.move_to_end(key)
            return vector

    def computed(self, provider: Provider, text: str) -> bytes:
        """The vector by a provider in this process; raises EmbeddingError."""
        vector = self.cached(provider.key, text)
        return vector if vector is not None else self._ask(provider, (provider.key, _shortened(text)))

    def fetch(self, provider: Provider, text: str, timeout_s: float) -> None:
        """Have the vector in the cache; raises EmbeddingError, at the latest after the timeout."""
        future = self._asked(provider, text, timeout_s)
        try:
            future.result(timeout_s)
        except FutureTimeoutError:
            raise self._too_slow(provider, timeout_s, future) from None

    async def fetch_async(
        self, provider: Provider, text: str, timeout_s: float, most_a_minute: int | None = None
    ) -> None:
        """As fetch, without blocking the event loop; of those with a limit, only so many a minute are
        sent, and TooManyQueries is raised for more."""
        future = self._asked(provider, text, timeout_s, most_a_minute)
        asked = asyncio.wrap_future(future)
        try:
            # Shielded: others may wait for the same vector, and the next query may want it.
            await asyncio.wait_for(asyncio.shield(asked), timeout_s)
        except (asyncio.TimeoutError, TimeoutError):
            asked.add_done_callback(lambda future: future.cancelled() or future.exception())
            raise self._too_slow(provider, timeout_s, future) from None

    def failure(self, provider: Provider) -> str | None:
        """Why the last query could not be embedded, None where it was, or none has been asked."""
        with self._lock:
            return self._failures.get(provider.key, (0.0, None))[1]

    def clear(self) -> None:
        """Forget vectors and failures."""
        with self._lock:
            self._vectors.clear()
            self._failures.clear()
            self._paid_for.clear()

    def _may_pay(self, most_a_minute: int) -> bool:
        """Whether one more of the queries that are limited may be sent now; counts it if so."""
        now = time.monotonic()
        while self._paid_for and self._paid_for[0] < now - 60:
            self._paid_for.popleft()
        if len(self._paid_for) >= most_a_minute:
            return False
        self._paid_for.append(now)
        return True

    def _asked(
        self, provider: Provider, text: str, timeout_s: float, most_a_minute: int | None = None
    ) -> Future[bytes]:
        key = (provider.key, _shortened(text))
        future: Future[bytes]
        with self._lock:
            if key in self._under_way:
                return self._under_way[key]
            future = Future()
            if key in self._vectors:
                future.set_result(self._vectors[key])
                return future
            if why := self._pause(provider):
                future.set_exception(_Paused(why))
                return future
            if most_a_minute is not None and not self._may_pay(most_a_minute):
                future.set_exception(TooManyQueries())
                return future
            self._under_way[key] = future
            workers = self._workers.setdefault(provider.key, _Workers())
            workers.jobs.put((time.monotonic() + timeout_s, provider, key, future))
            if workers.count < _WORKERS:
                workers.count += 1
                # Daemons: a call that hangs must not keep the program alive.
                threading.Thread(target=self._work, args=(workers,), daemon=True).start()
            return future

    def _work(self, workers: _Workers) -> None:
        while True:
            try:
                deadline, provider, key, future = workers.jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if workers.jobs.empty():
                        workers.count -= 1
                        return
                continue
            future.set_running_or_notify_cancel()
            try:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise _Crowded(f"{provider} has too many queries to answer at once")
                if why := self._pause(provider):
                    raise _Paused(why)
                vector = with_retries(
                    partial(self._ask, provider, key), _ATTEMPTS, left, time.sleep, first_wait_s=_FIRST_WAIT_S
                )
            except BaseException as error:
                self._end(provider, key, error)
                future.set_exception(error)
            else:
                self._end(provider, key, None)
                future.set_result(vector)

    def _too_slow(self, provider: Provider, timeout_s: float, future: Future[bytes]) -> TemporaryError:
        if not future.running() and not future.done():
            return _Crowded(f"{provider} has too many queries to answer at once")
        error = TemporaryError(f"{provider} did not answer within {timeout_s:g} s")
        with self._lock:
            # The next query need not wait as long to learn as much.
            self._failed(provider, error)
        return error

    def _ask(self, provider: Provider, key: _Key) -> bytes:
        vector = guarded(provider, lambda: provider.embed_query(key[1])).astype("<f4").tobytes()
        with self._lock:
            self._vectors[key] = vector
            while len(self._vectors) > _CACHE_SIZE:
                self._vectors.popitem(last=False)
        return vector

    def _end(self, provider: Provider, key: _Key, error: BaseException | None) -> None:
        with self._lock:
            del self._under_way[key]
            if error is None:
                # One that was under way says nothing of a pause that was asked for since.
                if not self._pause(provider):
                    self._failures.pop(provider.key, None)
            elif not isinstance(error, (InputRefused, _Crowded, _Paused)):
                self._failed(provider, error)

    def _failed(self, provider: Provider, error: BaseException) -> None:
        """Leave a provider alone for as long as it asks for; a pause never gets shorter."""
        seconds = min(getattr(error, "retry_after_s", None) or _PAUSE_S, _LONGEST_PAUSE_S)
        until = time.monotonic() + seconds
        if until > self._failures.get(provider.key, (0.0, ""))[0]:
            self._failures[provider.key] = (until, str(error))

    def _pause(self, provider: Provider) -> str | None:
        """Why a provider is left alone now, None where it is not."""
        until, why = self._failures.get(provider.key, (0.0, ""))
        return why if time.monotonic() < until else None


def _shortened(text: str) -> str:
    return text[:_MAX_QUERY_CHARS]


#: The process's.
QUERY_VECTORS = QueryVectors()
