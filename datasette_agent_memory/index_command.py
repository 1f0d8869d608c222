"""The command `datasette agent-memory index`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from .chunking import DEFAULT_OVERLAP, DEFAULT_TOKENS
from .errors import AgentMemoryError
from .options import (
    AGENTS,
    Interruption,
    asked_providers,
    choose_chain,
    database_option,
    index_meta,
    one_line_errors,
    provider_options,
)
from .sources import reason_of
from .terminal import (
    echo,
    echo_json,
    printable,
)

if TYPE_CHECKING:
    from .agents import Home
    from .ingest import IndexSettings
    from .report import IndexReport


@click.command()
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
