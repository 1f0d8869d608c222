"""What the providers behind HTTP have in common: one request, and what its answer means.

Retries and batches are in batches.py, so that indexing and queries can have patience of
their own.
"""

from __future__ import annotations

import json
import re
import threading
from abc import abstractmethod
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from time import monotonic, time
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import numpy as np

from .base import (
    EmbeddingError,
    InputRefused,
    Provider,
    ProviderMissing,
    ProviderSettings,
    TemporaryError,
    Vectors,
    WrongCount,
    only_vector,
    unit_length,
)
from .prompts import prompts_for

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT_S = 10.0
#: Of a whole answer, and of any part of it.
READ_TIMEOUT_S = 60.0
#: A query that waits longer has been given up by whoever asked it.
QUERY_READ_TIMEOUT_S = 20.0

#: A message of a server's is shown no longer than this.
_MAX_MESSAGE_CHARS = 200
#: More than any model's answer to one batch; a server without end is stopped here.
_MAX_ANSWER_BYTES = 256 * 1024 * 1024

_REFUSED_INPUT = {400, 413, 422}
_TEMPORARY = {408, 409, 425, 429}
#: Of a 429 that no waiting helps: OpenAI's codes, and the name of Gemini's daily quotas. What the
#: messages say of billing and plans stands in those of plain rate limits as well.
_QUOTA = re.compile(r"insufficient_quota|billing_hard_limit_reached|billing_not_active|PerDay")
#: A few servers call it an error of their own when a text is too long for them.
_TOO_LARGE = re.compile(
    r"too (large|long|many)|context (length|size)|maximum.{0,20}(token|length)", re.IGNORECASE
)


class RemoteProvider(Provider):
    """A provider that is asked over HTTP, with JSON."""

    in_process = False
    max_concurrency = 4
    default_model: ClassVar[str]
    default_base_url: ClassVar[str]
    #: The environment's names for its key, the first that is set counts, and for its address.
    key_variables: ClassVar[tuple[str, ...]] = ()
    base_url_variable: ClassVar[str] = ""
    #: The widths of its models, where they are known.
    known_dims: ClassVar[dict[str, int]] = {}

    def __init__(self, settings: ProviderSettings) -> None:
        self.model = settings.model or self.default_model
        self.dimensions = settings.dimensions
        self.dims = settings.dimensions or self.known_dims.get(self.model)
        self.prompts = prompts_for(self.model)
        self.base_url = checked_base_url(settings.base_url or self.default_base_url, settings.base_url_source)
        self._key = settings.api_key
        if self._key is not None and not re.fullmatch(r"[\x21-\x7e]+", self._key.reveal()):
            raise EmbeddingError(f"the key of {self._key.source} has characters that no key has")
        if self._key is None and self.base_url == self.default_base_url:
            raise ProviderMissing(f"{self.name} needs a key: {settings.api_key_source} is not set")
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None

    @property
    def identity(self) -> dict[str, Any]:
        identity = super().identity
        return identity if self.base_url == self.default_base_url else {**identity, "baseUrl": self.base_url}

    @property
    def location(self) -> dict[str, str]:
        return {"baseUrl": self.base_url}

    # What a provider says in its own way

    @abstractmethod
    def _request(self, texts: Sequence[str], is_query: bool) -> tuple[str, dict[str, str], dict[str, Any]]:
        """The path below the base URL, the headers with the key, and the JSON of a request."""

    @abstractmethod
    def _vectors(self, answer: Any) -> list[Any]:
        """The vectors of an answer in the order of the texts; raises LookupError, TypeError and
        ValueError where it is not of the right form."""

    # What all of them do

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        return self._embed([self.prompts.document + text for text in texts], is_query=False)

    def embed_query(self, text: str) -> Vectors:
        return only_vector(self, self._embed([self.prompts.query + text], is_query=True))

    def _embed(self, texts: list[str], is_query: bool) -> Vectors:
        # JSON cannot carry half a surrogate pair.
        texts = [text.encode("utf-8", "replace").decode() for text in texts]
        timeout_s = min(READ_TIMEOUT_S, QUERY_READ_TIMEOUT_S) if is_query else READ_TIMEOUT_S
        answer = self._post(*self._request(texts, is_query), timeout_s)
        try:
            values = self._vectors(answer)
            if len(values) != len(texts):
                raise WrongCount(f"{self} gave {len(values)} vectors for {len(texts)} texts")
            vectors = np.array(values, dtype=np.float64)
        except (LookupError, TypeError, ValueError, OverflowError):
            raise TemporaryError(f"{self} answered with JSON that has not one vector for each text") from None
        if vectors.ndim != 2 or not vectors.shape[1]:
            raise TemporaryError(f"{self} answered with JSON that has not one vector for each text")
        if self.dims is not None and vectors.shape[1] != self.dims:
            raise EmbeddingError(
                f"{self} gave vectors of {vectors.shape[1]} dimensions instead of {self.dims}; "
                "is that the model?"
            )
        self.dims = vectors.shape[1]
        return unit_length(vectors)

    def _post(self, path: str, headers: dict[str, str], body: dict[str, Any], timeout_s: float) -> Any:
        import httpx

        address = f"{self.base_url}/{path}"
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            with self._http().stream(
                "POST", address, headers=headers, json=body, timeout=timeout
            ) as response:
                content = _read(response, monotonic() + timeout_s)
        except httpx.TimeoutException:
            raise TemporaryError(f"{self} did not answer in time") from None
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise EmbeddingError(f"{self}: {self._redacted(str(error))}") from None
        except httpx.TransportError as error:
            raise TemporaryError(
                f"{self} cannot be reached at {self.base_url}: {self._redacted(str(error)) or 'no answer'}"
            ) from None
        except httpx.HTTPError as error:
            raise TemporaryError(f"{self}: {self._redacted(str(error))}") from None
        if response.status_code != 200:
            raise self._error(response, content)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            kind = self._redacted(response.headers.get("content-type") or "text")
            raise TemporaryError(
                f"{self} answered with {kind} that is not JSON; is {self.base_url} the right address?"
            ) from None

    def _http(self) -> httpx.Client:
        import httpx

        with self._lock:
            if self._client is None:
                # Redirects are not followed: they would take the key elsewhere.
                try:
                    self._client = httpx.Client()
                except Exception as error:
                    # Of proxies and certificates in the environment, by whatever they are read.
                    raise EmbeddingError(
                        f"{self}: the network cannot be used as it is set up: {self._redacted(str(error))}"
                    ) from error
            return self._client

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = None

    def _error(self, response: httpx.Response, content: bytes) -> EmbeddingError:
        """What a status other than 200 means."""
        status = response.status_code
        message, details = _message(content)
        said = self._redacted(message)
        what = f"{self}: HTTP {status}" + (f", {said}" if said else "")
        if status == 401 or "API_KEY_INVALID" in details:
            # Not what the server says, which often has some of the key in it.
            if self._key is None:
                return EmbeddingError(f"{self}: HTTP {status}, it wants a key in {self.key_variables[0]}")
            return EmbeddingError(f"{self}: HTTP {status}, it refuses the key of {self._key.source}")
        if status == 402 or (status == 429 and _QUOTA.search(details)):
            return EmbeddingError(f"{what} (the quota is exhausted)")
        if status in _REFUSED_INPUT or (status >= 500 and _TOO_LARGE.search(message)):
            return InputRefused(what)
        if status in _TEMPORARY or status >= 500:
            asked = _retry_after_s(response, details)
            return TemporaryError(what if asked is None else f"{what} (asks to wait {asked:.0f} s)", asked)
        if 300 <= status < 400:
            return EmbeddingError(f"{self}: HTTP {status}, a redirect; {self.base_url} is not its address")
        return EmbeddingError(what)

    def _redacted(self, text: str) -> str:
        """A server's message in one line, without the key, however much of it is repeated."""
        text = " ".join(text.split())
        if self._key is not None and len(key := self._key.reveal()) >= 4:
            text = text.replace(key, "***")
            # A start or an end of the key, as in "sk-abc***xyz", is for whoever holds it alone.
            for length in range(len(key) - 1, 5, -1):
                text = text.replace(key[:length], "***").replace(key[-length:], "***")
        return text if len(text) <= _MAX_MESSAGE_CHARS else text[:_MAX_MESSAGE_CHARS] + "…"


