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
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from .chunking import DEFAULT_OVERLAP, DEFAULT_TOKENS
from .config import DEPTH, resolve_options
from .errors import AgentMemoryError
from .options import (
    AGENTS,
    DEFAULT_DATABASE,
    Interruption,
    asked_providers,
    choose_chain,
    database_option,
    given_parameters,
    index_meta,
    one_line_errors,
    provider_options,
    search_options,
)
from .sources import reason_of
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
    from .agents import Home
    from .ingest import IndexSettings
    from .report import IndexReport

DEMO_PORT = 8001


@click.group(name="agent-memory")
def agent_memory() -> None:
    """Index, search and explain the Markdown memory of AI agents."""


@agent_memory.command()
@click.argument("root", required=False, type=click.Path(path_type=Path))
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
@database_option
@click.option(
    "--agent",
    "agents",
    multiple=True,
    type=click.Choice(AGENTS),
    help="Index the memory and the sessions of this agent, which are found where it keeps them, instead of "
    "ROOT. Each of several has a database of its name in the folder that -d names.",
)
@click.option(
    "--extra",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A folder or .md file to index as well, now and in later runs.",
)
@click.option(
    "--sessions",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder of session transcripts (JSON lines of OpenClaw, Claude Code or Codex) to index as well, "
    "now and in later runs: what was said, without secrets.",
)
@click.option(
    "--no-sessions",
    is_flag=True,
    help="Leave out all transcripts, those of earlier runs too.",
)
@click.option(
    "--follow-links/--no-follow-links",
    default=None,
    help="Follow symbolic links that lead out of the folder.  [default: as the index was made, else no]",
)
@click.option(
    "--gitignore/--no-gitignore",
    default=None,
    help="Leave out what .gitignore files name.  [default: as the index was made, else no]",
)
@provider_options(default="as the index was made, else auto")
@click.option(
    "--chunk-tokens",
    type=click.IntRange(1, 100_000),
    help=f"Tokens in a chunk, at 4 characters each.  [default: as the index was made, else {DEFAULT_TOKENS}]",
)
@click.option(
    "--chunk-overlap",
    type=click.IntRange(0, 100_000),
    help=f"Tokens that neighbouring chunks share.  [default: as the index was made, else {DEFAULT_OVERLAP}]",
)
@click.option(
    "--cache-from",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DB",
    help="Another index, also one of OpenClaw's, whose embeddings of the same texts are taken over.",
)
@click.option(
    "--max-cached",
    type=click.IntRange(0),
    help="Keep at most this many embeddings in the cache, the newest.  [default: all]",
)
@click.option(
    "--force",
    is_flag=True,
    help="Make the whole index again; with ROOT, of that and the paths named now alone.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option(
    "--watch",
    "watches",
    is_flag=True,
    help="Go on and index what changes, until Ctrl-C. With --json, each run that changes something is a "
    "line.",
)
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
@one_line_errors
def index(
    root: Path | None,
    paths: tuple[Path, ...],
    database: Path,
    agents: tuple[str, ...],
    no_sessions: bool,
    extra: tuple[Path, ...],
    sessions: tuple[Path, ...],
    follow_links: bool | None,
    gitignore: bool | None,
    provider: str | None,
    model: str | None,
    dimensions: int | None,
    chunk_tokens: int | None,
    chunk_overlap: int | None,
    cache_from: tuple[Path, ...],
    max_cached: int | None,
    force: bool,
    dry_run: bool,
    watches: bool,
    as_json: bool,
    home: Home | None = None,
) -> None:
    """Bring an index up to date with the memory in a folder.

    Examples:

    \b
        datasette agent-memory index ~/agent -d memory.db
        datasette agent-memory index -d memory.db
        datasette agent-memory index -d memory.db --watch
        datasette agent-memory index --agent openclaw --agent codex -d memories

    ROOT is an agent's workspace: MEMORY.md, memory.md and memory/**/*.md are indexed. A
    folder with neither MEMORY.md nor memory/ is taken whole. It is remembered: without it
    an index is brought up to date with the folder that it was made of. PATHs inside it narrow
    the run to these files and folders. Only what changed is written again.
    """
    if watches and (paths or dry_run):
        narrowing = "PATHs" if paths else "--dry-run"
        raise click.UsageError(f"--watch keeps a whole index fresh: run without {narrowing}")
    if agents:
        if root is not None:
            raise click.UsageError("ROOT is what --agent finds: give one of them")
        _index_agents(dict.fromkeys(agents))
        return
    from .embeddings.base import EmbeddingError
    from .ingest import IndexSettings, chunk_size, remembered_root, update_index
    from .progress import IndexProgress

    meta = index_meta(database)
    keeps_paths = root is None
    if root is None:
        root = remembered_root(meta)
    if root is None:
        raise click.UsageError(printable(f"ROOT must be given: {database} is not the index of a folder yet"))
    tokens, overlap = chunk_size(meta, chunk_tokens, chunk_overlap)
    asked = asked_providers(provider, model, dimensions, meta)
    # A variable of the environment stays, and says nothing of this run.
    source = click.get_current_context().get_parameter_source("provider")
    chain = choose_chain(asked, meta, is_asked_now=source is ParameterSource.COMMANDLINE)
    settings = IndexSettings(
        root,
        paths=paths,
        extra=extra,
        memory=home.memory if home else None,
        sessions=(*(home.sessions if home else ()), *sessions),
        with_sessions=not no_sessions,
        follow_links=follow_links,
        gitignore=gitignore,
        providers=chain.providers,
        asked=asked,
        passed_over=chain.passed_over,
        cache_from=cache_from,
        max_cached=max_cached,
        chunk_tokens=tokens,
        chunk_overlap=overlap,
        force=force,
        keeps_paths=keeps_paths,
        dry_run=dry_run,
    )
    for passed_over in chain.passed_over:
        echo(f"{passed_over.provider} is passed over: {passed_over.reason}", err=True)
    if not watches:
        with IndexProgress(as_json, dry_run) as progress, _interruptible(signal.SIGINT) as stop:
            report = update_index(database, settings, progress, stop)
        _print_report(report, root, database, bool(cache_from), as_json)
        return
    with _interruptible(signal.SIGINT, signal.SIGTERM) as stop:
        first: IndexReport | None = None
        try:
            with IndexProgress(as_json, dry_run) as progress:
                first = update_index(database, settings, progress, stop)
            _print_report(first, root, database, bool(cache_from), as_json, is_line=True)
        except EmbeddingError as error:
            # Its text is indexed; the rest is for the watcher, unless that is not wanted any more.
            if not stop.is_set():
                echo(str(error), err=True)
        _watch(database, settings, first, as_json, stop)


