#!/usr/bin/env python3
"""Compare `preset=openclaw` with what OpenClaw 2026.3.31 itself answered.

  openclaw_replay.py FOLDER

FOLDER holds db/2026.3.31-*.sqlite as OpenClaw wrote them, search/*.json with its answers, and
embed_server.py, the embedding server that both ask. Prints, for each set of runs, how many
have the same chunks with the same scores, to 2e-4; ties may be swapped.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.search import ask

#: The runs, the database that each was made with, and its configuration.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "base": ("base", {}),
    "trigram": ("trigram", {}),
    "mmr": ("base", {"mmr": 1}),
    # The time of day at which the runs were made is known from them alone.
    "decay": ("base", {"decay": 1, "now": "2026-11-30T10:02:00Z"}),
    "ftsonly": ("ftsonly-novec", {}),
    "sessions": ("sessions", {}),
    "vectoronly": ("base", {"mode": "vector"}),
}
TOLERANCE = 2e-4
#: Where the server stood when the databases were made: they know its vectors by its address.
PORT = 18999


def main(folder: Path) -> None:
    os.environ |= {"OPENAI_BASE_URL": f"http://127.0.0.1:{PORT}/v1", "OPENAI_API_KEY": "none"}
    with tempfile.TemporaryDirectory() as temporary:
        server = subprocess.Popen([sys.executable, folder / "embed_server.py", str(PORT), f"{temporary}/log"])
        try:
            _wait_for_server()
            print("| runs | the same | of |\n|---|--:|--:|")
            for name, (database, options) in RUNS.items():
                copy = Path(temporary) / f"{name}.sqlite"
                shutil.copy(folder / f"db/2026.3.31-{database}.sqlite", copy)
                runs = json.loads((folder / f"search/{name}.json").read_text(encoding="utf-8"))["runs"]
                with open_readonly(copy) as conn:
                    same = sum(_is_same(conn, run, options) for run in runs)
                print(f"| {name} | {same} | {len(runs)} |")
        finally:
            server.terminate()


def _is_same(conn: Any, run: dict[str, Any], options: dict[str, Any]) -> bool:
    given = {"k": run.get("maxResults", 6), "min_score": run.get("minScore", 0.35), **options}
    hits = ask(conn, run["query"], {"preset": "openclaw", **given}).hits
    expected = run["results"]
    if len(hits) != len(expected):
        return False
    if any(abs(hit.score - one["score"]) > TOLERANCE for hit, one in zip(hits, expected, strict=True)):
        return False
    ours = Counter((hit.path, hit.start_line, hit.end_line) for hit in hits)
    theirs = Counter((one["path"], one["startLine"], one["endLine"]) for one in expected)
    if ours == theirs:
        return True
    # At the cut, another of equal scores may be in.
    last = expected[-1]["score"]
    differing = [hit.score for hit in hits if (hit.path, hit.start_line, hit.end_line) not in theirs]
    return all(abs(score - last) <= TOLERANCE for score in differing)


def _wait_for_server() -> None:
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", PORT)) == 0:
                return
        time.sleep(0.1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
