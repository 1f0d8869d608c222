"""The provider `local`: an embedding model in a GGUF file, run in this process by llama.cpp.

By `xllamacpp` where that is installed, else by llama-cpp-python; both give the same vectors
up to rounding. The first has wheels, where the second is built for the processor at hand,
and has been seen to crash on one that does not keep its word.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import mmap
import os
import re
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from .base import EmbeddingError, Provider, ProviderMissing, ProviderSettings, Vectors, unit_length
from .embedded import available_cores
from .prompts import prompts_for

#: As for the embedded model: a longer query says no more, and SQL cannot interrupt the call.
_MAX_QUERY_CHARS = 4000
#: A chunk's, and more. llama.cpp's buffers grow with its square: for some models' own context
#: they would take gigabytes.
_MAX_TOKENS = 2048
#: More than any language has; what is behind them is cut off without being counted.
_MAX_CHARS_PER_TOKEN = 8
#: Of a file, for its fingerprint: dense enough to meet the matrices that a fine-tune changed,
#: if it left most of the weights as they were.
_SAMPLES, _SAMPLE_BYTES = 256, 8192

#: The packages that have llama.cpp, in the order in which they are tried.
_ENGINES = ("xllamacpp", "llama_cpp")

#: Where a model's metadata are searched, which come before its vocabulary of some megabytes.
_HEADER_BYTES = 1 << 24
#: One vector for a text: the mean, the first token's, or the last one's.
_POOLINGS = (1, 2, 3)

#: Gives a text's vector, with NaN in it where it has none; raises _TooLong and RuntimeError.
_Engine = Callable[[str], list[float]]


def default_model_path() -> Path:
    """AGENT_MEMORY_LOCAL_MODEL, or EmbeddingGemma in the application's folder; need not exist."""
    if path := os.environ.get("AGENT_MEMORY_LOCAL_MODEL"):
        return expanded(path)
    return Path(click.get_app_dir("io.datasette.agent-memory")) / "embeddinggemma-300M-Q8_0.gguf"


