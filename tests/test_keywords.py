"""Queries are literal words, whatever is in them (H01, H05)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasette_agent_memory.connections import sqlite3
from datasette_agent_memory.keywords import MAX_TERMS, NO_MATCH, cjk_terms, fts_query, query_terms
from datasette_agent_memory.schema import create_tables

LINES = {
    "c": "We rewrote the solver in C++ last week",
    "model": "The agent now runs gpt-4-turbo for summaries",
    "dont": "Users don't like the old menu",
    "status": "status: done",
    "version": "Upgraded OpenClaw to 2026.4.10 today",
    "other": "In 2026 there were 10 incidents and 4 outages",
    "file": "The steps are in docs/setup.md",
    "brace": "Put a {brace} around it",
    "plugin": "今天我们讨论了飞书插件配置和股票分析",
    "mixed": "重跑gen-itgc后再看结果",
    "kana": "週末に成語しりとりをした",
    "hangul": "친구와 끝말잇기를 했다",
    "cafe": "Met at the café, naïve plan",
}


@pytest.fixture
def find():
    conn = sqlite3.connect(":memory:")
    create_tables(conn)
    conn.executemany(
        "insert into chunks_fts (text, id, cjk) values (?, ?, ?)",
        [(text, name, cjk_terms(text)) for name, text in LINES.items()],
    )

    def run(query, mode="auto"):
        expression = fts_query(query, mode)
        return [
            row[0]
            for row in conn.execute(
                "select id from chunks_fts where chunks_fts match ? order by rank", (expression,)
            )
        ]

    yield run
    conn.close()


@pytest.mark.parametrize(
    "query, found",
    [
        ("C++", ["c"]),
        ("gpt-4-turbo", ["model"]),
        ("don't", ["dont"]),
        ("DON’T", ["dont"]),
        ("status: done", ["status"]),
        ("2026.4.10", ["version"]),
        ("docs/setup.md", ["file"]),
        ("{brace}", ["brace"]),
        ("retry OR", []),
        ("NEAR(brace)", ["brace"]),
        ("text:brace", []),
        ("brac*", []),
        ("-brace", ["brace"]),
        ("^status", ["status"]),
        ('say "menu', ["dont"]),
        ("cafe", ["cafe"]),
        ("cafe\u0301", ["cafe"]),
        ("the user's menu", ["dont"]),
        ("飞书", ["plugin"]),
        ("插件配置", ["plugin"]),
        ("飞", ["plugin"]),
        ("析", ["plugin"]),
        ("gen", ["mixed"]),
        ("itgc", ["mixed"]),
        ("gen-itgc", ["mixed"]),
        ("重跑gen-itgc后", ["mixed"]),
        ("成語しりとり", ["kana"]),
        ("끝말잇기", ["hangul"]),
        ("", []),
        ("*", []),
        ('"', []),
        ("🎉", []),
        ("\0", []),
    ],
)
def test_a_query_finds_its_line_first(find, query, found):
    assert find(query)[:1] == found


def test_all_wants_every_word_and_any_does_not(find):
    assert find("agent menu", "any") and not find("agent menu", "all")
    assert find("agent summaries", "all") == ["model"]
    assert find("插件分析", "all") == []
    assert find("插件配置", "all") == ["plugin"]


def test_a_version_is_not_its_numbers(find):
    assert find("2026.4.10") == ["version"]


@given(st.text())
def test_no_input_is_an_error_in_fts5(text):
    conn = sqlite3.connect(":memory:")
    try:
        create_tables(conn)
        conn.execute("insert into chunks_fts (text, cjk) values (?, ?)", (text, cjk_terms(text)))
        for mode in ("auto", "any", "all"):
            conn.execute(
                "select * from chunks_fts where chunks_fts match ?", (fts_query(text, mode),)
            ).fetchall()
    finally:
        conn.close()


@given(st.text(st.sampled_from("abz0飞书插か한🚀 -.'’\"*():^+{}[]\\/\n\0"), min_size=1))
def test_a_text_of_words_finds_itself(text):
    conn = sqlite3.connect(":memory:")
    try:
        create_tables(conn)
        conn.execute("insert into chunks_fts (text, cjk) values (?, ?)", (text, cjk_terms(text)))
        found = conn.execute(
            "select 1 from chunks_fts where chunks_fts match ?", (fts_query(text, "any"),)
        ).fetchall()
        assert bool(found) == (fts_query(text) != NO_MATCH)
    finally:
        conn.close()


def test_stop_words_do_not_drive_a_question_but_are_found_alone(find):
    assert fts_query("what did we do about the menu") == '"menu"'
    assert fts_query("what did we do about the menu", "any").count(" OR ") == 6
    assert fts_query("这个插件是什么") == fts_query("这个插件是什么", "any").replace(
        '"这个" OR ', ""
    ).replace(' OR "是什" OR "什么"', "")
    assert fts_query("the") == '"the"' and find("the")
    assert fts_query("to be or not to be").count(" OR ") == 3


def test_terms_are_bounded(find):
    assert len(query_terms(" ".join(f"w{number}" for number in range(10_000)))) == MAX_TERMS
    assert find(" ".join(f"w{number}" for number in range(10_000))) == []


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError):
        fts_query("x", "some")
