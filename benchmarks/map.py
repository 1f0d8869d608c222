"""How long the map of a large memory takes, as ratios: in the server to reading the vectors alone,
and in the browser to filling as many squares on a plain canvas beside it.

Makes a database of synthetic chunks in a temporary directory, with vectors in clusters, so that
every run measures the same. The browser is Chromium, without which its rows are left out.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click
import numpy as np
from datasette.app import Datasette

from datasette_agent_memory import points
from datasette_agent_memory.cli import _free_port
from datasette_agent_memory.connections import open_readonly, open_writable
from datasette_agent_memory.schema import create_tables, create_vec_table, write_meta

SEED = 20260105
CLUSTERS = 12
#: No browser and no server of ours takes longer to start.
START_S = 60

#: Run in the page: seconds of each measure, as medians. A pixel is read after each, so that
#: drawing is done and not only asked for.
IN_BROWSER = """async ({ count, repeat }) => {
  const element = document.getElementById("am-map");
  while (element.memoryMap?.plot.scales.x.min == null) await new Promise(requestAnimationFrame);
  const map = element.memoryMap;
  const { width, height } = map.plot.ctx.canvas;
  const plain = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d");
  plain.fillStyle = "#0072b2";
  let seed = 1;
  const random = () => (seed = seed * 48271 % 2147483647) / 2147483647;
  const places = Array.from({ length: count }, () => [random() * width, random() * height]);
  const finish = ctx => ctx.getImageData(0, 0, 1, 1);
  const median = async action => {
    const times = [];
    for (let run = 0; run <= repeat; run++) {
      const started = performance.now();
      await action(run);
      times.push(performance.now() - started);
    }
    return times.slice(1).sort((a, b) => a - b)[repeat >> 1] / 1000;
  };
  const overlay = map.overlay.getContext("2d");
  return {
    squares: await median(() => {
      plain.clearRect(0, 0, width, height);
      for (const [left, top] of places) plain.fillRect(left, top, 4, 4);
      finish(plain);
    }),
    redraw: await median(async () => {
      map.redraw();
      // uPlot draws when the task is done.
      await new Promise(resolve => queueMicrotask(() => queueMicrotask(resolve)));
      finish(map.plot.ctx);
    }),
    hover: await median(run => {
      const { left, top } = map.position(run * 97 % count);
      map.hover(left, top);
      finish(overlay);
    }),
  };
}"""


def make_database(file: Path, chunks: int, width: int) -> None:
    rng = np.random.default_rng(SEED)
    centres = rng.standard_normal((CLUSTERS, width))
    vectors = centres[np.arange(chunks) % CLUSTERS] + rng.standard_normal((chunks, width))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype("<f4")
    days = np.datetime64("2024-01-01") + rng.integers(0, 700, chunks)
    with open_writable(file) as conn:
        conn.execute("begin")
        create_tables(conn)
        create_vec_table(conn, width)
        write_meta(conn, {"provider": "none", "model": "synthetic", "vectorDims": width})
        for number, (vector, day) in enumerate(zip(vectors, days, strict=True)):
            id = f"{number:08x}" * 8
            path = f"memory/{day}.md" if number % 5 else f"notes/topic-{number % 40}.md"
            embedding = json.dumps([round(float(value), 6) for value in vector])
            conn.execute(
                "insert into chunks values (?, ?, 'memory', 1, 9, ?, 'synthetic', ?, ?, 0)",
                (id, path, id, f"Note {number}", embedding),
            )
            conn.execute("insert into chunks_vec (id, embedding) values (?, ?)", (id, vector.tobytes()))
        conn.execute("commit")


def seconds(action: Callable[[], object], repeat: int) -> float:
    def once() -> float:
        started = time.perf_counter()
        action()
        return time.perf_counter() - started

    once()
    return median(once() for _ in range(repeat))


def in_server(file: Path, repeat: int) -> Iterator[tuple[str, float, float]]:
    with open_readonly(file) as conn:
        read = seconds(lambda: conn.execute("select id, embedding from chunks_vec").fetchall(), repeat)
    datasette = Datasette([str(file)])
    asyncio.run(datasette.invoke_startup())

    def get() -> None:
        response = asyncio.run(datasette.client.get(f"/{file.stem}/-/agent-memory/map.json"))
        assert response.json()["problem"] is None, response.json()["problem"]

    def get_first() -> None:
        points._maps.clear()
        get()

    yield "`map.json`, the first time", seconds(get_first, repeat), read
    yield "`map.json`, again", seconds(get, repeat), read


@contextmanager
def served(file: Path) -> Iterator[str]:
    port = _free_port(0)
    command = [sys.executable, "-m", "datasette", str(file), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and server.poll() is None:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/{file.stem}/-/agent-memory"
    finally:
        server.terminate()
        server.wait()


def in_browser(file: Path, chunks: int, repeat: int) -> Iterator[tuple[str, float, float]]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        return
    from playwright.sync_api import sync_playwright

    with served(file) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{address}/map")
        took = page.evaluate(IN_BROWSER, {"count": chunks, "repeat": repeat})
        browser.close()
    yield "draw all points", took["redraw"], took["squares"]
    yield "hover a point", took["hover"], took["squares"]


@click.command(help=__doc__)
@click.option("--chunks", default=points.MAX_POINTS, show_default=True, help="Chunks of the memory.")
@click.option("--width", default=384, show_default=True, help="Width of the vectors.")
@click.option("--repeat", default=5, show_default=True, help="Timed runs, of which the median counts.")
def main(chunks: int, width: int, repeat: int) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "memory.db"
        make_database(file, chunks, width)
        click.echo(f"| {chunks:,} chunks of {width} numbers | ms | ratio | to |")
        click.echo("|---|---:|---:|---|")
        for name, took, base in in_server(file, repeat):
            click.echo(f"| {name} | {took * 1000:.1f} | {took / base:.2f} | reading the vectors |")
        for name, took, base in in_browser(file, chunks, repeat):
            click.echo(f"| {name} | {took * 1000:.1f} | {took / base:.2f} | as many squares |")


if __name__ == "__main__":
    main()