def expanded(path: str) -> Path:
    """The path with `~` at its start for the home of a user, if there is such a user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


class LocalProvider(Provider):
    name = "local"
    in_process = True
    # An interrupt waits for the end of a batch.
    max_batch_texts = 8

    def __init__(self, settings: ProviderSettings) -> None:
        """Reads the file's header only; raises EmbeddingError where it is no embedding model's."""
        self.path = expanded(settings.model) if settings.model else default_model_path()
        if not any(find_spec(name) for name in _ENGINES):
            raise ProviderMissing("a GGUF file needs llama.cpp: pip install xllamacpp")
        self.model = self.path.name
        self.prompts = prompts_for(self.model)
        self._width, context = _read_header(self.path)
        self._max_tokens = min(context, _MAX_TOKENS)
        wanted = settings.dimensions
        if wanted is not None and not 1 <= wanted <= self._width:
            raise EmbeddingError(f"{self.path} gives vectors of {self._width} dimensions, not of {wanted}")
        # To ask for the model's own width is to ask for nothing.
        self.dimensions = None if wanted == self._width else wanted
        self.dims: int = wanted or self._width
        self._lock = threading.Lock()
        self._engine: _Engine | None = None

    @property
    def identity(self) -> dict[str, Any]:
        return {**super().identity, "fingerprint": self._fingerprint}

    @cached_property
    def _fingerprint(self) -> str:
        """SHA-256 hex of the file's size and of samples from its head to its tail."""
        try:
            with self.path.open("rb", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                digest = hashlib.sha256(str(size).encode())
                for sample in range(_SAMPLES):
                    file.seek(max(size - _SAMPLE_BYTES, 0) * sample // (_SAMPLES - 1))
                    digest.update(file.read(_SAMPLE_BYTES))
        except OSError as error:
            raise EmbeddingError(f"{self.path} cannot be read ({error.strerror})") from error
        return digest.hexdigest()

    @property
    def location(self) -> dict[str, str]:
        return {"modelPath": str(self.path.absolute())}

    def load(self) -> None:
        self._loaded(try_first=True)

    def _loaded(self, try_first: bool) -> _Engine:
        with self._lock:
            if self._engine is None:
                if try_first:
                    _try_in_child(self.path, self._max_tokens, self._width)
                self._engine = _load_engine(self.path, self._max_tokens, self._width)
            return self._engine

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        if not texts:
            return np.empty((0, self.dims), dtype=np.float32)
        engine = self._loaded(try_first=True)
        return self._embed(engine, [self.prompts.document + text for text in texts])

    def embed_query(self, text: str) -> Vectors:
        # Not tried again: the index that is asked has vectors of this file.
        engine = self._loaded(try_first=False)
        vector: Vectors = self._embed(engine, [self.prompts.query + text[:_MAX_QUERY_CHARS]])[0]
        if np.isnan(vector[0]):
            raise EmbeddingError(f"{self.path} gives no vector for this query")
        return vector

    def _embed(self, engine: _Engine, texts: Sequence[str]) -> Vectors:
        # One by one, which is as fast: a text takes all cores. And a query need not wait for
        # an indexer's whole batch.
        vectors = np.stack([self._embed_one(engine, text) for text in texts])
        return unit_length(vectors[:, : self.dims])

    def _embed_one(self, engine: _Engine, text: str) -> NDArray[np.float64]:
        """The vector of as much of the text as the model takes."""
        # Lone surrogates become question marks. Nothing at all is an error for some models.
        text = text.encode("utf-8", "replace").decode() or " "
        text = text[: self._max_tokens * _MAX_CHARS_PER_TOKEN]
        while text:
            try:
                with self._lock:
                    return np.array(engine(text), dtype=np.float64)
            except _TooLong as error:
                text = text[: int(len(text) * 0.98 * min(self._max_tokens / error.tokens, 1))]
            except RuntimeError as error:
                raise EmbeddingError(f"{self.path} cannot embed a text: {error}") from error
        raise EmbeddingError(f"{self.path} takes no text at all")


class _TooLong(RuntimeError):
    """A text is of more tokens than the engine takes at once."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens


def _load_engine(path: Path, max_tokens: int, width: int) -> _Engine:
    starts = {"xllamacpp": _start_xllamacpp, "llama_cpp": _start_llama_cpp}
    for name in _ENGINES:
        try:
            module = importlib.import_module(name)
        except (ImportError, OSError, RuntimeError):  # the others: a library built for another machine
            continue
        try:
            engine = starts[name](module, path, max_tokens)
            if len(engine("a")) != width:
                raise ValueError(f"its vectors are not of {width} dimensions")
            return engine
        except (RuntimeError, ValueError, MemoryError) as error:
            raise EmbeddingError(f"{path} cannot be loaded; it may be damaged, or too new") from error
        except OSError as error:
            raise EmbeddingError(f"{name} has no folder for temporary files ({error.strerror})") from error
        except AttributeError as error:
            raise EmbeddingError(f"this version of {name} is not known here ({error})") from error
    raise ProviderMissing("a GGUF file needs llama.cpp: pip install xllamacpp")


def _try_in_child(path: Path, max_tokens: int, width: int) -> None:
    """Load the file in another process: on some damaged files, and processors, llama.cpp aborts.

    Raises EmbeddingError where it does; its other errors will come again in this process.
    """
    code = "import sys, pathlib; from datasette_agent_memory.embeddings import local; "
    code += "local._load_engine(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))"
    try:
        # A folder for what it cannot clear away.
        with tempfile.TemporaryDirectory() as folder:
            child = subprocess.run(
                [sys.executable, "-c", code, str(path), str(max_tokens), str(width)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "GGML_NO_BACKTRACE": "1", "TMPDIR": folder},
            )
    except OSError:
        return  # No process can be had here.
    # Python's own are 0 to 2. A signal is negative, on Windows 3 or a large number.
    if not 0 <= child.returncode <= 2:
        raise EmbeddingError(f"{path} makes llama.cpp crash ({child.returncode}); it may be damaged")


def _start_llama_cpp(module: Any, path: Path, max_tokens: int) -> _Engine:
    # Its verbose=False lets warnings through.
    module.llama_log_set(_log_nothing(module), None)
    llama = module.Llama(
        model_path=str(path),
        embedding=True,
        # The tokens of a text are attended to all at once.
        n_ctx=max_tokens,
        n_batch=max_tokens,
        n_ubatch=max_tokens,
        n_threads=available_cores(),
        n_threads_batch=available_cores(),
        verbose=False,
    )

    def embed(text: str) -> list[float]:
        tokens = len(llama.tokenize(text.encode()))
        if tokens > max_tokens:
            raise _TooLong(tokens)
        vector: list[float] = llama.embed(text) if tokens else [math.nan] * llama.n_embd()
        return vector

    return embed


@cache
def _log_nothing(module: Any) -> Any:
    """A callback of llama.cpp's, kept for as long as the library may call it."""
    return module.llama_log_callback(lambda level, text, user_data: None)


def _start_xllamacpp(module: Any, path: Path, max_tokens: int) -> _Engine:
    params = module.CommonParams()
    params.model.path = str(path)
    params.embedding = True
    params.n_ctx = params.n_batch = params.n_ubatch = max_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = available_cores()
    params.cache_prompt, params.cache_ram_mib = False, 0
    params.verbosity = -1
    # It is an HTTP server, on a port unless given a Unix socket, which nobody finds in a folder
    # that is gone once it listens.
    for switch in ("ui", "endpoint_slots", "endpoint_metrics", "endpoint_props"):
        if hasattr(params, switch):
            setattr(params, switch, False)
    with tempfile.TemporaryDirectory(prefix="agent-memory-", ignore_cleanup_errors=True) as folder:
        params.hostnames = [os.path.join(folder, "s.sock")]
        if len(os.fsencode(params.hostnames[0])) > 100:
            raise EmbeddingError(f"the path of the folder for temporary files is too long: {folder}")
        server = module.Server(params)

    def embed(text: str) -> list[float]:
        answer = server.handle_embeddings({"input": [text]})
        if "data" in answer:
            # JSON has null for NaN.
            return [math.nan if value is None else value for value in answer["data"][0]["embedding"]]
        message = str(answer.get("error", {}).get("message", answer))
        if too_long := re.search(r"\((\d+) tokens\)", message):
            raise _TooLong(int(too_long[1]))
        raise RuntimeError(message)

    return embed


def _read_header(path: Path) -> tuple[int, int]:
    """The width of a GGUF file's vectors, and its context in tokens; raises EmbeddingError."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise EmbeddingError(f"{path} is not a file")
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise EmbeddingError(f"{path} is not a GGUF file")
            size = min(status.st_size, _HEADER_BYTES)
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as head:
                names = (b"pooling_type", b"embedding_length", b"context_length")
                pooling, width, context = [_metadata(head, name) for name in names]
    except FileNotFoundError as error:
        raise ProviderMissing(
            f"there is no file {path}; --model or AGENT_MEMORY_LOCAL_MODEL says where one is"
        ) from error
    except (OSError, ValueError) as error:
        raise EmbeddingError(f"{path} cannot be read ({getattr(error, 'strerror', error)})") from error
    if pooling not in _POOLINGS or not width or not context:
        raise EmbeddingError(f"{path} is not an embedding model (it has no pooling), or it is damaged")
    return width, context


def _metadata(head: mmap.mmap, name: bytes) -> int:
    """An integer of GGUF's metadata, less than 2**32; 0 where it is not.

    Before the key, `architecture.name`, is its length in 8 bytes; behind it the type, that of
    an integer, and the value, whose lower bytes come first.
    """
    found = re.search(rb"\0[\w-]+\.%s[\x04\x05\x0a\x0b]\0\0\0(.{4})" % name, head, re.DOTALL)
    return int.from_bytes(found[1], "little") if found else 0
