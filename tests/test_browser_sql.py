"""Ready queries, and Datasette's own pages of a memory, in a real browser."""

import pytest
from browsing import needs_browser, width_of

pytestmark = needs_browser

NAME = "memory/<img src=x onerror=alert('name')>.md"
HOSTILE = {
    NAME: "<script>alert('text')</script>\n\n<img src=x onerror=alert('image')>\n\n" + "A long line. " * 9000,
    "memory/2026-01-05.md": "The heron nests by the canal.\n",
}


@pytest.fixture(scope="module")
def sample(sample):
    """The address of Datasette itself."""
    return sample.partition("/memory/")[0]


@pytest.fixture
def page(open_page):
    return open_page("about:blank")


def test_each_query_runs_with_a_click(page, sample):
    queries = f"{sample}/memory/-/agent-memory/queries"
    page.goto(queries)
    titles = page.locator(".am-ready").get_by_role("heading").all_inner_texts()
    assert len(titles) == 10 and len(set(titles)) == 10
    for number, title in enumerate(titles):
        page.goto(queries)
        query = page.locator(".am-ready").nth(number)
        if query.get_by_role("searchbox").count():
            query.get_by_role("searchbox").fill("disk full backup")
            query.get_by_role("button", name="Run").click()
        else:
            query.get_by_role("link", name="Run").click()
        assert page.get_by_role("heading", level=1).inner_text() == title
        assert page.locator(".message-error").count() == 0
        rows = page.locator("table.rows-and-columns tbody tr").count()
        # The sample repeats nothing, every chunk of it has a vector, and its files may be old and
        # have no front matter.
        empty = ("Near duplicates", "Chunks without a vector", "Changed this week", "Front matter")
        may_be_empty = title in empty
        assert rows or (may_be_empty and page.get_by_text("0 results").count()), title


def test_the_sql_is_a_click_away_and_in_colours(page, sample):
    page.goto(f"{sample}/memory/-/agent-memory/queries")
    sql = page.locator(".am-ready").first.locator("pre")
    assert not sql.is_visible()
    page.locator(".am-ready").first.locator("summary").click()
    assert sql.is_visible() and sql.inner_text().startswith("WITH ")
    colours = {
        sql.locator(f".am-sql-{kind}").first.evaluate("word => getComputedStyle(word).color")
        for kind in ("k", "nf", "nv", "mi")
    }
    assert len(colours) == 4


def test_the_chunks_can_be_read(page, sample):
    page.goto(f"{sample}/memory/chunks?path=MEMORY.md&_sort=start_line")
    embedding = page.locator("td.col-embedding").first.inner_text()
    assert "512 numbers, length 1.00" in embedding and len(embedding) < 100
    text = page.locator("td.col-text").first
    assert text.inner_text().startswith("# MEMORY\n\n")
    assert text.evaluate("cell => getComputedStyle(cell.querySelector('div > div')).whiteSpace") == "pre-wrap"
    page.locator("td.col-path a").first.click()
    page.wait_for_url("**/-/agent-memory/file?path=MEMORY.md#L1-L*")
    assert "MEMORY.md" in page.get_by_role("heading", level=1).inner_text()


def test_the_rest_of_a_long_text_is_a_link(page, sample):
    page.goto(f"{sample}/memory/chunks")
    page.get_by_role("link", name="more characters").first.click()
    page.wait_for_url("**/-/agent-memory/file?path=*")


def test_a_file_of_the_table_leads_to_its_text(page, sample):
    page.goto(f"{sample}/memory/files")
    page.locator("td.col-size a").first.click()
    page.wait_for_url("**/-/agent-memory/file?path=MEMORY.md")


def test_tables_that_nobody_reads_are_not_listed(page, sample):
    page.goto(f"{sample}/memory")
    tables = [name.strip() for name in page.locator(".db-table h3 a, .db-table h2 a").all_inner_texts()]
    assert tables == ["chunks", "embedding_cache", "file_details", "files"]


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_sticks_out(open_page, sample, width):
    page = open_page("about:blank", width=width, height=740)
    for path in ("-/agent-memory/queries", "chunks", "files", "agent_memory_largest_files"):
        page.goto(f"{sample}/memory/{path}")
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert width_of(page) <= width, path


def test_hostile_memory_stays_text(page, serve, workspace, index, database, tiny):
    index(workspace(HOSTILE), tiny)
    address = serve(database)
    for path in (
        "chunks",
        "files",
        "chunks_fts",
        "agent_memory_largest_files",
        "agent_memory_changed_this_week",
        "agent_memory_keyword?q=script+alert",
        "-/agent-memory/queries",
    ):
        response = page.goto(f"{address}/memory/{path}")
        assert response.status == 200
        page.wait_for_load_state("networkidle")
        assert page.locator("img[src=x]").count() == 0
        if path != "-/agent-memory/queries":
            assert NAME in page.locator("table.rows-and-columns").first.inner_text(), path
    page.goto(f"{address}/memory/chunks")
    heights = "cells => Math.max(...cells.map(cell => cell.offsetHeight))"
    assert page.locator("td.col-text").evaluate_all(heights) < 400
    page.locator("td.col-path a").first.click()
    page.wait_for_url("**/-/agent-memory/file?path=*")
    assert page.locator("img[src=x]").count() == 0
