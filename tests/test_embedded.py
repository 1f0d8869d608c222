"""The embedded model itself."""

import subprocess
import sys

import numpy as np
import pytest

from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.embeddings import embedded
from datasette_agent_memory.embeddings.base import EmbeddingError, ProviderSettings
from datasette_agent_memory.embeddings.chain import Providers
from datasette_agent_memory.search import search


@pytest.fixture(scope="module")
def provider():
    return Providers().choose("auto").providers[0]


def test_meaning_is_near_across_words_and_languages(provider):
    texts = ["the backup of the server failed", "服务器备份失败了", "she baked a birthday cake"]
    backup, chinese, cake = provider.embed_documents(texts)
    query = provider.embed_query("could not restore the machine's data")
    assert backup @ chinese > 0.5 > backup @ cake + 0.2
    assert query @ backup > query @ cake


def test_documents_in_threads_are_the_same_as_alone(provider):
    texts = [f"note {number} about {'canals ' * number}" for number in range(23)] + ["", "🚀", "漢字"]
    together = provider.embed_documents(texts)
    assert together.shape == (26, 512) and together.dtype == np.float32
    alone = np.array([provider.embed_query(text) for text in texts])
    assert np.abs(together - alone).max() < 1e-5
    assert np.abs(np.linalg.norm(together, axis=1) - 1).max() < 1e-6
    assert provider.embed_documents([]).shape == (0, 512)


def test_no_network_is_touched():
    code = """
import socket
def refuse(*arguments, **kwargs):
    raise AssertionError("the network was touched")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
from datasette_agent_memory.embeddings.chain import Providers
provider = Providers().choose("auto").providers[0]
print(provider.embed_documents(["a note"]).shape, provider.embed_query("a question").shape)
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert output.returncode == 0, output.stderr
    assert output.stdout.strip() == "(1, 512) (512,)"


def test_other_weights_are_refused(monkeypatch):
    monkeypatch.setitem(embedded._SHA256, "weights.npz", "0" * 64)
    with pytest.raises(EmbeddingError, match=r"weights\.npz is not the one"):
        embedded.EmbeddedProvider(ProviderSettings()).load()


@pytest.mark.parametrize(
    "q, path",
    [
        ("WH-401 certificate expired", "memory/2026-03-14-incident.md"),
        ("why did we leave MySQL for Postgres", "memory/2026-02-17.md"),
        ("restic wrong password or no key found", "memory/2026-01-25-backup-restore.md"),
        ("food dislikes", "MEMORY.md"),
        ("潮汐时间差八小时", "memory/2026-10-13.md"),
        ("数据库磁盘被日志占满", "memory/2026-07-07-outage.md"),
        ("学中文 声调", "memory/2026-02-28.md"),
        # Asked in Chinese of an English note: no keyword is shared.
        ("证书过期 扫码枪离线", "memory/2026-03-14-incident.md"),
    ],
)
def test_the_sample_memory_answers(sample_database, q, path):
    with open_readonly(sample_database) as conn:
        answer = search(conn, q)
    assert answer.options.mode == "hybrid"
    assert answer.hits[0].path == path
    assert answer.hits[0].vector_score is not None
