"""The map and the timeline in a real browser, served by a real Datasette."""

import re
from itertools import pairwise
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from browsing import needs_browser
from playwright.sync_api import expect

from datasette_agent_memory.embeddings import chain
from datasette_agent_memory.ingest import IndexSettings, update_index

pytestmark = needs_browser

HOSTILE = {
    "memory/<img src=x onerror=alert(1)>.md": "<img src=x onerror=alert(2)> <script>alert(3)</script>\n",
    "memory/\u202egnp.md": "turned \u202e round, with \x1b[31m red\n",
    "memory/0001-01-01.md": "the first day\n",
    "memory/9999-12-31.md": "the last day\n",
}


@pytest.fixture(scope="module")
def served(serve, sample_database, tmp_path_factory):
    """The sample, a hostile memory and one without vectors; the address of the server."""
    folder = tmp_path_factory.mktemp("served")
    files = []
    for name, provider in (("hostile", "embedded"), ("words", "none")):
        root = folder / name
        for path, text in HOSTILE.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        update_index(
            folder / f"{name}.db",
            IndexSettings(root, providers=chain.Providers().choose(provider).providers),
        )
        files.append(folder / f"{name}.db")
    return serve(sample_database, *files)


@pytest.fixture
def open_map(open_page, served):
    """Open the map of a database."""

    def run(database="memory", query="", **options):
        return open_page(f"{served}/{database}/-/agent-memory/map{query}", **options)

    return run


POINT = """path => {
  const map = document.getElementById("am-map").memoryMap;
  const point = map.map.points.path.findIndex(number => map.map.paths[number] === path);
  const { left, top } = map.position(point);
  const plot = map.plot.over.getBoundingClientRect();
  return [plot.left + left, plot.top + top];
}"""
PIXELS = """selector => {
  const canvas = document.querySelector(selector);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colors = new Map();
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] < 100) continue;
    const color = [data[at], data[at + 1], data[at + 2]].join();
    colors.set(color, (colors.get(color) ?? 0) + 1);
  }
  return [...colors];
}"""
POINTS, OVERLAY, BARS = "#am-map-plot .u-wrap > canvas", ".am-map-overlay", "#am-timeline canvas"


def settle(page, plot):
    """Wait until a plot is drawn: Playwright's own way to wait is eval, which the policy refuses."""
    assert page.evaluate(f"""async () => {{
      const frame = () => new Promise(requestAnimationFrame);
      for (let frames = 0; frames < 1000 && {plot}?.scales.x.min == null; frames++) await frame();
      await frame();
      await frame();
      return {plot}?.scales.x.min != null;
    }}""")


def wait(page):
    settle(page, "document.getElementById('am-map').memoryMap?.plot")
    page.locator("#am-map-plot").scroll_into_view_if_needed()


def pixels(page, selector=POINTS):
    """The number of pixels of each colour on a canvas."""
    return dict(page.evaluate(PIXELS, selector))


def test_points_are_drawn_and_colours_change(open_map):
    page = open_map()
    wait(page)
    drawn = {"folder": pixels(page)}
    assert 1000 < sum(drawn["folder"].values()) < 38 * 200
    for colour in ("month", "source"):
        page.get_by_label("Colour by").select_option(colour)
        wait(page)
        drawn[colour] = pixels(page)
        assert page.url.endswith(f"/map?colour={colour}")
    assert len({tuple(sorted(colors)) for colors in drawn.values()}) == 3
    dark = open_map(color_scheme="dark")
    wait(dark)
    assert set(pixels(dark)) != set(drawn["folder"])


def test_the_legend_hides_and_shows(open_map):
    page = open_map()
    wait(page)
    before = sum(pixels(page).values())
    entry = page.locator(".am-map-entry", has_text="memory/projects")
    assert entry.inner_text().split() == ["memory/projects", "7"]
    entry.click()
    wait(page)
    assert entry.get_attribute("aria-pressed") == "false"
    hidden = sum(pixels(page).values())
    assert hidden < before
    page.mouse.move(*page.evaluate(POINT, "memory/projects/berth-engine.md"))
    page.wait_for_timeout(200)
    assert "berth-engine" not in page.locator(".am-map-tip").inner_text()
    entry.press("Enter")
    wait(page)
    assert sum(pixels(page).values()) == before