def _print_report(
    report: IndexReport,
    root: Path,
    database: Path,
    has_other_cache: bool,
    as_json: bool,
    is_line: bool = False,
) -> None:
    from .embeddings import NO_PROVIDER

    if as_json:
        echo_json(report.as_json(), is_line)
        return
    for skipped in report.skipped:
        echo(f"Skipped {skipped.path}: {skipped.reason}", err=True)
    for guessed in report.guessed:
        echo(f"Read {guessed.path} as {guessed.encoding}, a guess, since it is not UTF-8", err=True)
    if has_other_cache:
        maker = "this model at this address" if report.dims else "this model"
        echo(f"Took over {report.embeddings_taken_over or 'no'} embeddings of {maker}", err=True)
    for refused in report.refused:
        place = f"{refused.text.path}:{refused.text.start_line}-{refused.text.end_line}"
        echo(f"No vector for {place}, which keywords still find: {refused.reason}", err=True)
    echo(
        f"{'Would index' if report.dry_run else 'Indexed'} {root}: {report.files_added} files added, "
        f"{report.files_updated} updated, {report.files_unchanged} unchanged, "
        f"{report.files_removed} removed; {report.chunks_total} chunks"
        + ("; the whole index is made again" if report.is_rebuilt else "")
    )
    if not report.dry_run:
        vectors = f"{report.provider} {report.model}" if report.provider != NO_PROVIDER else "keywords only"
        echo(f"{database}: {vectors}, {report.took_s:.1f} s. To look at it: datasette {database}")


