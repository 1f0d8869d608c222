"""SQL as it is shown on a page: its words told apart by colour."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ClassVar

from markupsafe import Markup, escape
from pygments.filter import Filter
from pygments.lexer import inherit
from pygments.lexers.sql import SqlLexer
from pygments.token import STANDARD_TYPES, Keyword, Name, Punctuation, Whitespace, _TokenType

from .visible import visible


class _SqliteLexer(SqlLexer):  # type: ignore[misc]
    """SQL with named parameters and function calls."""

    tokens: ClassVar[dict[str, list[Any]]] = {
        "root": [
            (r":[A-Za-z_]\w*", Name.Variable),
            (r"[A-Za-z_]\w*(?=\()", Name.Function),
            (r"(?:MATERIALIZED|GLOB)\b", Keyword),
            inherit,
        ]
    }


class _ColumnsAreNames(Filter):  # type: ignore[misc]
    """Keywords are written in capitals here: in small letters `path` and `text` are columns."""

    def filter(self, lexer: Any, stream: Any) -> Iterator[tuple[_TokenType, str]]:
        for kind, value in stream:
            is_word = kind in Keyword or kind in Name.Builtin
            yield (Name if is_word and not value.isupper() else kind), value


@lru_cache(maxsize=1)
def _lexer() -> _SqliteLexer:
    # The text stays as it is, to the last newline.
    lexer = _SqliteLexer(stripnl=False, ensurenl=False)
    lexer.add_filter(_ColumnsAreNames())
    return lexer


# The statements of a memory's searches are few: what differs are their parameters.
@lru_cache(maxsize=64)
def sql_html(sql: str) -> Markup:
    """The HTML of an SQL text, for inside a <pre>: escaped, with classes whose colours are in
    agent_memory.css."""
    return Markup("").join(
        escape(value)
        if kind in Whitespace or kind in Punctuation or kind is Name
        else Markup('<span class="am-sql-{}">{}</span>').format(STANDARD_TYPES.get(kind, ""), value)
        for kind, value in _lexer().get_tokens(visible(sql))
    )
