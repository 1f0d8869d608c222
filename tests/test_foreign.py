"""Databases that other programs made have other tokenizers, and no column for CJK."""

import pytest

from datasette_agent_memory.connections import open_readonly, open_writable
from datasette_agent_memory.search import search

NOTES = {
    "memory/plugin.md": "今天我们讨论了飞书插件配置和股票分析",
    "memory/plugins.md": "插件配置。插件配置。插件。",
    "memory/long.md": "插件配置" + "这里说的是别的事情。" * 100,
    "memory/stocks.md": "股票价格和天气",
    "memory/mixed.md": "重跑gen-itgc后再看结果",
    "memory/ai.md": "The AI plan is on the wiki",
    "memory/aims.md": "Our aims are plain. " * 5,
    "memory/kana.md": "週末に成語しりとりをした",
    "memory/other.md": "Nothing here but words about the garden",
}


@pytest.fixture(params=["unicode61", "trigram case_sensitive 0", "porter", "none"])
def find(request, workspace, index, database):
    index(workspace(NOTES))
    declared = "" if request.param == "none" else f", tokenize='{request.param}'"
    with open_writable(database) as conn:
        conn.execute("drop table chunks_fts")
        conn.execute(
            "create virtual table chunks_fts using fts5(text, id unindexed, path unindexed, "
            f"source unindexed, model unindexed, start_line unindexed, end_line unindexed{declared})"
        )
        conn.execute(
            "insert into chunks_fts select text, id, path, source, model, start_line, end_line from chunks"
        )
        conn.execute("delete from meta")

    def run(q, **given):
        with open_readonly(database) as conn:
            return search(conn, q, given)

    return run


@pytest.mark.parametrize(
    "q, path",
    [
        ("插件配置", "memory/plugins.md"),
        ("飞书", "memory/plugin.md"),
        ("飞", "memory/plugin.md"),
        ("飞书插件怎么配置？", "memory/plugin.md"),
        ("gen", "memory/mixed.md"),
        ("重跑gen-itgc后", "memory/mixed.md"),
        ("成語しりとり", "memory/kana.md"),
        ("AI", "memory/ai.md"),
        ("AI 插件", "memory/ai.md"),
        ("garden", "memory/other.md"),
    ],
)
def test_words_are_found_whatever_the_tokenizer(find, q, path):
    answer = find(q)
    assert path in [hit.path for hit in answer.hits][: 2 if q == "AI 插件" else 1]
    assert all(0 < hit.text_score < 1 for hit in answer.hits)


def test_the_scores_are_graded_as_bm25_grades(find):
    scores = {hit.path: hit.text_score for hit in find("插件配置").hits}
    assert scores["memory/plugins.md"] > scores["memory/plugin.md"] > scores["memory/long.md"] > 0
    assert "memory/stocks.md" not in scores
    some = {hit.path: hit.text_score for hit in find("股票 插件").hits}
    assert max(some, key=some.get) == "memory/plugin.md", "it alone has both"


def test_it_is_said(find):
    assert "substring" in [notice.code for notice in find("插件配置").notices]
    assert [notice.code for notice in find("garden").notices if notice.code == "substring"] == []


def test_options_hold_there_too(find):
    assert [hit.path for hit in find("股票 插件", match="all").hits] == ["memory/plugin.md"]
    assert {hit.path for hit in find("插件", path="memory/l*").hits} == {"memory/long.md"}
    for text_norm in ("relevance", "rank", "max", "coverage"):
        hits = find("插件配置", text_norm=text_norm).hits
        assert hits[0].path == "memory/plugins.md"
        assert 0 < hits[-1].text_score <= hits[0].text_score <= 1
    assert find("插件配置", decay=1, mmr=1).hits
