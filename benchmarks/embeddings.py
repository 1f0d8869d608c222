"""What embedding costs on this machine, by provider, as ratios to a reference run beside it.

    python benchmarks/embeddings.py [--gguf FILE]...

Remote providers are measured at a local server that takes a fixed time to answer, since
what they themselves take is theirs: how near an index of many notes comes to the time that
the server alone would need, when four calls are under way at once.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import click

from datasette_agent_memory.embeddings.base import Provider
from datasette_agent_memory.embeddings.batches import estimate_tokens
from datasette_agent_memory.embeddings.chain import Providers
from datasette_agent_memory.ingest import IndexSettings, update_index

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from embedding_server import EmbeddingServer, vector

REPEAT = 3
#: Nearly as long as a chunk can be.
CHUNK_CHARS = 1500
ANSWER_S = 0.1


def notes(folder: Path, count: int) -> Path:
    """Notes of one chunk each, no two of which begin alike."""
    words = "the backup of server canal heron certificate expired in when restore note owner".split()  # noqa: SIM905
    for number in range(count):
        text = f"# Note {number}\n\n" + " ".join(words[(number * 7 + n * n) % len(words)] for n in range(400))
        (folder / f"{number:05}.md").write_text(text[: CHUNK_CHARS - 1] + "\n", encoding="utf-8")
    return folder


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def index(root: Path, provider: Provider) -> None:
    with tempfile.TemporaryDirectory() as folder:
        update_index(Path(folder) / "memory.db", IndexSettings(root, providers=[provider]))


def measure_in_process(provider: Provider, count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = notes(Path(folder), count)
        texts = [file.read_text("utf-8") for file in sorted(root.iterdir())]
        load = seconds(provider.load)
        pairs = []
        for _ in range(REPEAT):
            size = provider.max_batch_texts
            batches = [texts[start : start + size] for start in range(0, len(texts), size)]
            bare = seconds(lambda batches=batches: [provider.embed_documents(batch) for batch in batches])
            pairs.append((seconds(lambda: index(root, provider)), bare))
        query = median(seconds(lambda n=n: provider.embed_query(f"which owner {n}")) for n in range(20))
    alone = median(bare for _, bare in pairs)
    ratio = median(own / bare for own, bare in pairs)
    click.echo(
        f"| {provider} | {provider.dims} | {load:.1f} s | {count / alone:.0f} chunks/s | "
        f"{query * 1000:.0f} ms | {ratio:.2f} |"
    )


def measure_remote(count: int) -> None:
    server = EmbeddingServer()
    # One vector for all: to make them is not this process's work otherwise.
    one = vector("heron", 1536)

    def answer(http: Any, body: Any, texts: list[str]) -> None:
        time.sleep(ANSWER_S)
        server.vectors(http, body, [one] * len(texts))

    server.well = answer
    os.environ |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "none"}
    provider = Providers().get("openai")
    with tempfile.TemporaryDirectory() as folder:
        root = notes(Path(folder), count)
        tokens = sum(estimate_tokens(file.read_text("utf-8")) for file in root.iterdir())
        own = [seconds(lambda: index(root, provider)) for _ in range(REPEAT)]
    requests = len(server.requests) // REPEAT
    at_best = math.ceil(requests / provider.max_concurrency) * ANSWER_S
    provider.close()
    server.close()
    click.echo(
        f"\n{count:,} chunks, {tokens:,} tokens, went in {requests} requests, at most "
        f"{server.most_in_flight} at once. With answers after {ANSWER_S:g} s the index took "
        f"{median(own):.1f} s, {median(own) / at_best:.1f} x the {at_best:.1f} s of the answers alone."
    )


@click.command(help=__doc__)
@click.option("--chunks", default=200, show_default=True, help="Notes of one chunk each.")
@click.option(
    "--gguf", multiple=True, type=click.Path(exists=True), help="An embedding model to measure too."
)
def main(chunks: int, gguf: tuple[str, ...]) -> None:
    click.echo("| model | dims | load | alone | a query | index, to alone |")
    click.echo("|---|--:|--:|--:|--:|--:|")
    providers = Providers()
    measure_in_process(providers.get("embedded"), chunks)
    for file in gguf:
        measure_in_process(providers.get("local", file), chunks // 4)
    measure_remote(chunks * 10)


if __name__ == "__main__":
    main()
