"""The commands of `datasette agent-memory`."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .config import DEPTH, resolve_options
from .index_command import index
from .options import (
    DEFAULT_DATABASE,
    asked_providers,
    choose_chain,
    database_option,
    given_parameters,
    one_line_errors,
    provider_options,
    search_options,
)
from .terminal import (
    echo,
    echo_json,
    plain,
    print_answer,
    print_explanation,
    print_notices,
    printable,
    standard_stream,
)

if TYPE_CHECKING:
    pass

DEMO_PORT = 8001


@click.group(name="agent-memory")
def agent_memory() -> None:
    """Index, search and explain the Markdown memory of AI agents."""


agent_memory.add_command(index)


@agent_memory.command()
@click.argument("query")
@database_option
@search_options()
@click.option("--json", "as_json", is_flag=True, help="Answer as JSON, as the JSON API does.")
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL of the search and its parameters.")
@click.option("--explain", is_flag=True, help="Say of each result how its score came about.")
@click.option(
    "--why",
    metavar="PATH[:LINE]",
    help="Say of this place instead why it is among the results, or at which step it fell out, and what "
    "would have shown it.",
)
@one_line_errors
def search(
    query: str, database: Path, as_json: bool, as_sql: bool, explain: bool, why: str | None, **options: Any
) -> None:
    """Search an index.

    Example:

    \b
        datasette agent-memory search "what did we decide about backups" -d memory.db
        datasette agent-memory search "backups" --why memory/2026-01-25-backup-restore.md:4
    """
    from .connections import open_readonly
    from .explain import Explainer
    from .explanation import NothingToExplain, explanations_as_json, parse_place
    from .search import ask

    given = given_parameters(options)
    resolve_options(given)
    try:
        place = parse_place(why) if why is not None else None
    except NothingToExplain as error:
        raise click.UsageError(printable(f"--why {error}")) from error
    explanations = []
    with open_readonly(database) as conn:
        answer = ask(conn, query, given)
        explainer = Explainer(conn, answer, lambda settings: ask(conn, query, {**given, **settings}))
        if place is not None:
            explanations = explainer.place(*place)
        elif explain:
            explanations = explainer.hits()
    if place is not None:
        if as_json:
            echo_json(explanations_as_json(answer, explanations))
        else:
            print_notices(answer)
            for explanation in explanations:
                print_explanation(explanation)
    elif as_sql:
        print_notices(answer)
        click.echo(answer.sql)
        for name, value in answer.params.items():
            echo(f"-- :{name} = {json.dumps(value, ensure_ascii=False)}")
    elif as_json:
        echo_json(answer.as_json(explanations))
    else:
        print_answer(answer, explanations)


@agent_memory.command()
@click.argument("path")
@database_option
@click.option("--from", "start", type=click.IntRange(1), default=1, show_default=True, help="First line.")
@click.option("--lines", type=click.IntRange(1), help="How many lines.  [default: all]")
@one_line_errors
def get(path: str, database: Path, start: int, lines: int | None) -> None:
    """Print a file as it is indexed, or some of its lines.

    Example:

    \b
        datasette agent-memory get memory/2026-01-05.md -d memory.db --from 3 --lines 5

    Only files of the index can be had, and only what was indexed of them.
    """
    from .connections import open_readonly
    from .files import read_file

    with open_readonly(database) as conn:
        file = read_file(conn, path)
    text = file.text(start, lines)
    if text:
        click.echo(printable(text) if sys.stdout.isatty() else text, nl=not text.endswith("\n"))
    if not file.is_exact:
        click.echo(
            "Note: the index does not hold this file to the letter, and the file on disk is another one "
            "by now: equal parts of a long line, and blank lines at the end, may be missing.",
            err=True,
        )


@agent_memory.command()
@database_option
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@one_line_errors
def status(database: Path, as_json: bool) -> None:
    """Say what an index holds, and what of it can be searched.

    Example:

    \b
        datasette agent-memory status -d memory.db
    """
    from .connections import open_readonly
    from .disk import look_at_disk
    from .files import index_of
    from .sizes import readable
    from .status import read_status, watching_in_words

    with open_readonly(database) as conn:
        disk = look_at_disk(conn, index_of(conn), with_extra=True)
        report = read_status(conn, disk=disk)
    if as_json:
        echo_json(report)
        return
    for name, value in report.items():
        if name not in ("ok", "notices", "sources", "passed_over", "chain", "watch", "on_disk", "size"):
            echo(f"{name.replace('_', ' '):18} {plain(value)}")
    size = report["size"]
    free = f", {readable(size['free'])} of it free" if size["free"] else ""
    echo(f"{'size':18} {readable(size['file'])}{free}")
    for name, bytes_ in size["tables"].items():
        echo(f"{'':18} {readable(bytes_)} in {name}")
    for source in report["sources"]:
        echo(f"source {source['source']}: {source['files']} files with text, {source['chunks']} chunks")
    if watching := watching_in_words(report["watch"]):
        echo(f"kept fresh: {watching}")
    for notice in report["notices"]:
        command = notice["command"]
        mended_by = f" Mended by: {command.replace('DATABASE', str(database))}" if command else ""
        click.secho(printable(notice["message"] + mended_by), fg="yellow")
    for problem in disk.problems() if disk else ():
        more = ", …" if problem.count > len(problem.examples) else ""
        echo(f"{problem.code.replace('_', ' ')}: {', '.join(problem.examples)}{more}".replace("\n", " "))


@agent_memory.command()
@database_option
@click.option("--fix", is_flag=True, help="Mend what can be mended, and say what was done.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@one_line_errors
def doctor(database: Path, fix: bool, as_json: bool) -> None:
    """Say what is wrong with an index, and mend it.

    Examples:

    \b
        datasette agent-memory doctor -d memory.db
        datasette agent-memory doctor --fix -d memory.db

    Exits with 0 where nothing is wrong, and else with 1 and a line for each problem. Embeddings
    that the cache, another chunk or the vector table has are not computed again. Files are only
    read, and a database that another program made is only looked at.
    """
    from .doctor import diagnose, mend
    from .progress import IndexProgress, ProgressBar

    with ProgressBar("Inspecting") as bar, IndexProgress(as_json, dry_run=False) as progress:
        diagnosis = mend(database, progress, bar.at) if fix else diagnose(database, bar.at)
    if as_json:
        echo_json(diagnosis.as_json())
    else:
        for done in diagnosis.done:
            echo(f"Done: {done}")
        for problem in diagnosis.problems:
            more = f" and {problem.count - len(problem.examples):,} more"
            more = more if problem.count > len(problem.examples) else ""
            shown = f" ({', '.join(problem.examples)}{more})".replace("\n", " ") if problem.examples else ""
            mended_by = problem.command.replace("DATABASE", str(database)) if problem.command else None
            echo(f"{problem.message}{shown}" + (f"; mended by: {mended_by}" if mended_by else ""))
        for unchecked in diagnosis.unchecked:
            echo(f"Not looked at: {unchecked}", err=True)
        if not diagnosis.problems:
            echo(f"{database}: nothing is wrong")
    if diagnosis.problems:
        raise click.exceptions.Exit(1)


@agent_memory.command()
@database_option
@click.option("--undo", is_flag=True, help="Have all embeddings in the cache again.")
@one_line_errors
def compact(database: Path, undo: bool) -> None:
    """Make the file of an index smaller, now and in later runs.

    Example:

    \b
        datasette agent-memory compact -d memory.db

    What a chunk holds is dropped from the cache, and goes back there when the chunk is removed:
    nothing is embedded again. Vectors are written with 6 decimals, which changes scores by a
    millionth. Other programs can read the index as before.
    """
    from . import compaction
    from .progress import ProgressBar
    from .sizes import readable

    with ProgressBar("Compacting") as bar:
        sizes = compaction.undo(database) if undo else compaction.compact(database, bar.at)
    echo(f"{database}: {readable(sizes.before)} before, {readable(sizes.after)} now")


@agent_memory.command()
@click.argument("out", type=click.Path(path_type=Path, allow_dash=True))
@database_option
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@one_line_errors
def export(out: Path, database: Path, force: bool) -> None:
    """Write an index as JSON lines, or copy its database.

    Examples:

    \b
        datasette agent-memory export memory.jsonl -d memory.db
        datasette agent-memory export backup.db -d memory.db
        datasette agent-memory export - -d memory.db | gzip > memory.jsonl.gz

    OUT is a copy of the database where its name ends with .db, .sqlite or .sqlite3, and JSON lines
    otherwise; - is the standard output. Either is of one moment, while others read and write. The
    full-text and vector tables are not in the lines: import makes them again.
    """
    from .progress import ProgressBar
    from .transfer import copy_database, is_database_name, is_of_database, write_file, write_lines

    if str(out) == "-":
        write_lines(database, standard_stream("stdout"))
        return
    if is_of_database(out, database):
        raise click.UsageError("OUT is the database itself")
    with ProgressBar("Exporting") as bar:
        if is_database_name(out):
            copy_database(database, out, force)
        else:
            write_file(database, out, force, bar.at)
    echo(f"Exported {database} to {out}")


@agent_memory.command(name="import")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@database_option
@click.option("--force", is_flag=True, help="Replace the index in a database that is there.")
@one_line_errors
def import_(file: Path, database: Path, force: bool) -> None:
    """Make an index of what export has written.

    Example:

    \b
        datasette agent-memory import memory.jsonl -d memory.db

    FILE is one of JSON lines, or - for the standard input. The database is made whole or not at
    all, and with --force in one transaction, so that whoever reads it goes on. Nothing is embedded.
    """
    from .transfer import read_lines

    if str(file) == "-":
        counts = read_lines(standard_stream("stdin"), "-", database, force)
    else:
        with open(file, "rb") as lines:
            counts = read_lines(lines, str(file), database, force)
    echo(f"Imported {counts.get('files', 0):,} files and {counts.get('chunks', 0):,} chunks into {database}")


@agent_memory.command()
@click.argument("queries", type=click.Path(path_type=Path))
@click.option("--root", type=click.Path(path_type=Path), help="The folder that holds the workspaces.")
@click.option("-d", "--db", "database", type=click.Path(path_type=Path), help="An index to ask instead.")
@click.option(
    "--compare",
    "compared",
    multiple=True,
    metavar="NAME=VALUE,...",
    help="Other search parameters to measure beside those given, and how sure the difference is.",
)
@click.option(
    "--tune",
    "tunes",
    is_flag=True,
    help="Look for better weights by cross-validation, and say what they gain. Changes nothing.",
)
@click.option(
    "--results", type=click.Path(path_type=Path), help="Write the ranked chunks of each query to this file."
)
@provider_options(default="auto")
@search_options(k=DEPTH)
@click.option("--json", "as_json", is_flag=True, help="Print the measures as JSON.")
@one_line_errors
def evaluate(
    queries: Path,
    root: Path | None,
    database: Path | None,
    compared: tuple[str, ...],
    tunes: bool,
    results: Path | None,
    provider: str | None,
    model: str | None,
    dimensions: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure retrieval with questions whose answering lines are known.

    Examples:

    \b
        datasette agent-memory evaluate queries.jsonl --root workspaces --results ranked.json
        datasette agent-memory evaluate mine.jsonl -d memory.db --compare mode=keyword
        datasette agent-memory evaluate mine.jsonl -d memory.db --tune

    QUERIES is a JSON lines file of {"id", "workspace", "query", "relevant": ["path:line"],
    "category"}. Each workspace, a folder in --root, is indexed into a temporary database. With
    -d the questions are asked of an index that is there, and need no workspace.
    """
    from .comparison import Tuning, as_comparison, compare, parse_options
    from .evaluation import Memories, as_table, read_queries, summarise
    from .progress import Announcer, ProgressBar

    if (root is None) == (database is None):
        raise click.UsageError("either --root or -d must be given")
    if tunes and compared:
        raise click.UsageError("--tune and --compare are two things: give one of them")
    given = {name: value for name, value in given_parameters(options).items() if value is not None}
    resolve_options(given)
    others = {text: {**given, **parse_options(text)} for text in compared}
    for other in others.values():
        resolve_options(other)
    asked = read_queries(queries)
    with ExitStack() as stack:
        if database is not None:
            memories = Memories.of_database(asked, database)
        else:
            assert root is not None
            chain = choose_chain(asked_providers(provider, model, dimensions))
            for passed_over in chain.passed_over:
                echo(f"{passed_over.provider} is passed over: {passed_over.reason}", err=True)
            # One model for all: a measurement of several would say nothing of any.
            measured = chain.providers[0]
            echo(f"With {measured or 'keywords only'}:", err=True)
            indexed = Memories.of_workspaces(asked, root, {"providers": [measured]}, Announcer())
            memories = stack.enter_context(indexed)
        unknown = memories.unknown_places()
        if unknown:
            more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            echo(f"No chunk has {unknown[0]}{more}: what is not indexed counts as not found", err=True)
        progress = stack.enter_context(ProgressBar("Evaluating"))
        found = memories.run(given, progress.at)
        compared_with = {name: memories.run(other, progress.at) for name, other in others.items()}
        tuning = Tuning.by_cross_validation(asked, memories, given, progress.at) if tunes else None
    if results is not None:
        try:
            results.write_text(json.dumps(found.ranked, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise click.ClickException(
                f"{results}: {(error.strerror or 'cannot be written').lower()}"
            ) from error
    if tuning is not None:
        echo_json(tuning.as_json()) if as_json else echo(tuning.as_text())
    elif others:
        rows = compare(asked, found, compared_with)
        echo_json(rows) if as_json else echo(as_comparison(rows))
    else:
        summary = summarise(asked, found.ranked, found.chars)
        echo_json(summary) if as_json else echo(as_table(summary))


@agent_memory.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), help=f"Port to serve on.  [default: {DEMO_PORT} or a free one]"
)
@click.option("--no-browser", is_flag=True, help="Don't open a browser.")
@one_line_errors
def demo(port: int | None, no_browser: bool) -> None:
    """Index a sample memory and serve it, with the embedded model, until Ctrl-C.

    Example:

    \b
        datasette agent-memory demo
    """
    from datasette.cli import cli as datasette_cli

    from .ingest import IndexSettings, update_index

    here = Path(__file__).parent
    port = port or _free_port(DEMO_PORT)
    url = f"http://127.0.0.1:{port}/memory/-/agent-memory"
    # The server passes a SIGTERM on when it has shut down; then the folder goes as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="agent-memory-demo-") as folder:
        database = Path(folder) / DEFAULT_DATABASE
        # Not `auto`: a demonstration sends nothing anywhere, whatever keys there are.
        report = update_index(
            database, IndexSettings(here / "sample", providers=choose_chain({"names": "embedded"}).providers)
        )
        click.echo(
            f"Indexed a sample memory: {report.files_added} files, {report.chunks_total} chunks, "
            f"{report.provider} {report.model}, {report.took_s:.1f} s"
        )
        click.echo(f"Search it at {url}?q=WH-401+certificate+expired")
        if not no_browser and _has_desktop():
            threading.Thread(target=_open_when_served, args=(url, port), daemon=True).start()
        datasette_cli.main(
            ["serve", str(database), "--metadata", str(here / "metadata.yml"), "--port", str(port)],
            prog_name="datasette",
            standalone_mode=False,
        )


def _free_port(wished: int) -> int:
    for port in (wished, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            chosen: int = probe.getsockname()[1]
            return chosen
    return wished


def _has_desktop() -> bool:
    # Elsewhere webbrowser would start a text browser in the server's own terminal.
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def _open_when_served(url: str, port: int, patience_s: float = 30) -> None:
    import webbrowser

    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            webbrowser.open(url)
            return