def in_order(items: Any, vector: str = "embedding") -> list[Any]:
    """The vectors of objects with an `index`, in its order, or where none has one, as they stand."""
    if not isinstance(items, list):
        raise TypeError("no list")
    if all("index" not in item for item in items):
        return [item[vector] for item in items]
    by_index = {item["index"]: item[vector] for item in items}
    # One that stands twice leaves another one out.
    return [by_index[index] for index in range(len(items))]


def checked_base_url(url: str, source: str) -> str:
    """The URL without a slash at its end; raises EmbeddingError where it could not be shown or used."""
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.strip().isprintable():
        raise EmbeddingError(f"{source} is not an address like https://host/v1")
    if parts.username is not None or parts.query or parts.fragment:
        # The address stands in messages and in the database.
        raise EmbeddingError(f"{source} must have no user, password, ? or #")
    return url.strip().rstrip("/")


def _read(response: httpx.Response, deadline: float) -> bytes:
    import httpx

    parts, size = [], 0
    for part in response.iter_bytes():
        # A time limit for each part is none for one that comes byte by byte.
        if monotonic() > deadline:
            raise httpx.ReadTimeout("the answer takes too long")
        size += len(part)
        if size > _MAX_ANSWER_BYTES:
            raise EmbeddingError(f"{response.url.host} gives an answer without an end")
        parts.append(part)
    return b"".join(parts)


def _message(content: bytes) -> tuple[str, str]:
    """The message of an error's body, and the whole body as text."""
    text = content.decode("utf-8", "replace")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        # An HTML page says nothing in one line.
        return "" if text.lstrip().startswith("<") else text, text
    if isinstance(body, list) and body:  # Gemini's streams
        body = body[0]
    if isinstance(body, dict):
        for name in ("error", "message", "detail"):
            value = body.get(name)
            if isinstance(value, dict):
                value = value.get("message")
            if isinstance(value, str):
                return value, text
    return text, text


def _retry_after_s(response: httpx.Response, details: str) -> float | None:
    """The seconds to wait by the headers, or by Gemini's RetryInfo in the body."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        value = response.headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) / unit
        except ValueError:
            try:
                seconds = parsedate_to_datetime(value).timestamp() - time()
            except (ValueError, TypeError, OverflowError):
                continue
        if seconds == seconds:  # not NaN
            return max(0.0, seconds)
    delay = re.search(r'"retryDelay"\s*:\s*"([0-9]{1,9}(?:\.[0-9]+)?)s"', details)
    return float(delay[1]) if delay else None