def test_a_point_tells_its_text_and_opens_its_lines(open_map):
    page = open_map()
    wait(page)
    before = pixels(page)
    page.mouse.move(*page.evaluate(POINT, "memory/2026-08-15.md"))
    tip = page.locator(".am-map-tip")
    expect(tip).to_contain_text("outboard overheated")
    assert "memory/2026-08-15.md" in tip.inner_text() and "lines 1–22 · 2026-08-15" in tip.inner_text()
    assert sum(pixels(page, OVERLAY).values()) > 0 and pixels(page) == before
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url("**/file?**")
    assert parse_qs(urlsplit(page.url).query)["path"] == ["memory/2026-08-15.md"]
    assert urlsplit(page.url).fragment == "L1-L22"


def test_results_are_lit_as_they_are_typed(open_map):
    page = open_map()
    wait(page)
    assert page.locator("#am-map-results").is_hidden() and not pixels(page, OVERLAY)
    plain = pixels(page)
    page.get_by_role("searchbox").type("backup")
    page.wait_for_url("**/map?q=backup")
    expect(page.locator("#am-map-results h2")).to_have_text("6 results")
    wait(page)
    assert sum(pixels(page, OVERLAY).values()) > 300
    assert pixels(page) != plain, "the others are dimmed"
    lit = page.evaluate(
        "() => { const { results, map } = document.getElementById('am-map').memoryMap;"
        " return results.map(point => map.paths[map.points.path[point]]) }"
    )
    assert lit == page.locator(".am-map-results li bdi").all_inner_texts() and "backup" in lit[0]
    shared = open_map(query=f"?{urlsplit(page.url).query}")
    wait(shared)
    expect(shared.locator("#am-map-results h2")).to_have_text("6 results")
    page.get_by_role("searchbox").fill("")
    expect(page.locator("#am-map-results")).to_be_hidden()
    wait(page)
    assert pixels(page) == plain and not pixels(page, OVERLAY)


def test_only_the_last_search_is_shown(open_map):
    """The answer to an earlier question comes after that to a later one."""
    page = open_map()
    wait(page)
    held = []
    page.route("**/agent-memory.json?*q=certificate*", lambda route: held.append(route))
    page.get_by_role("searchbox").fill("certificate")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**q=certificate**")
    page.get_by_role("searchbox").fill("backup")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".am-map-results li").first).to_contain_text("backup")
    for route in held:
        route.continue_()
    page.wait_for_timeout(300)
    assert held and "backup" in page.locator(".am-map-results li").first.inner_text()


def test_an_error_is_said(open_map):
    page = open_map(query="?k=3")
    wait(page)
    page.locator("input[name=k]").evaluate("field => { field.value = 'x' }")
    # The browser itself reports the status to its console.
    page.route(
        "**/agent-memory.json?*",
        lambda route: route.fulfill(json={"ok": False, "error": "k must be a whole number"}),
    )
    page.get_by_role("searchbox").fill("backup")
    expect(page.locator("#am-map-notices")).to_contain_text("k must be a whole number")


def test_the_keyboard_goes_from_point_to_point_and_opens(open_map):
    page = open_map(query="?q=backup&k=1")
    wait(page)
    expect(page.locator("#am-map-said")).to_have_text(re.compile("^1 result"))
    page.locator("#am-map-plot").focus()
    page.keyboard.press("ArrowLeft")
    said = page.locator("#am-map-said")
    expect(said).to_contain_text("result 1")
    first = said.inner_text()
    page.keyboard.press("ArrowLeft")
    expect(said).not_to_contain_text("result 1")
    assert ".md, line" in said.inner_text() and said.inner_text() != first
    page.keyboard.press("Escape")
    assert page.locator(".am-map-tip").is_hidden()
    page.keyboard.press("ArrowUp")
    expect(said).to_contain_text("result 1")
    page.keyboard.press("Enter")
    page.wait_for_url("**/file?**")


def test_every_point_can_be_come_to_by_keys_where_all_lie_at_one_place(open_map):
    page = open_map()
    wait(page)
    seen = page.evaluate("""() => {
      const { memoryMap } = document.getElementById("am-map");
      memoryMap.x.fill(0); memoryMap.y.fill(0); memoryMap.chosen = 0;
      const seen = new Set([0]);
      for (let step = 0; step < 100; step++) seen.add(memoryMap.chosen = memoryMap.next(1, 0));
      return seen.size;
    }""")
    assert seen == 38


