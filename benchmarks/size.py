"""How large an index is, and how much smaller in its compact form.

Indexes the sample memory with the embedded model, and a synthetic memory of many chunks with
vectors of 512 numbers that hashes of the texts give, both in a temporary directory.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np

import datasette_agent_memory
from datasette_agent_memory.compact_form import COMPACT_DECIMALS
from datasette_agent_memory.compaction import compact
from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.doctor import diagnose
from datasette_agent_memory.embeddings.base import Provider, ProviderSettings, Vectors, unit_length
from datasette_agent_memory.embeddings.embedded import EmbeddedProvider
from datasette_agent_memory.files import index_of
from datasette_agent_memory.ingest import IndexSettings, update_index
from datasette_agent_memory.sizes import read_sizes, readable

CHUNKS_A_FILE = 12
WORDS = ["backup", "billing", "canal", "deploy", "heron", "incident", "ledger", "passport", "server"]


class HashedProvider(Provider):
    """Vectors of no meaning, as wide as those of the embedded model."""

    name = "hashed"
    in_process = True
    model = "sha256"
    dims = 512
    max_batch_texts = 1000
    max_batch_tokens = 1_000_000

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        seeds = (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts)
        return unit_length(np.array([np.random.default_rng(seed).normal(size=self.dims) for seed in seeds]))

    def embed_query(self, text: str) -> Vectors:
        return self.embed_documents([text])[0]


def write_memory(root: Path, chunks: int) -> None:
    random = np.random.default_rng(20260105)
    (root / "memory").mkdir(parents=True)
    for number in range(chunks // CHUNKS_A_FILE):
        lines = [
            f"{line} " + " ".join(random.choice(WORDS, 18))
            # A chunk has 1,600 characters, of which 320 are its neighbour's.
            for line in range(CHUNKS_A_FILE * 10)
        ]
        (root / f"memory/{number:05}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def show(what: str, database: Path) -> None:
    with open_readonly(database) as conn:
        index = index_of(conn)
        size = read_sizes(conn, index)
    tables = ", ".join(f"{name} {readable(bytes_)}" for name, bytes_ in size["tables"].items())
    click.echo(f"{what}: {index.chunk_count:,} chunks, {readable(size['file'])} ({tables})")


def measure(name: str, root: Path, database: Path, provider: Provider) -> None:
    update_index(database, IndexSettings(root, providers=[provider]))
    show(name, database)
    for what, action in (("inspected", diagnose), ("compacted", compact), ("inspected", diagnose)):
        started = time.perf_counter()
        done = action(database)
        click.echo(f"  {what} in {time.perf_counter() - started:.1f} s")
        assert not getattr(done, "problems", []), done
    show(f"{name}, compact", database)


def measure_digits(chunks: int = 10_000, queries: int = 300) -> None:
    """What fewer decimals change, of random unit vectors, whose cosines lie closer to one another than
    those of texts."""
    random = np.random.default_rng(1)
    vectors, asked = (
        unit_length(random.standard_normal((count, 512)).astype(np.float32)) for count in (chunks, queries)
    )
    exact = vectors.astype(np.float64) @ asked.T
    for decimals in (COMPACT_DECIMALS, 5, 4):
        rounded = np.round(vectors.astype(np.float64), decimals)
        rounded /= np.linalg.norm(rounded, axis=1, keepdims=True)
        cosines = rounded @ asked.T
        changed = {
            k: np.mean(
                [set(_best(e, k)) != set(_best(c, k)) for e, c in zip(exact.T, cosines.T, strict=True)]
            )
            for k in (6, 24)
        }
        click.echo(
            f"{decimals} decimals: a cosine differs by at most {np.abs(cosines - exact).max():.0e}; the "
            f"first 6 are others for {changed[6]:.1%} of {queries} queries, the first 24 for "
            f"{changed[24]:.1%}"
        )


def _best(cosines: Vectors, k: int) -> list[int]:
    return [int(number) for number in np.argsort(-cosines)[:k]]


@click.command()
@click.option("--chunks", default=60_000, show_default=True, help="The chunks of the synthetic memory.")
def main(chunks: int) -> None:
    """Measure the sizes of two indexes."""
    with TemporaryDirectory() as folder:
        sample = Path(datasette_agent_memory.__file__).parent / "sample"
        measure("sample", sample, Path(folder) / "sample.db", EmbeddedProvider(ProviderSettings()))
        write_memory(Path(folder) / "large", chunks)
        measure_digits()
        measure("large", Path(folder) / "large", Path(folder) / "large.db", HashedProvider())


if __name__ == "__main__":
    main()
