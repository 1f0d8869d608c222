"""SQL on a page: all of it, escaped, and legible in light and dark."""

import html
import re
from pathlib import Path

import pytest

import datasette_agent_memory
from datasette_agent_memory.sql_html import sql_html

CSS = (Path(datasette_agent_memory.__file__).parent / "static" / "agent_memory.css").read_text()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "\n  SELECT ':q'\n\n",
        "SELECT '<script>alert(1)</script>' AS \"<b>\" -- & <i>\n/* <x> */",
        "not SQL at all: ' \" ` [ ) 数据库 ::: $$",
        "",
    ],
)
def test_the_text_stays_as_it_is(sql):
    shown = sql_html(sql)
    assert html.unescape(re.sub("<[^>]+>", "", shown)) == sql
    assert set(re.findall("<(?!/?span)", shown)) == set() and "style=" not in shown


def test_words_are_told_apart():
    shown = sql_html("WITH a AS MATERIALIZED (SELECT path, text FROM b WHERE x MATCH fts_query(:q, 'any'))")
    kinds = {
        word: kind for kind, word in re.findall('<span class="am-sql-([a-z0-9]+)">([^<]+)</span>', shown)
    }
    assert {kinds[word] for word in ("WITH", "MATERIALIZED", "SELECT", "MATCH")} == {"k"}
    assert (kinds["fts_query"], kinds[":q"]) == ("nf", "nv") and not {"path", "text"} & set(kinds)
    assert kinds["&#39;any&#39;"] == "s1"


def test_what_is_not_seen_is_shown():
    assert "‹U+202E›" in sql_html("SELECT '\u202e'")


def luminance(colour):
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("side", ["light", "dark"])
def test_the_colours_have_aa_contrast(side):
    colours = [
        dict(re.findall(r"--am-([a-z-]+): (#[0-9a-f]{6})", block)) for block in re.findall("{[^{}]+}", CSS)
    ]
    surfaces, inks = ([block for block in colours if name in block] for name in ("sunken", "sql-keyword"))
    place = 0 if side == "light" else 1
    surface = surfaces[place]["sunken"]
    for name, colour in inks[place].items():
        brighter, darker = sorted((luminance(surface), luminance(colour)), reverse=True)
        assert (brighter + 0.05) / (darker + 0.05) >= 4.5, name