def test_zoom_and_back(open_map):
    page = open_map()
    wait(page)
    whole = pixels(page)
    box = page.locator("#am-map-plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.5, steps=5)
    page.mouse.up()
    wait(page)
    assert page.url.endswith("/map"), "a drag opens nothing"
    scales = page.evaluate(
        "() => { const { plot } = document.getElementById('am-map').memoryMap; const { x, y } = plot.scales;"
        " return [(x.max - x.min) / plot.width, (y.max - y.min) / plot.height] }"
    )
    assert scales[0] == pytest.approx(scales[1]), "distances are true in both directions"
    zoomed = pixels(page)
    assert zoomed != whole
    page.get_by_role("button", name="Whole map").click()
    wait(page)
    assert pixels(page) == whole
    page.locator("#am-map-plot").focus()
    page.keyboard.press("+")
    wait(page)
    assert pixels(page) != whole
    page.mouse.dblclick(box["x"] + 10, box["y"] + 10)
    wait(page)
    assert pixels(page) == whole


def test_the_grid_finds_the_nearest_of_many(open_map):
    page = open_map()
    wait(page)
    wrong = page.evaluate("""() => {
      const Grid = document.getElementById("am-map").memoryMap.grid.constructor;
      let seed = 1;
      const random = () => (seed = seed * 48271 % 2147483647) / 2147483647 * 2 - 1;
      const x = Array.from({ length: 3000 }, random), y = Array.from({ length: 3000 }, random);
      const grid = new Grid(x, y);
      let wrong = 0;
      for (let n = 0; n < 500; n++) {
        const [a, b, reach] = [random() * 1.2, random() * 1.2, Math.abs(random()) / 4];
        let best = null, least = reach * reach;
        for (let p = 0; p < 3000; p++) {
          const distance = (x[p] - a) ** 2 + (y[p] - b) ** 2;
          if (p % 3 && distance <= least) [best, least] = [p, distance];
        }
        if (grid.nearest(a, b, reach, p => p % 3) !== best) wrong++;
      }
      return wrong;
    }""")
    assert wrong == 0


def columns(page, color):
    """How many pixels of a colour each column of the timeline has."""
    return page.evaluate(
        """name => {
          const canvas = document.querySelector("#am-timeline canvas");
          const ctx = canvas.getContext("2d");
          ctx.fillStyle = getComputedStyle(document.body).getPropertyValue(name);
          const [r, g, b] = ctx.fillStyle.slice(1).match(/../g).map(part => parseInt(part, 16));
          const { data } = ctx.getImageData(0, 0, canvas.width, canvas.height);
          const columns = new Array(canvas.width).fill(0);
          for (let at = 0; at < data.length; at += 4) {
            if (data[at] === r && data[at + 1] === g && data[at + 2] === b) columns[at / 4 % canvas.width]++;
          }
          return columns;
        }""",
        color,
    )


def wait_for_timeline(page):
    settle(page, "document.getElementById('am-timeline').timeline?.plot")


def test_bars_and_the_line_of_decay(open_map):
    page = open_map(query="?now=2026-11-30")
    wait_for_timeline(page)
    bars = columns(page, "--am-vector")
    groups = [number > 20 for number in bars]
    starts = sum(b and not a for a, b in zip([False, *groups], groups, strict=False))
    assert starts == 20, "the sample has notes of twenty days, and gaps between them"
    line = page.evaluate("() => document.getElementById('am-timeline').timeline.plot.data[2]")
    assert line == sorted(line) and 0 < line[0] < 0.01 and line[-1] == 1
    page.get_by_label("Half life in days").last.fill("300")
    wait_for_timeline(page)
    assert page.get_by_label("Half life in days").first.input_value() == "300"
    slower = page.evaluate("() => document.getElementById('am-timeline').timeline.plot.data[2]")
    assert slower[0] == pytest.approx(line[0] ** 0.1, rel=1e-6)
    page.wait_for_url("**half_life=300**")
    assert any(columns(page, "--am-text"))


def test_a_bar_tells_and_leads_to_its_day(open_map):
    page = open_map(query="?q=backup&now=2026-11-30&half_life=30")
    wait_for_timeline(page)
    page.locator(".am-timeline-plot").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert page.locator(".am-timeline-caption").inner_text() == "2026-11-05: 1 chunk, weight 0.56"
    assert page.locator("#am-map-said").inner_text() == "2026-11-05: 1 chunk, weight 0.56"
    mark = page.locator(".am-timeline-mark").bounding_box()
    page.keyboard.press("Escape")
    page.mouse.move(mark["x"] + mark["width"] / 2, mark["y"] + 30)
    assert page.locator(".am-timeline-caption").inner_text() == "2026-11-05: 1 chunk, weight 0.56"
    page.mouse.click(mark["x"] + mark["width"] / 2, mark["y"] + 30)
    page.wait_for_url(lambda url: url.split("?")[0].endswith("/agent-memory"))
    query = parse_qs(urlsplit(page.url).query)
    assert query["since"] == query["until"] == ["2026-11-05"] and query["q"] == ["backup"]


def test_hostile_names_and_texts_stay_text(open_map):
    page = open_map("hostile", "?q=turned+round&min_score=0")
    wait(page)
    tip = page.locator(".am-map-tip")
    for path, name, text in (
        (
            "memory/<img src=x onerror=alert(1)>.md",
            None,
            "<img src=x onerror=alert(2)> <script>alert(3)</script>",
        ),
        ("memory/\u202egnp.md", "memory/‹U+202E›gnp.md", "turned ‹U+202E› round, with ␛[31m red"),
    ):
        page.mouse.move(*page.evaluate(POINT, path))
        expect(tip).to_contain_text(text)
        assert tip.locator("bdi").inner_text() == (name or path)
        assert tip.locator("img, script").count() == 0
        assert parse_qs(urlsplit(tip.locator("a").get_attribute("href")).query)["path"] == [path]
        page.mouse.move(1, 1)
        expect(tip).to_be_hidden()
    expect(page.locator(".am-map-results bdi").first).to_contain_text("‹U+202E›")
    assert page.locator("main img, main main script").count() == 0
    page.mouse.move(*page.evaluate(POINT, "memory/<img src=x onerror=alert(1)>.md"))
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url("**/file?**")
    assert "<img src=x onerror=alert(1)>.md" in unquote(page.url.replace("+", " "))


def test_ten_thousand_years_have_two_bars(open_map):
    page = open_map("hostile")
    wait_for_timeline(page)
    assert "2 chunks by the dates of their files, from 0001-01-01 to 9999-12-31, a bar a month" in (
        page.locator("main").inner_text()
    )
    assert sum(number > 20 for number in columns(page, "--am-vector")) == 2


def test_without_vectors_there_is_the_timeline_and_the_search(open_map):
    page = open_map("words", "?q=turned")
    wait_for_timeline(page)
    assert "so there is no map" in page.locator("#am-map-problem").inner_text()
    expect(page.locator(".am-map-results li")).to_have_count(1)
    assert page.locator("#am-map").count() == 0


def test_on_a_phone(open_map):
    page = open_map(width=360, has_touch=True)
    wait(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert sum(pixels(page).values()) > 500
    # The first touch tells, the second opens.
    place = page.evaluate(POINT, "memory/2026-08-15.md")
    page.touchscreen.tap(*place)
    expect(page.locator(".am-map-tip")).to_contain_text("outboard overheated")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.touchscreen.tap(*page.evaluate(POINT, "memory/2026-08-15.md"))
    page.wait_for_url("**/file?**")


def test_without_javascript(open_map):
    page = open_map(java_script_enabled=False)
    page.get_by_role("searchbox").fill("backup")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**q=backup**")
    assert page.locator(".am-map-results li").count() == 6
    assert page.locator("#am-map, #am-timeline").first.is_hidden()
    page.get_by_text("In numbers: chunks by month and by folder").click()
    month = page.get_by_role("link", name=re.compile("^2026-01$"))
    assert month.is_visible()
    month.click()
    page.wait_for_url("**since=2026-01-01&until=2026-01-31**")


def test_what_a_screen_reader_is_told(open_map):
    page = open_map(query="?q=backup")
    wait(page)
    for selector in (POINTS, BARS):
        canvas = page.locator(selector).first
        assert canvas.get_attribute("role") == "img" and canvas.get_attribute("aria-label")
    levels = page.evaluate(
        "() => [...document.querySelectorAll('main h1, main h2, main h3')].map(h => +h.tagName[1])"
    )
    assert levels[0] == 1 and all(b <= a + 1 for a, b in pairwise(levels))
    unnamed = page.evaluate("""() => [...document.querySelectorAll(
      "#am-map-page :is(button, input:not([type=hidden]), select, [tabindex='0'])"
    )].filter(field => !(field.labels?.length || field.getAttribute("aria-label") || field.textContent.trim()
      || field.type === "submit")).length""")
    assert unnamed == 0
