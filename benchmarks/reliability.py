"""How an index fares: runs that are killed, readers beside indexers, and files of any content.

Real processes and real files in a temporary directory, with the checks of the tests (tests/survival.py
and tests/odd_files.py): any damage, crash or lost text ends it with an error. The moments of the kills
are random, the notes and their changes are the same in every run. Prints the tables of docs/reliability.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from hypothesis import HealthCheck, Phase, given, settings
from odd_files import CONTENTS, survive
from serving import Server
from survival import Readers, Survival, Worker, check

EMBEDDED = ("--provider", "embedded")
KEYWORDS = ("--provider", "none")
#: What is killed: the options of each run, and whether it begins without a database.
KINDS: dict[str, tuple[Sequence[str], bool]] = {
    "a first run, keywords only": (KEYWORDS, True),
    "a first run with vectors": (EMBEDDED, True),
    "a run after changes, keywords only": (KEYWORDS, False),
    "a run after changes, with vectors": (EMBEDDED, False),
    "a rebuild (`--force`)": (("--force",), False),
    "a rebuild with chunks of another size": ((*EMBEDDED, "--chunk-tokens", "100"), False),
    "from vectors to keywords only, and back": ((*KEYWORDS, "--force"), False),
}


@click.command()
@click.option("--runs", default=60, show_default=True, help="Runs to kill, of each kind.")
@click.option("--rounds", default=20, show_default=True, help="Rounds of two indexers beside readers.")
@click.option("--files", default=10_000, show_default=True, help="Files of random content.")
def main(runs: int, rounds: int, files: int) -> None:
    if runs:
        table("Killed runs", ("run", "started", "killed"), lambda: killed_runs(runs))
    if rounds:
        table("Readers", ("rounds", "runs of indexers", "answers", "failures"), lambda: [readers(rounds)])
    if files:
        table("Files of any content", ("what", "number"), lambda: any_files(files))


def table(title: str, columns: Sequence[str], measure: Callable[[], Sequence[Sequence[Any]]]) -> None:
    started = time.perf_counter()
    rows = measure()
    click.echo(f"\n## {title} ({time.perf_counter() - started:,.0f} s)\n")
    click.echo("| " + " | ".join(columns) + " |\n|---|" + "--:|" * (len(columns) - 1))
    for row in rows:
        click.echo("| " + " | ".join(f"{one:,}" if isinstance(one, int) else one for one in row) + " |")


def killed_runs(runs: int) -> list[Sequence[Any]]:
    """Each row is of a kind; the checks raise at the first damage."""
    rows: list[Sequence[Any]] = []
    with Worker() as worker:
        for seed, (name, (options, is_first)) in enumerate(KINDS.items()):
            with TemporaryDirectory() as folder:
                survival = Survival(Path(folder), seed)
                if not is_first:
                    assert worker.run(*survival.arguments("index", EMBEDDED)) == 0
                for done in range(runs):
                    if is_first:
                        for file in survival.database.parent.iterdir():
                            file.unlink()
                    survival.memory.change()
                    if "--chunk-tokens" in options:
                        options = (*EMBEDDED, "--chunk-tokens", ("100", "200")[done % 2])
                    survival.kill(worker, *options)
                rows.append(_row(name, runs, survival))
        with TemporaryDirectory() as folder:
            survival = Survival(Path(folder), len(KINDS))
            assert worker.run(*survival.arguments("index", EMBEDDED)) == 0
            survival.memory.settle()
            for _ in range(runs):
                survival.kill(worker, "--fix", command="doctor", damage=survival.damage())
            rows.append(_row("`doctor --fix` of a damaged index", runs, survival))
            survival.kills = 0
            for _ in range(runs):
                survival.kill(worker, command="compact")
                assert worker.run(*survival.arguments("compact", ("--undo",))) == 0
            rows.append(_row("`compact`", runs, survival))
    total = [sum(row[column] for row in rows) for column in (1, 2)]
    return [*rows, ("all", *total)]


def _row(name: str, runs: int, survival: Survival) -> Sequence[Any]:
    click.echo(f"{name}: {survival.kills} of {runs} killed", err=True)
    return name, runs, survival.kills


def readers(rounds: int) -> Sequence[Any]:
    """Two indexers at once, one of them making the index again now and then, beside two readers of a
    serving Datasette, which ask for files, searches and the status without a pause."""
    with TemporaryDirectory() as folder, Worker() as one, Worker() as other:
        survival = Survival(Path(folder), 0)
        assert one.run(*survival.arguments("index", EMBEDDED)) == 0
        server = Server(["serve", survival.database])
        with Readers(f"{server.url}/memory/-/agent-memory", survival.memory) as reading:
            for done in range(rounds):
                survival.memory.change()
                options = ((), ("--force",), ("--chunk-tokens", str(100 + done)))[done % 3]
                assert 0 in survival.run_both((one, other), options)
        assert one.run(*survival.arguments("index", ())) == 0
        survival.memory.settle()
        check(survival.database, survival.memory.versions)
        server.close()
    for failure in reading.failures[:20]:
        click.echo(failure, err=True)
    return str(rounds), 2 * rounds, reading.answers, len(reading.failures)


def any_files(files: int) -> Sequence[Sequence[Any]]:
    """Folders of files of random content, indexed, changed and indexed again."""
    done = 0
    while done < files:

        @settings(
            max_examples=200,
            deadline=None,
            phases=[Phase.generate],
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(contents=CONTENTS, again=CONTENTS)
        def run(contents: list[bytes], again: list[bytes]) -> None:
            nonlocal done
            done += survive(contents, again)

        run()
        click.echo(f"{done:,} files", err=True)
    return [("files", done)]


if __name__ == "__main__":
    main()
