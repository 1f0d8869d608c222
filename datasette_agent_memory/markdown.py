"""Markdown of a memory as HTML that a page may hold.

Memory is hostile: raw HTML is text, links lead to the web and to other indexed files alone, and
images are not loaded. What is written is seen: link definitions and the words after a fence, which
Markdown leaves out, are shown too.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.rules_block import reference as parse_reference
from markdown_it.rules_block import table as parse_table
from markdown_it.token import Token
from markupsafe import Markup

from .snippets import Snippet, Span
from .visible import visible

#: Longer texts are not rendered, nor those with more brackets, for each of which the rest is read.
MAX_CHARS = 100_000
MAX_BRACKETS = 5_000
#: A row has cells for all columns, those that it leaves out too.
_MAX_COLUMNS = 32
_MAX_FRONT_MATTER_LINES = 200

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_SCHEMES = {"http", "https", "mailto"}
_TASK = re.compile(r"\[([ xX])\](?=\s|$)")

#: Where a link without a scheme leads, None for nowhere.
HrefOf = Callable[[str], "str | None"]


@dataclass(frozen=True)
class Block:
    """What stands in a run of lines, 1-based, both ends inclusive."""

    start_line: int
    end_line: int
    html: Markup


def can_render(text: str) -> bool:
    """Whether a text is small and plain enough for that to take no noticeable time."""
    return len(text) <= MAX_CHARS and text.count("[") <= MAX_BRACKETS


def render_markdown(
    lines: Sequence[str],
    href_of: HrefOf,
    find_matches: Callable[[Sequence[str]], list[list[Span]]] | None = None,
    first_line: int = 1,
) -> list[Block]:
    """The blocks of a text that can_render, in order.

    `lines` are shown as they are, so that they have passed `visible`. `find_matches` gives the
    spans to highlight in each of some texts.
    """
    blocks = []
    start = _front_matter_end(lines) if first_line == 1 else 0
    if start:
        html = f'<pre class="am-front">{escape(chr(10).join(lines[:start]))}</pre>'
        blocks.append(Block(1, start, Markup(html)))
    env: dict[str, Any] = {}
    tokens = _MARKDOWN.parse("\n".join(lines[start:]), env)
    for before, token in zip([None, None, *tokens], tokens, strict=False):
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
        if token.type == "inline" and token.children:
            token.children = _safe_children(token.children, href_of)
            if before is not None and before.type == "list_item_open":
                _mark_task(before, token.children[:1])
    _unhead_empty_cells(tokens)
    if find_matches:
        texts = [
            child
            for token in tokens
            for child in token.children or ()
            if child.type in ("text", "code_inline")
        ]
        for child, spans in zip(texts, find_matches([child.content for child in texts]), strict=True):
            child.meta["spans"] = tuple(spans)
    for one in _top_level(tokens):
        first, end = one[0].map or [0, 0]
        while end > first + 1 and not lines[start + end - 1].strip():
            end -= 1
        html = _MARKDOWN.renderer.render(one, _MARKDOWN.options, env)
        # Once more: a character reference may have put back what was made visible.
        blocks.append(Block(first_line + start + first, first_line + start + end - 1, Markup(visible(html))))
    return blocks


def relative_path(path: str, href: str) -> tuple[str, str] | None:
    """The path that a relative link in a file leads to, and its fragment; None for no such link."""
    target, _, fragment = href.partition("#")
    target = unquote(target.partition("?")[0])
    if not target or target.startswith("/") or _SCHEME.match(target):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target)), fragment


class _Markdown(MarkdownIt):
    def validateLink(self, url: str) -> bool:
        scheme = _SCHEME.match(url)
        # An address without a scheme is looked up among the indexed files, and goes nowhere else.
        return scheme[1].lower() in _SCHEMES if scheme else ":" not in url.partition("/")[0]


class _Renderer(RendererHTML):
    """Each method is the rule of a token's type."""

    def text(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        return _marked(tokens[idx])

    def code_inline(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        return f"<code>{_marked(tokens[idx])}</code>"

    def code_block(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        return f"<pre><code>{escape(tokens[idx].content)}</code></pre>"

    def fence(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        info = tokens[idx].info.strip()
        label = f'<span class="am-info">{escape(info)}</span>' if info else ""
        return f"<pre>{label}<code>{escape(tokens[idx].content)}</code></pre>"

    def reference(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        return f'<p class="am-reference">{escape(tokens[idx].content)}</p>'

    def table_open(self, *_: Any) -> str:
        # Who has no mouse scrolls what has the focus.
        return '<div class="am-scroll" tabindex="0" role="group" aria-label="Table"><table class="am-table">'

    def table_close(self, *_: Any) -> str:
        return "</table></div>"


def _reference(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A link definition, which is shown as it is written."""
    found = parse_reference(state, start, end, silent)
    if found and not silent:
        token = state.push("reference", "", 0)
        token.content = state.getLines(start, state.line, state.blkIndent, False).strip()
        token.map = [start, state.line]
    return found


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    if start + 1 < end and state.getLines(start + 1, start + 2, 0, False).count("|") > _MAX_COLUMNS + 1:
        return False
    return parse_table(state, start, end, silent)


def _make_markdown() -> _Markdown:
    markdown = _Markdown("commonmark", {"html": False}, renderer_cls=_Renderer)
    markdown.enable(["table", "strikethrough"])
    markdown.block.ruler.at("reference", _reference)
    markdown.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    return markdown


_MARKDOWN = _make_markdown()


def _marked(token: Token) -> str:
    pieces = Snippet(token.content, token.meta.get("spans", ())).segments()
    return "".join(f"<mark>{escape(text)}</mark>" if matched else escape(text) for text, matched in pieces)


def _safe_children(children: Sequence[Token], href_of: HrefOf) -> list[Token]:
    """The tokens of a line of text, without links to elsewhere, and images as links."""
    safe: list[Token] = []
    link: Token | None = None
    for token in children:
        if token.type == "link_open":
            link = _link(token, href_of)
            if link:
                safe.append(link)
        elif token.type == "link_close":
            if link:
                if safe[-1] is link:
                    # One without a text would not be seen.
                    safe.append(_text(str(link.attrs["href"])))
                safe.append(token)
            link = None
        elif token.type == "image":
            safe += _image(token, is_in_link=link is not None)
        else:
            safe.append(token)
    return safe


def _link(token: Token, href_of: HrefOf) -> Token | None:
    href = str(token.attrs.get("href", ""))
    if not _SCHEME.match(href):
        leads_to = href_of(href)
        if leads_to is None:
            return None
        token.attrs = {"href": leads_to}
        return token
    attrs = {"href": href, "rel": "noreferrer noopener nofollow"}
    if title := token.attrs.get("title"):
        attrs["title"] = str(title)
    token.attrs = {**attrs}
    return token


def _image(token: Token, is_in_link: bool) -> list[Token]:
    source, alt = str(token.attrs.get("src", "")), token.content
    if is_in_link or not _SCHEME.match(source):
        return [_text(f"{alt} ({source})" if alt and not is_in_link else alt or source)]
    opening, closing = Token("link_open", "a", 1), Token("link_close", "a", -1)
    opening.attrs = {"href": source, "rel": "noreferrer noopener nofollow"}
    return [opening, _text(alt or source), closing]


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)


def _mark_task(item: Token, beginning: Sequence[Token]) -> None:
    """[ ] and [x] at the beginning of an item as boxes."""
    for token in beginning:
        task = _TASK.match(token.content) if token.type == "text" else None
        if task:
            token.content = ("☐" if task[1] == " " else "☑") + token.content[3:]
            item.attrs = {"class": "am-task"}


def _unhead_empty_cells(tokens: Sequence[Token]) -> None:
    """A header without a word heads nothing, and a screen reader would read it out."""
    for opening, content, closing in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if opening.type == "th_open" and not content.content.strip():
            opening.tag = closing.tag = "td"


def _top_level(tokens: Sequence[Token]) -> list[list[Token]]:
    """The tokens of each block that is in no other."""
    blocks: list[list[Token]] = []
    depth = 0
    for token in tokens:
        if depth == 0:
            blocks.append([])
        blocks[-1].append(token)
        depth += token.nesting
    return blocks


def _front_matter_end(lines: Sequence[str]) -> int:
    """How many lines at the beginning are front matter."""
    if not lines or lines[0].rstrip() != "---":
        return 0
    for number, line in enumerate(lines[1:_MAX_FRONT_MATTER_LINES], 2):
        if line.rstrip() in ("---", "..."):
            return number
    return 0
