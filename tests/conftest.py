"""Fixtures shared by all tests."""

import hashlib
import os
import re
from pathlib import Path

import numpy as np
import pytest
from datasette.app import Datasette
from datasette.version import __version__ as datasette_version
from embedding_server import EmbeddingServer

import datasette_agent_memory
from datasette_agent_memory.connections import load_sqlite_vec, open_readonly, open_writable, sqlite3
from datasette_agent_memory.embeddings import batches, chain
from datasette_agent_memory.embeddings.base import Provider
from datasette_agent_memory.embeddings.queries import QUERY_VECTORS
from datasette_agent_memory.ingest import IndexSettings, update_index

pytest_plugins = ["browsing"]

#: A key that is nowhere to be found again.
KEY = "sk-test-0123456789abcdefSECRET"

SAMPLE = Path(datasette_agent_memory.__file__).parent / "sample"


def _can_load_sqlite_vec() -> bool:
    conn = sqlite3.connect(":memory:")
    try:
        return load_sqlite_vec(conn)
    finally:
        conn.close()


HAS_SQLITE_VEC = _can_load_sqlite_vec()


def pytest_report_header():
    with_vec = "with" if HAS_SQLITE_VEC else "without"
    return f"datasette {datasette_version}, SQLite {sqlite3.sqlite_version} {with_vec} sqlite-vec"


def pytest_collection_modifyitems(items):
    without = pytest.mark.skipif(not HAS_SQLITE_VEC, reason="sqlite-vec cannot be loaded in this Python")
    for item in items:
        if "needs_sqlite_vec" in item.keywords:
            item.add_marker(without)


class TinyProvider(Provider):
    """A deterministic model for tests that are not about models: hashed bags of words."""

    name = "tiny"
    in_process = True
    model = "tiny-bag"
    dims = 32

    def __init__(self):
        self.embedded = []

    def embed_documents(self, texts):
        self.embedded += texts
        return np.array([self.embed_query(text) for text in texts], dtype=np.float32).reshape(-1, self.dims)

    def embed_query(self, text):
        vector = np.full(self.dims, 1e-3, dtype=np.float32)
        for word in re.findall(r"\w", text.casefold()) + re.findall(r"\w+", text.casefold()):
            digest = hashlib.sha256(word.encode()).digest()
            vector[digest[0] % self.dims] += 1 if digest[1] % 2 else -1
        return vector / np.linalg.norm(vector)


@pytest.fixture(autouse=True)
def isolated(monkeypatch):
    """No key of the machine's reaches a test, and no provider is kept from one to the next."""
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_BASE_URL")) or name.startswith("AGENT_MEMORY_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AGENT_MEMORY_LOCAL_MODEL", "no-such-file.gguf")
    yield
    QUERY_VECTORS.clear()


@pytest.fixture
def tiny(monkeypatch):
    """The tiny provider, known to the package by its name."""
    provider = TinyProvider()
    monkeypatch.setitem(chain.PROVIDERS, "tiny", lambda settings: provider)
    chain.forget_providers()
    yield provider
    chain.forget_providers()


@pytest.fixture
def server(monkeypatch):
    """A server that speaks OpenAI's and Gemini's protocols; openai and gemini are set to it."""
    server = EmbeddingServer()
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    # Waits that nobody asked for are short.
    monkeypatch.setattr(batches, "_FIRST_WAIT_S", 0.01)
    chain.forget_providers()
    yield server
    chain.forget_providers()
    server.close()


@pytest.fixture
def openai(server):
    """The provider openai, at the local server."""
    provider = chain.Providers().get("openai", "test-16")
    yield provider
    provider.close()


@pytest.fixture
def no_sqlite_vec(monkeypatch):
    """A Python whose sqlite3 module loads no extension."""
    monkeypatch.setattr("datasette_agent_memory.connections.load_sqlite_vec", lambda conn: False)


@pytest.fixture
def workspace(tmp_path):
    """Write files of a workspace, by path, and return its folder."""
    root = tmp_path / "workspace"

    def write(files=None, **more):
        for path, text in {**(files or {}), **more}.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return root

    return write


@pytest.fixture
def database(tmp_path):
    return tmp_path / "memory.db"


@pytest.fixture
def index(tmp_path, database):
    """Index a folder into the database and return the report."""

    def run(root, provider=None, **settings):
        return update_index(database, IndexSettings(root, providers=[provider], **settings))

    return run


@pytest.fixture
def rows(database):
    """The rows of a query on the database."""

    def run(sql, params=()):
        with open_readonly(database) as conn:
            return [tuple(row) for row in conn.execute(sql, params)]

    return run


@pytest.fixture
def agreement(rows):
    """Assert that chunks, full-text and vector tables hold the same chunks, and return their number."""

    def check():
        chunks = sorted(rows("select id from chunks"))
        assert sorted(rows("select id from chunks_fts")) == chunks
        if rows("select 1 from sqlite_master where name = 'chunks_vec'"):
            assert sorted(rows("select id from chunks_vec")) == chunks
        assert set(rows("select path from chunks")) <= set(rows("select path from files"))
        assert rows("pragma integrity_check") == [("ok",)]
        rows("select count(*) from chunks_fts where chunks_fts match 'integrity'")
        return len(chunks)

    return check


@pytest.fixture
def change(database):
    """Run statements on the database, as nobody should."""

    def run(*statements):
        with open_writable(database) as conn:
            for statement in statements:
                conn.execute(statement)

    return run


@pytest.fixture
def make_datasette():
    """Datasette instances, whose connections are closed after the test."""
    made = []

    def make(*files, **kwargs):
        datasette = Datasette([str(file) for file in files], **kwargs)
        made.append(datasette)
        return datasette

    yield make
    for datasette in made:
        for database in datasette.databases.values():
            database.close()


@pytest.fixture(scope="session")
def sample_database(tmp_path_factory):
    """The sample memory, indexed with the embedded model."""
    file = tmp_path_factory.mktemp("sample") / "memory.db"
    update_index(file, IndexSettings(SAMPLE, providers=chain.Providers().choose("embedded").providers))
    return file
