"""The YAML block that a Markdown file may begin with.

It says things about the file (title, tags, dates) and is not what the file says: it is kept
out of the chunks, and so of the vectors, and found by the words of its values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

#: A longer block, in characters, is text.
_MAX_CHARS = 64 * 1024

# As in Pandoc: a rule, which a blank line follows, is no front matter.
_BLOCK = re.compile(
    r"---[ \t]*\r?\n(?=[^\r\n])(.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)

_PROPERTY = re.compile(r"(\w[\w .-]{0,60}):(?:[ \t]+(.*))?", re.DOTALL)


@dataclass(frozen=True)
class FrontMatter:
    #: The block with the lines around it.
    text: str
    #: What it says. All values are text as it was written: YAML would make 750 of 12:30.
    properties: dict[str, Any]

    @property
    def lines(self) -> int:
        return self.text.count("\n")


def front_matter(text: str) -> FrontMatter | None:
    """The front matter of a text, None where it has none, or nothing else."""
    if not text.startswith("---"):
        return None
    block = _BLOCK.match(text, 0, _MAX_CHARS)
    if block is None or not text[block.end() :].strip():
        return None
    try:
        properties = yaml.load(block[1], _PlainLoader)
    # The parser itself fails of some escapes.
    except (yaml.YAMLError, ValueError, TypeError, ArithmeticError, RecursionError):
        properties = _properties_by_line(block[1])
    return FrontMatter(block[0], properties) if _is_plain(properties) else None


def values_of(properties: Any) -> Iterator[str]:
    """The values of front matter, however deep."""
    if isinstance(properties, dict):
        for value in properties.values():
            yield from values_of(value)
    elif isinstance(properties, list):
        for value in properties:
            yield from values_of(value)
    elif isinstance(properties, str):
        yield properties


class _PlainLoader(yaml.BaseLoader):  # type: ignore[misc]
    """YAML without types, and without aliases, which can make a gigabyte of a line."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not taken")
        return super().compose_node(parent, index)


def _properties_by_line(block: str) -> dict[str, str] | None:
    """What nearly is YAML, such as a value with a colon in it; None where a line is something else."""
    properties: dict[str, str] = {}
    name = None
    for line in block.splitlines():
        if match := _PROPERTY.fullmatch(line):
            name = match[1]
            properties[name] = (match[2] or "").strip()
        elif name is not None and line[:1] in ("", " ", "\t", "-", "#"):
            properties[name] = f"{properties[name]} {line.strip()}".strip()
        else:
            return None
    return properties


def _is_plain(properties: Any) -> bool:
    """Whether it is a mapping by names."""
    return (
        isinstance(properties, dict) and bool(properties) and all(isinstance(key, str) for key in properties)
    )
