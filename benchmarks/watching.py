"""How long after a save a change is found, and what waiting for one costs.

Keeps the index of a folder of synthetic notes fresh by `index --watch` in a process of its own, in
a temporary directory, with the embedded model.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click

from datasette_agent_memory.connections import open_readonly

#: No save takes longer to be found, and no index longer to be made.
PATIENCE_S = 300


@click.command()
@click.option("--files", default=1000, show_default=True, help="Notes in the folder.")
@click.option("--saves", default=10, show_default=True, help="How often one is saved.")
@click.option("--idle", "idle_s", default=60, show_default=True, help="Seconds of waiting that are measured.")
def main(files: int, saves: int, idle_s: int) -> None:
    """Print how long after a save it is found, and the share of a processor while nothing changes."""
    with TemporaryDirectory(prefix="agent-memory-watching-") as folder:
        notes = Path(folder) / "agent" / "memory"
        notes.mkdir(parents=True)
        for number in range(files):
            (notes / f"{number}.md").write_text(f"# Note {number}\n\nThe heron of the day {number}.\n")
        database = Path(folder) / "memory.db"
        command = [sys.executable, "-m", "datasette", "agent-memory", "index", str(notes.parent)]
        process = subprocess.Popen(
            [*command, "-d", str(database), "--provider", "embedded", "--watch"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        try:
            while "Watching" not in (line := process.stderr.readline()):
                if not line:
                    raise click.ClickException("index --watch has ended")
            times = [_save_until_found(notes / "0.md", database, f"w{number}x") for number in range(saves)]
            click.echo(
                f"{files} notes: a save is found after {median(times):.2f} s, "
                f"{min(times):.2f} to {max(times):.2f} of {saves}"
            )
            before = _cpu_s(process.pid)
            time.sleep(idle_s)
            used = _cpu_s(process.pid) - before
            click.echo(f"Waiting for {idle_s} s took {used:.2f} s of a processor, {used / idle_s:.2%}")
        finally:
            process.terminate()
            process.wait()


def _save_until_found(file: Path, database: Path, word: str) -> float:
    started = time.perf_counter()
    file.write_text(f"# Note\n\nA new word: {word}.\n")
    with open_readonly(database) as conn:
        while time.perf_counter() - started < PATIENCE_S:
            query = "select 1 from chunks_fts where chunks_fts match ?"
            if conn.execute(query, (word,)).fetchone():
                return time.perf_counter() - started
            time.sleep(0.01)
    raise click.ClickException("a save was not found")


def _cpu_s(pid: int) -> float:
    """Seconds of a processor that a process has used; Linux alone tells them of another process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError as error:
        raise click.ClickException("what a process costs is measured on Linux alone") from error
    ticks: int = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks


if __name__ == "__main__":
    main()
