"""What the commands print."""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import click

from .errors import AgentMemoryError

if TYPE_CHECKING:
    from .explanation import Explanation
    from .search import Answer, Hit

_BIDI_CONTROLS = "\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


class StreamError(AgentMemoryError):
    """A standard stream cannot be read or written."""


def printable(text: str) -> str:
    """A text without the control characters with which a memory could steer the terminal."""
    text = text.replace("\r\n", "\n")
    return "".join("\ufffd" if _steers(character) else character for character in text)


def echo(text: str, err: bool = False) -> None:
    click.echo(printable(text), err=err)


def echo_json(value: Any, is_line: bool = False) -> None:
    """Print JSON, on a terminal in ASCII, since JSON itself escapes only some control characters."""
    is_ascii = sys.stdout is not None and sys.stdout.isatty()
    text = json.dumps(value, ensure_ascii=is_ascii, indent=None if is_line else 2)
    # Half of a pair of surrogates, as a database may hold it, is nothing that can be encoded.
    click.echo(re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text))


def standard_stream(name: Literal["stdin", "stdout"]) -> BinaryIO:
    """The bytes of a standard stream, which a shell can have closed."""
    stream = getattr(sys, name)
    if stream is None:
        raise StreamError(f"{name} is closed")
    buffer: BinaryIO = stream.buffer
    return buffer


def flush_stdout() -> None:
    """Have all that was printed written now, while somebody can say that it cannot be."""
    if sys.stdout is not None:
        sys.stdout.flush()


def give_up_stdout() -> None:
    """Let what could not be written go, or Python tries, and complains, again when it ends."""
    with suppress(OSError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _steers(character: str) -> bool:
    category = unicodedata.category(character)
    # Cc are the escapes; bidirectional overrides and isolates show a text in another order.
    return (category in ("Cc", "Cs") and character not in "\n\t") or character in _BIDI_CONTROLS


def plain(value: Any) -> str:
    """A value of a report, for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def print_answer(answer: Answer, explanations: Sequence[Explanation] = ()) -> None:
    """The results, each with how its score came about where there are explanations."""
    print_notices(answer)
    click.secho(printable(_how(answer)), dim=True, err=True)
    if answer.weak:
        click.secho(answer.weak.message, fg="yellow", err=True)
    if not answer.hits:
        click.echo("Nothing matches.")
    for number, hit in enumerate(answer.hits, 1):
        if number > 1:
            click.echo()
        place = printable(f"{hit.path}:{hit.start_line}-{hit.end_line}")
        click.echo(f"{click.style(f'{hit.score:.3f}', bold=True)} {click.style(place, fg='cyan')}")
        click.secho(f"      {_explanation(hit, answer)}", dim=True)
        for line in explanations[number - 1].lines() if explanations else ():
            click.secho(f"      {printable(line)}", dim=True)
        pieces = [
            click.style(printable(text), fg="yellow", bold=True) if matched else printable(text)
            for text, matched in hit.excerpt.segments()
        ]
        for line in "".join(pieces).strip().splitlines():
            click.echo(f"      {line}" if line.strip() else "")


def print_explanation(explanation: Explanation) -> None:
    """Why one chunk is among the results, or is not."""
    place = explanation.path
    if explanation.end_line is not None:
        place += f":{explanation.start_line}-{explanation.end_line}"
    verdict = f"result {explanation.position}" if explanation.returned else "not returned"
    begins = f" {explanation.begins}" if explanation.begins else ""
    click.echo(
        f"{click.style(printable(place), fg='cyan')} {click.style(verdict, bold=True)}"
        + click.style(printable(begins), dim=True)
    )
    for step in explanation.steps:
        mark = click.style("ok  ", fg="green") if step.passed else click.style("out ", fg="red")
        click.echo(f"  {mark} {step.name.replace('_', ' ')}: {printable(step.detail)}")
    for line in explanation.lines():
        echo(f"       {line}")
    if explanation.settings:
        shown = " ".join(
            f"no --{name}" if value is None else f"--{name.replace('_', '-')} {value}"
            for name, value in explanation.settings.items()
        )
        echo(f"  It is shown with {shown}, which has been tried.")
    elif explanation.fell_out is not None and explanation.fell_out.name != "indexed":
        echo("  No setting that was tried shows it.")


def _how(answer: Answer) -> str:
    """How the answer was found, in a line."""
    results = f"{len(answer.hits)} result{'s' * (len(answer.hits) != 1)}"
    if answer.options.mode == "keyword":
        return f"{results}, by keyword"
    model = f"{answer.provider} {answer.model}, {answer.index.dims} dimensions"
    return f"{results}, {answer.options.mode} with {model}"


def print_notices(answer: Answer) -> None:
    for notice in answer.notices:
        click.secho(printable(notice.message), fg="yellow", err=True)


def _explanation(hit: Hit, answer: Answer) -> str:
    parts = [
        f"{part.weight:.2f} * {part.value:.3f} {part.side}"
        if part.value is not None
        else f"no {part.side} score"
        for part in hit.parts(answer.options)
    ]
    text = " + ".join(parts) or "by the ranks of both sides"
    if answer.options.decay:
        age = "evergreen" if hit.age_days is None else f"{hit.age_days:.0f} days"
        text += f", decay * {hit.decay:.3f} ({age})"
    if hit.score < answer.options.min_score:
        text += f", below min score {answer.options.min_score:g}, here for its keywords"
    return text
