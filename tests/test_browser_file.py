"""The pages of a file and of a chunk in a real browser."""

from urllib.parse import quote

import pytest
from browsing import needs_browser
from test_file_page import HOSTILE

from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.ingest import IndexSettings, update_index

pytestmark = needs_browser

NOTES = {
    "MEMORY.md": "# Memory\n\n"
    + "".join(f"## Part {part}\n\n- one\n- two\n- three\n\n{'heron ' * 60}\n\n" for part in range(1, 41)),
    "memory/lines.md": "".join(f"line {number}\n" for number in range(1, 4501)),
    "memory/wide.md": f"| a | b |\n|---|---|\n| {'x' * 300} | y |\n\n```\n{'z' * 300}\n```\n\n{'w' * 300}\n",
    'memory/<img src=x onerror=alert(1)> "\u202e.md': HOSTILE,
    "memory/long-line.md": "<img src=x onerror=alert(1)>" * 80_000 + "\n",
}
HOSTILE_PATHS = [path for path in NOTES if "lines" not in path]


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    root = tmp_path_factory.mktemp("workspace")
    for path, text in NOTES.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    file = tmp_path_factory.mktemp("database") / "memory.db"
    update_index(file, IndexSettings(root, providers=[None]))
    return file


@pytest.fixture(scope="module")
def memory(serve, database):
    """The address of the notes' pages."""
    return f"{serve(database)}/memory/-/agent-memory"


@pytest.fixture
def open_page(open_page):
    """Pages that stand still."""

    def run(url, width=1000, script=True):
        settings = {"java_script_enabled": script, "reduced_motion": "reduce"}
        return open_page(url, width=width, height=700, **settings)

    return run


def box(page, selector):
    return page.locator(selector).first.bounding_box()


def is_in_view(page, selector):
    found = box(page, selector)
    return found["y"] >= 0 and found["y"] < 700


def file_of(memory, path, more=""):
    return f"{memory}/file?path={quote(path)}{more}"


@pytest.mark.parametrize("more", ["#L60-L63", "&view=source#L60-L63"])
def test_the_lines_of_an_address_are_marked(open_page, memory, more):
    page = open_page(file_of(memory, "MEMORY.md", more))
    mark = box(page, ".am-here")
    assert is_in_view(page, ".am-here")
    first, last = box(page, "#L60"), box(page, "#L63")
    assert mark["y"] == pytest.approx(first["y"], abs=2)
    assert mark["y"] + mark["height"] == pytest.approx(last["y"] + last["height"], abs=2)
    assert page.evaluate("document.activeElement.id") == "L60"
    page.evaluate("location.hash = 'L3'")
    page.wait_for_function("document.activeElement.id === 'L3'")
    assert page.locator(".am-here").count() == 1 and is_in_view(page, ".am-here")


def test_a_chunk_is_jumped_to_without_a_script(open_page, memory, database):
    with open_readonly(database) as conn:
        start, end = conn.execute(
            "select start_line, end_line from chunks where path = 'MEMORY.md' order by rowid desc limit 1"
        ).fetchone()
    page = open_page(file_of(memory, "MEMORY.md", f"#L{start}-L{end}"), script=False)
    bar = box(page, ".am-chunk:target")
    assert 0 <= bar["y"] < 700 and bar["height"] > 0
    page.goto(file_of(memory, "MEMORY.md", "#L100"))
    assert is_in_view(page, "#L100")


def test_bars_span_their_lines_and_overlaps_are_seen(open_page, memory):
    page = open_page(file_of(memory, "MEMORY.md", "&view=source"))
    bars = page.locator(".am-chunk")
    first, second = bars.nth(0).bounding_box(), bars.nth(1).bounding_box()
    assert second["y"] < first["y"] + first["height"] and second["x"] >= first["x"] + first["width"]
    name = bars.nth(1).get_attribute("aria-label")
    start, end = name.removeprefix("chunk 2, lines ").split("–")
    assert second["y"] == pytest.approx(box(page, f"#L{start}")["y"], abs=2)
    last = box(page, f"#L{end}")
    assert second["y"] + second["height"] == pytest.approx(last["y"] + last["height"], abs=2)
    page.get_by_role("link", name=name).click()
    assert "Chunk 2 of" in page.get_by_role("heading", level=2).first.inner_text()


def test_line_numbers_set_the_address(open_page, memory):
    page = open_page(file_of(memory, "memory/lines.md", "&view=source"))
    page.get_by_role("link", name="line 3", exact=True).click()
    page.wait_for_url("**#L3")
    page.get_by_role("link", name="line 7", exact=True).click(modifiers=["Shift"])
    page.wait_for_url("**#L3-L7")
    assert box(page, ".am-here")["height"] == pytest.approx(5 * box(page, "#L3")["height"], abs=8)
    page.get_by_role("link", name="line 9", exact=True).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**#L10")
    # All numbers are one stop of the Tab key.
    assert page.locator(".am-number:not([tabindex='-1'])").count() == 1


def test_a_line_of_another_page_is_found(open_page, memory):
    page = open_page(file_of(memory, "memory/lines.md", "&view=source#L4100-L4105"))
    page.wait_for_url("**from=4100**")
    page.wait_for_selector(".am-here")
    assert page.evaluate("document.activeElement.id") == "L4100" and is_in_view(page, ".am-here")
    page.goto(file_of(memory, "memory/lines.md", "#L99999"))
    assert page.locator(".am-here").count() == 0


@pytest.mark.parametrize("width", [1000, 360])
@pytest.mark.parametrize("view", ["rendered", "source"])
def test_nothing_hostile_runs_or_sticks_out(open_page, memory, width, view):
    for path in HOSTILE_PATHS:
        page = open_page(file_of(memory, path, f"&q=script&view={view}"), width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.locator("main :is(script, img, svg, iframe, style)").count() == 0
        assert box(page, ".am-chunk")["width"] > 3


@pytest.mark.parametrize("width", [1000, 360])
def test_no_chunk_runs_or_sticks_out(open_page, memory, database, width):
    with open_readonly(database) as conn:
        ids = [row[0] for row in conn.execute("select id from chunks group by path")]
    assert len(ids) == len(NOTES)
    for id in ids:
        page = open_page(f"{memory}/chunk?id={id}&q=%3Cscript%3E", width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("main :is(script, img, svg, iframe, style)").count() == 0
        for summary in page.locator("main summary").all():
            summary.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
