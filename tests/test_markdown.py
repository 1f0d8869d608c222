"""Markdown of a memory as HTML: what is written is shown, and nothing of it takes effect."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datasette_agent_memory.markdown import (
    _MARKDOWN,
    MAX_BRACKETS,
    MAX_CHARS,
    can_render,
    relative_path,
    render_markdown,
)
from datasette_agent_memory.visible import visible

ELEMENTS = frozenset(
    re.findall(
        r"\w+",
        "h2 h3 h4 h5 h6 p ul ol li blockquote pre code em strong s a br hr mark span div"
        " table thead tbody tr th td",
    )
)
VOID = {"br", "hr"}
ATTRIBUTES = {
    "a": {"href", "rel", "title"},
    "ol": {"start"},
    "li": {"class"},
    "p": {"class"},
    "pre": {"class"},
    "span": {"class"},
    "div": {"class", "tabindex", "role", "aria-label"},
    "table": {"class"},
    "th": {"style"},
    "td": {"style"},
}
CLASSES = {"am-task", "am-reference", "am-front", "am-info", "am-scroll", "am-table"}


class Checked(HTMLParser):
    """HTML that has nothing but what is allowed in it, and all of it closed."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open = []
        self.hrefs = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag in ELEMENTS
        given = dict(attrs)
        assert len(given) == len(attrs) and set(given) <= ATTRIBUTES.get(tag, set())
        assert given.get("class", "am-task") in CLASSES
        assert given.get("style", "text-align:left") in {
            f"text-align:{side}" for side in ("left", "right", "center")
        }
        if tag == "a":
            assert "a" not in self.open
            self.hrefs.append(given["href"])
            scheme = given["href"].partition(":")[0].lower()
            assert given["href"] == "/page" or scheme in ("http", "https", "mailto")
            assert given["href"] == "/page" or given["rel"] == "noreferrer noopener nofollow"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):
        raise AssertionError(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


def rendered(text, href_of=lambda href: None, find_matches=None):
    lines = visible(text).split("\n")
    blocks = render_markdown(lines, href_of, find_matches)
    ends = [0, *(block.end_line for block in blocks)]
    for before, block in zip(ends, blocks, strict=False):
        assert before < block.start_line <= block.end_line <= len(lines)
    return Checked("".join(block.html for block in blocks))


def spans(text):
    return [(one.start_line, one.end_line) for one in render_markdown(text.split("\n"), lambda _: None)]


@pytest.mark.parametrize(
    "text, html",
    [
        ("# One\n", "<h2>One</h2>"),
        ("###### Six\n", "<h6>Six</h6>"),
        ("~~gone~~ **b** `c`", "<p><s>gone</s> <strong>b</strong> <code>c</code></p>"),
        ("<b>x</b>", "<p>&lt;b&gt;x&lt;/b&gt;</p>"),
        ("<!-- hidden", "<p>&lt;!-- hidden</p>"),
        ("```sh evil\nls\n```", '<pre><span class="am-info">sh evil</span><code>ls\n</code></pre>'),
        ("[x]: https://a.example 'hidden'", "<p class=\"am-reference\">[x]: https://a.example 'hidden'</p>"),
        ("- [ ] a", '<ul>\n<li class="am-task">☐ a</li>\n</ul>'),
        ("- [x] a", '<ul>\n<li class="am-task">☑ a</li>\n</ul>'),
        ("- [y] a", "<ul>\n<li>[y] a</li>\n</ul>"),
        ("&#x202e;&#x2066;", "<p>‹U+202E›‹U+2066›</p>"),
        ("[](https://a.example)", None),
    ],
)
def test_what_is_written_is_shown(text, html):
    (block,) = render_markdown(text.split("\n"), lambda href: None)
    if html is None:
        assert ">https://a.example</a>" in block.html
    else:
        assert str(block.html).strip().replace("&#x27;", "'") == html


def test_blocks_know_their_lines():
    text = "---\na: b\n---\n# T\n\none\ntwo\n\n- a\n\n- b\n\n\n```\n\nx\n```\n| a |\n|---|\n| b |\n"
    assert spans(text) == [(1, 3), (4, 4), (6, 7), (9, 11), (14, 17), (18, 20)]
    later = render_markdown(["---", "", "x"], lambda href: None, first_line=2001)
    assert [(block.start_line, block.end_line) for block in later] == [(2001, 2001), (2003, 2003)]


def test_front_matter_without_an_end_is_none():
    assert "am-front" not in render_markdown(["---", "a: b"], lambda href: None)[0].html


def test_links_lead_to_the_web_and_to_indexed_files():
    def href_of(href):
        return "/page" if relative_path("memory/a.md", href) == ("MEMORY.md", "L3") else None

    text = "[a](../MEMORY.md#L3) [b](../OTHER.md) [c](https://c.example/?a&b) <mailto:d@e.example> [f](//g)"
    page = rendered(text, href_of)
    assert page.hrefs == ["/page", "https://c.example/?a&b", "mailto:d@e.example"]
    assert page.text == "a b c mailto:d@e.example f\n"


def test_images_are_links():
    page = rendered("![alt](https://i.example/i.png) ![own](i.png) [![in](https://x/y)](https://l.example)")
    assert page.hrefs == ["https://i.example/i.png", "https://l.example"]
    assert page.text == "alt own (i.png) in\n"


@pytest.mark.parametrize(
    "scheme", ["javascript", "JaVaScript", "data", "vbscript", "file", "java&#x0a;script"]
)
@pytest.mark.parametrize(
    "form", ["[x]({})", "[x](<{}>)", "[x][r]\n\n[r]: {}", "<{}>", "![x]({})", "[x][]\n\n[x]: <{}> 't'"]
)
def test_other_schemes_stay_text(scheme, form):
    page = rendered(form.format(f"{scheme}:alert(1)"), lambda href: "/page")
    assert [href for href in page.hrefs if href != "/page"] == []
    assert "alert(1)" in page.text


@pytest.mark.parametrize(
    "path, href, target",
    [
        ("memory/a.md", "./b.md", ("memory/b.md", "")),
        ("memory/a.md", "../MEMORY.md#section", ("MEMORY.md", "section")),
        ("MEMORY.md", "memory/%E6%B8%AF.md?x#L3", ("memory/港.md", "L3")),
        ("a.md", "../../etc/passwd", ("../../etc/passwd", "")),
        ("a.md", "/etc/passwd", None),
        ("a.md", "//host/x", None),
        ("a.md", "#section", None),
        ("a.md", "%6aavascript:x", None),
    ],
)
def test_relative_links(path, href, target):
    assert relative_path(path, href) == target


def test_matches_are_marked_in_text_and_code():
    def find_matches(texts):
        return [[(text.find("her"), text.find("her") + 3)] if "her" in text else [] for text in texts]

    (block,) = render_markdown(["the *heron* `<her>` ![her](x)"], lambda href: None, find_matches)
    assert "<em><mark>her</mark>on</em>" in block.html and "&lt;<mark>her</mark>&gt;" in block.html


FRAGMENTS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=",
    "<!--",
    "-->",
    "<![CDATA[",
    "<?php",
    "</div></main>",
    "javascript:alert(1)",
    "data:text/html,<b>",
    "https://a.example/\"onclick='x'",
    "[a](",
    "![a](",
    "[a]: ",
    "[a]",
    "<http://",
    '"title" onload="',
    "\x1b[31m",
    "\u202e",
    "\0",
    "\r",
    "&quot;",
    "&#x22;&gt;",
    "\n\n",
    "\n",
    "    ",
    "> ",
    "- ",
    "1. ",
    "# ",
    "---\n",
    "```",
    "`",
    "**",
    "_",
    "~~",
    "|",
    "|--|:-:|\n",
    "\\",
    ")",
    "]",
    "(",
    ">",
    "http://[::1",
    "%00",
    "\ud800",
    "x",
    "港",
]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join) | st.text(max_size=200))
def test_nothing_but_the_allowed_comes_out(text):
    page = rendered(text, lambda href: "/page", lambda texts: [[(0, 1)] if one else [] for one in texts])
    assert not set("\0\x1b\r\u202e") & set(page.text)


