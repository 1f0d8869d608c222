"""The options that commands share, and what they make of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .config import MAX_DIMENSIONS, PARAMETERS, ParameterError
from .errors import AgentMemoryError
from .terminal import flush_stdout, give_up_stdout, printable

if TYPE_CHECKING:
    from .embeddings.chain import Chain

DEFAULT_DATABASE = "memory.db"
#: Those whose conventions agents.py knows.
AGENTS = ("openclaw", "claude-code", "codex")

NOTHING: Mapping[str, Any] = MappingProxyType({})

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

Command = TypeVar("Command", bound=Callable[..., Any])


class Interruption(click.ClickException):
    """Ctrl-C, with the exit status that a shell has for it."""

    exit_code = 130


def _of_system(error: OSError) -> AgentMemoryError:
    """An error of the system that nobody nearer to it has put into words."""
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    if error.filename:
        return AgentMemoryError(f"{os.fsdecode(error.filename)}: {reason}")
    if error.errno in _CANNOT_WRITE:  # files are named by those who write them
        give_up_stdout()
        return AgentMemoryError(f"stdout: {reason}")
    return AgentMemoryError(reason)


def one_line_errors(command: Command) -> Command:
    """Exit with 2 and the reason on a bad value, with 1 and the reason on any other mishap."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            try:
                result = command(*args, **kwargs)
                flush_stdout()
                return result
            except OSError as error:
                if error.errno == errno.EPIPE:  # nobody reads on: click knows what to do
                    raise
                raise _of_system(error) from error
        except ParameterError as error:
            raise click.UsageError(printable(str(error))) from error
        except KeyboardInterrupt as error:
            raise Interruption("interrupted") from error
        except AgentMemoryError as error:
            failure = Interruption if error.is_interruption else click.ClickException
            raise failure(printable(str(error)).replace("\n", " ")) from error

    return wrapped  # type: ignore[return-value]


def database_option(command: Command) -> Command:
    return click.option(
        "-d",
        "--db",
        "database",
        type=click.Path(path_type=Path),
        default=DEFAULT_DATABASE,
        show_default=True,
        help="The database file.",
    )(command)


def provider_options(default: str) -> Callable[[Command], Command]:
    """The options that choose a model; `default` says what it is without them."""

    def decorate(command: Command) -> Command:
        for option in _provider_options(default):
            command = option(command)
        return command

    return decorate


def _provider_options(default: str) -> tuple[Callable[[Command], Command], ...]:
    return (
        click.option(
            "--dimensions",
            type=click.IntRange(1, MAX_DIMENSIONS),
            help="Width of the vectors, for models that have several.",
        ),
        click.option(
            "--model",
            help="The model of one provider, for local the path of a GGUF file.  [default: the provider's]",
        ),
        click.option(
            "--provider",
            envvar="AGENT_MEMORY_PROVIDER",
            show_envvar=True,
            metavar="NAME[=MODEL],...",
            help="What makes the vectors: local, openai, gemini, voyage, mistral, llm, embedded, or none, "
            "for keywords alone. Of several, the first that works; auto is local,openai,gemini,voyage,"
            f"mistral,embedded,none, without those whose file or key is not there.  [default: {default}]",
        ),
    )


def search_options(k: int | None = None) -> Callable[[Command], Command]:
    """Every search parameter as an option; the values are checked where the page's are.

    `k` is the default that a command has of its own.
    """

    def decorate(command: Command) -> Command:
        for parameter in reversed(PARAMETERS.values()):
            option = "--" + parameter.name.replace("_", "-")
            if parameter.type is bool:
                decorator = click.option(
                    f"{option}/--no-{option[2:]}", parameter.field, default=None, help=parameter.help
                )
            else:
                choices = "[" + "|".join(parameter.choices) + "]" if parameter.choices else None
                default = k if k is not None and parameter.name == "k" else parameter.default
                decorator = click.option(
                    *(["-k"] if parameter.name == "k" else []),
                    option,
                    parameter.field,
                    metavar=choices or ("DATE" if parameter.is_date else parameter.type.__name__.upper()),
                    help=parameter.help + (f"  [default: {default}]" if default is not None else ""),
                )
            command = decorator(command)
        return command

    return decorate


def given_parameters(options: dict[str, Any]) -> dict[str, Any]:
    return {parameter.name: options[parameter.field] for parameter in PARAMETERS.values()}


def asked_providers(
    provider: str | None, model: str | None, dimensions: int | None, meta: Mapping[str, Any] = NOTHING
) -> dict[str, Any]:
    """What is asked for now, else what an index was asked for before, else `auto`."""
    from .embeddings.chain import parse_names
    from .embeddings.local import expanded

    before = meta.get("asked")
    names = None
    if provider is None and isinstance(before, dict) and isinstance(before.get("names"), str):
        # Whatever is wrong with what a database says is passed over.
        with suppress(ValueError):
            names = parse_names(before["names"])
            if dimensions is None and isinstance(before.get("dimensions"), int) and before["dimensions"] > 0:
                dimensions = before["dimensions"]
    if names is None:
        try:
            names = parse_names("auto" if provider is None else provider)
        except ValueError as error:
            raise click.UsageError(printable(str(error))) from error
    if model is not None:
        if len(names) > 1:
            raise click.UsageError(f"--model is for one provider; of several, write NAME={model}")
        names = dict.fromkeys(names, model)
    # A file is to be found from another folder too.
    names = {
        name: str(expanded(model).absolute()) if name == "local" and model else model
        for name, model in names.items()
    }
    written = ",".join(name if model is None else f"{name}={model}" for name, model in names.items())
    return {"names": written, "dimensions": dimensions}


def choose_chain(
    asked: Mapping[str, Any], meta: Mapping[str, Any] = NOTHING, is_asked_now: bool = True
) -> Chain:
    from .embeddings.chain import PROVIDERS_OF_ENVIRONMENT

    try:
        return PROVIDERS_OF_ENVIRONMENT.choose(**asked, meta=meta, is_asked_now=is_asked_now)
    except ValueError as error:
        raise click.UsageError(printable(str(error))) from error


def index_meta(database: Path) -> dict[str, Any]:
    """What an index says of itself; nothing where there is none yet."""
    from .connections import open_readonly
    from .schema import read_meta

    if not os.path.isfile(database):
        return {}
    with open_readonly(database) as conn:
        return read_meta(conn)
