"""A local server that speaks OpenAI's and Gemini's protocols, and misbehaves on command."""

import json
import re
import threading
import time
from dataclasses import dataclass
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DIMS = 16


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict
    body: dict
    texts: list
    #: Seconds, monotonic.
    at: float


def vector(text, dims=DIMS):
    """A hashed bag of words, not of unit length, that is never zero."""
    values = [0.001] * dims
    for word in re.findall(r"\w", text.casefold()) + re.findall(r"\w+", text.casefold()):
        digest = sha256(word.encode()).digest()
        values[digest[0] % dims] += 1 if digest[1] % 2 else -1
    return values


class EmbeddingServer:
    """Each request takes the next step of `script`; when that is empty, all is well.

    A step is a name of a method below, or a tuple of it and its arguments. `refuses` is asked
    of each text, and `max_texts` is how many a request may have: a 400 where one says no.
    A text that it `spoils` has a vector of `spoilt_value`.
    """

    def __init__(self):
        self.script = []
        self.always = None
        self.refuses = lambda text: False
        self.max_texts = 10_000
        self.spoils = lambda text: False
        self.spoilt_value = float("nan")
        self.dims = DIMS
        self.requests = []
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        self.gone = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments):
                pass

            def do_POST(self):
                owner.handle(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def close(self):
        self.gone.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def texts(self):
        """Every text of every request."""
        return [text for request in self.requests for text in request.texts]

    def handle(self, http):
        with self.lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            body = json.loads(http.rfile.read(int(http.headers["content-length"])))
            if "requests" in body:
                texts = [one["content"]["parts"][0]["text"] for one in body["requests"]]
            else:
                texts = body["input"]
            with self.lock:
                headers = {name.lower(): value for name, value in http.headers.items()}
                self.requests.append(Request(http.path, headers, body, texts, time.monotonic()))
                step = self.script.pop(0) if self.script else self.always
            name, *arguments = (step,) if isinstance(step, str) else step or ("well",)
            getattr(self, name)(http, body, texts, *arguments)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            with self.lock:
                self.in_flight -= 1

    def answer(self, http, status, content, headers=(), kind="application/json"):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        http.send_response(status)
        for name, value in (
            ("content-type", kind),
            ("content-length", str(len(content))),
            *dict(headers).items(),
        ):
            http.send_header(name, value)
        http.end_headers()
        http.wfile.write(content)

    def vectors(self, http, body, vectors, indexes=None):
        """Vectors in the protocol that was asked in."""
        if "requests" in body:
            self.answer(http, 200, {"embeddings": [{"values": values} for values in vectors]})
            return
        data = [
            {"object": "embedding", "index": index, "embedding": values}
            for index, values in zip(indexes or range(len(vectors)), vectors, strict=True)
        ]
        self.answer(http, 200, {"object": "list", "model": body["model"], "data": data})

    # The steps

    def well(self, http, body, texts):
        if len(texts) > self.max_texts or any(self.refuses(text) for text in texts):
            self.answer(http, 400, {"error": {"message": "the input is too large", "code": None}})
            return
        vectors = [vector(text, self.dims) for text in texts]
        for index, text in enumerate(texts):
            if self.spoils(text):
                vectors[index] = [self.spoilt_value] * self.dims
        self.vectors(http, body, vectors)

    def status(self, http, body, texts, number, headers=(), message="something is wrong", **more):
        self.answer(http, number, {"error": {"message": message, **more}}, headers)

    def rate_limit(self, http, body, texts, seconds):
        message = "Rate limit reached. You can add a payment method in your billing settings."
        self.status(http, body, texts, 429, {"retry-after": str(seconds)}, message)

    def gemini_rate_limit(self, http, body, texts, delay, quota):
        self.status(
            http,
            body,
            texts,
            429,
            message="You exceeded your current quota, please check your plan and billing details.",
            status="RESOURCE_EXHAUSTED",
            details=[
                {"violations": [{"quotaId": f"EmbedContentRequests{quota}PerProject"}]},
                {"retryDelay": delay},
            ],
        )

    def quota(self, http, body, texts):
        message = "You exceeded your current quota, please check your plan and billing details."
        self.status(http, body, texts, 429, message=message, code="insufficient_quota")

    def bad_key(self, http, body, texts):
        # As careless as a server can be.
        key = http.headers.get("authorization", http.headers.get("x-goog-api-key"))
        self.status(http, body, texts, 401, message=f"Incorrect API key provided: {key}")

    def echoes(self, http, body, texts, status):
        """An error that repeats all headers."""
        self.status(http, body, texts, status, message=str(dict(http.headers.items())))

    def slow(self, http, body, texts, seconds):
        self.gone.wait(seconds)
        self.well(http, body, texts)

    def hang(self, http, body, texts):
        self.gone.wait(60)
        http.close_connection = True

    def drip(self, http, body, texts):
        """An answer that comes byte by byte, and would take a minute."""
        http.send_response(200)
        http.send_header("content-length", "600")
        http.end_headers()
        while not self.gone.wait(0.1):
            http.wfile.write(b" ")
            http.wfile.flush()

    def drop(self, http, body, texts):
        http.close_connection = True

    def cut(self, http, body, texts):
        http.send_response(200)
        http.send_header("content-length", "1000")
        http.end_headers()
        http.wfile.write(b'{"data": [')
        http.close_connection = True

    def html(self, http, body, texts):
        self.answer(http, 200, b"<html><body>Log in to the network</body></html>", kind="text/html")

    def json(self, http, body, texts, content):
        self.answer(http, 200, content)

    def redirect(self, http, body, texts, where):
        self.answer(http, 302, {}, {"location": where})

    def backwards(self, http, body, texts):
        indexes = list(range(len(texts)))[::-1]
        self.vectors(http, body, [vector(texts[index], self.dims) for index in indexes], indexes)

    def too_few(self, http, body, texts):
        self.vectors(http, body, [vector(text, self.dims) for text in texts[:-1]])

    def width(self, http, body, texts, dims):
        self.vectors(http, body, [vector(text, dims) for text in texts])

    def bad_vectors(self, http, body, texts, value, which=slice(None)):
        """Vectors of a value, NaN, Infinity or 0, for some of the texts."""
        vectors = [vector(text, self.dims) for text in texts]
        for index in range(len(texts))[which]:
            vectors[index] = [value] * self.dims
        self.vectors(http, body, vectors)