@pytest.mark.parametrize("text", ["[" * 100_001, "[" * (MAX_BRACKETS + 1), "x" * (MAX_CHARS + 1)])
def test_what_would_take_long_is_not_rendered(text):
    assert not can_render(text)


@pytest.mark.parametrize("sign", ["*", ">", "> ", "- ", "1. ", "`", "<", "&", "\\", "~~a ", "**a ", "|", "#"])
def test_what_is_rendered_grows_with_the_text_alone(sign):
    """Its size and depth are bounded, whatever is nested in it."""
    text = (sign * MAX_CHARS)[:MAX_CHARS]
    assert can_render(text)
    (block,) = render_markdown([text], lambda href: None)
    assert len(block.html) <= 6 * MAX_CHARS
    assert block.html.count("<blockquote>") + block.html.count("<ul>") <= 20


def test_a_wide_table_is_text():
    def table(columns):
        lines = ["|a" * columns, "|-" * columns, *["|"] * 1900]
        return "".join(block.html for block in render_markdown(lines, lambda href: None))

    assert table(32).count("<td>") == 32 * 1900
    assert "<td>" not in table(40)


def test_nested_lists_end_somewhere():
    text = "\n".join("  " * depth + "- a" for depth in range(300))
    assert can_render(text)
    assert len(_MARKDOWN.parse(text)) < 300