def _watch(
    database: Path,
    first: IndexSettings,
    report: IndexReport | None,
    as_json: bool,
    stop: threading.Event,
) -> None:
    """Keep an index fresh that has just been made, until `stop` is set."""
    from .connections import DatabaseError
    from .remembered import NotRemembered, settings_of
    from .watching import Watcher, WatchState

    told = set(report.skipped if report else ())

    def settings() -> IndexSettings:
        try:
            # As it was made, by us or, since, by another run.
            made = settings_of(database)
        except (DatabaseError, NotRemembered):  # somebody has removed it
            return replace(first, force=False)
        return replace(made, cache_from=first.cache_from, max_cached=first.max_cached)

    def tell_run(report: IndexReport) -> None:
        skipped = [one for one in report.skipped if one not in told]
        told.clear()
        told.update(report.skipped)
        if not (report.has_changes or skipped):
            return
        if as_json:
            echo_json(report.as_json(), is_line=True)
            return
        for one in skipped:
            echo(f"Skipped {one.path}: {one.reason}", err=True)
        if report.has_changes:
            echo(
                f"{datetime.now():%H:%M:%S} {report.files_added} files added, {report.files_updated} "
                f"updated, {report.files_removed} removed; {report.chunks_total} chunks, "
                f"{report.took_s:.1f} s"
            )

    def tell_state(state: WatchState) -> None:
        echo(f"{state.state.capitalize()}: {state.detail or 'all is well, until Ctrl-C'}", err=True)

    Watcher(database, settings, tell_run, tell_state, stop).run()


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
    nothing is embedded again. Vectors are written with 6 decimals, which changes scores by a millionth. Other
    programs can read the index as before.
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


def _index_agents(agents: Iterable[str]) -> None:
    """Index each home of these agents, as the command that runs was told; what fails costs no
    other anything."""
    from .agents import find_homes

    assert index.callback is not None
    context = click.get_current_context()
    given: Path = context.params["database"]
    is_default = context.get_parameter_source("database") is not ParameterSource.COMMANDLINE
    homes, failures = [], []
    for agent in agents:
        try:
            homes += find_homes(agent, with_sessions=not context.params["no_sessions"])
        except AgentMemoryError as error:
            failures.append(printable(str(error)))
    if context.params["watches"] and len(homes) > 1:
        names = ", ".join(home.name for home in homes)
        raise click.UsageError(f"--watch keeps one index fresh, and here are several: {names}")
    is_folder = given.is_dir() or len(homes) + len(failures) > 1
    if is_default:
        given, is_folder = Path(), True
    if is_folder:
        try:
            given.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise click.ClickException(
                printable(f"{given}: is no folder, which several agents need: {reason_of(error)}")
            ) from error
    for home in homes:
        database = given / f"{home.name}.db" if is_folder else given
        told = {**context.params, "root": home.root, "database": database, "agents": ()}
        try:
            context.invoke(index.callback, home=home, **told)
        except Interruption:
            raise
        except click.ClickException as error:
            failures.append(f"{home.name}: {error.message}")
    for failure in failures[:-1]:
        click.echo(f"Error: {failure}", err=True)
    if failures:
        raise click.ClickException(failures[-1])


@contextmanager
def _interruptible(*numbers: signal.Signals) -> Iterator[threading.Event]:
    """An event that the first of these signals sets; a second one interrupts at once."""
    stop = threading.Event()

    def interrupt(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
