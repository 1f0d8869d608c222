"""Pages for everybody: screen readers, contrast, dark mode, phones, zoom, and other scripts than Latin."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from browsing import needs_browser, width_of

pytestmark = needs_browser

#: Each page by its address behind the memory's own.
PAGES = {
    "start": "",
    "search": "?q=certificate+expired&decay=1&now=2026-12-01&k=3",
    "facets": "?q=backup&since=2026-01-01&mmr=1&mode=keyword",
    "explain": "/explain?q=certificate+expired&place=memory/2026-03-14-incident.md:1",
    "agent": "/agent?q=certificate+expired",
    "file": "/file?path=memory/2026-03-14-incident.md",
    "source": "/file?path=memory/2026-03-14-incident.md&view=source&q=certificate",
    "chunk": "/chunk?q=certificate&id={chunk}",
    "map": "/map?q=certificate+expired",
    "queries": "/queries",
    "status": "/status",
    "error": "?q=x&k=0",
}


@pytest.fixture(scope="module")
def chunk(sample_database):
    from datasette_agent_memory.connections import open_readonly

    with open_readonly(sample_database) as conn:
        return conn.execute("select id from chunks where path like '%incident%'").fetchone()[0]


@pytest.fixture(params=PAGES)
def address(request, sample, chunk):
    return sample + PAGES[request.param].format(chunk=chunk)


@pytest.fixture(scope="module")
def home(sample):
    return sample.replace("/memory/-/", "/-/") + "?q=certificate"


def violations(page):
    # Datasette's header and footer are not ours to mend.
    found = Axe().run(page, context=".am-main", options={"resultTypes": ["violations"]})
    return [
        (one["id"], one["help"], [node["html"][:200] for node in one["nodes"]][:3])
        for one in found.response["violations"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_light_and_dark(open_page, address, scheme):
    page = open_page(address, color_scheme=scheme)
    page.wait_for_load_state("networkidle")
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    lightness = sum(int(part) for part in colour[4:-1].split(","))
    assert lightness > 700 if scheme == "light" else lightness < 150
    for details in page.locator(".am-main details").all():
        details.evaluate("details => { details.open = true }")
    assert violations(page) == []


def test_axe_finds_nothing_on_the_first_page_of_all(open_page, home):
    for scheme in ("light", "dark"):
        for url in (home, home.partition("?")[0]):
            assert violations(open_page(url, color_scheme=scheme)) == []


@pytest.mark.parametrize(
    "width, scale", [(360, 1), (320, 2)], ids=["on a phone", "at 200 % on a window of 640 px"]
)
def test_nothing_sticks_out(open_page, address, width, scale):
    page = open_page(address, width=width, height=740, device_scale_factor=scale)
    page.wait_for_load_state("networkidle")
    assert width_of(page) <= width


def test_everything_can_be_reached_by_the_tab_key(open_page, sample):
    page = open_page(f"{sample}?q=certificate+expired&k=2")
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "(() => { const at = document.activeElement; const outline = getComputedStyle(at);"
                " return [at.id || at.textContent.trim().slice(0, 40),"
                " outline.outlineStyle !== 'none' || outline.boxShadow !== 'none'] + '' })()"
            )
        )
    names = {name.rpartition(",")[0] for name in reached}
    assert {"am-q", "am-why", "am-vector_weight", "JSON", "Every number"} <= names
    # What has the focus is seen to have it.
    ours = [one for one in reached if one.startswith("am-")]
    assert ours and all(one.endswith(",true") for one in ours), reached


def test_roles_and_names(open_page, sample):
    page = open_page(f"{sample}?q=certificate+expired")
    assert page.get_by_role("main").count() == 1
    assert page.get_by_role("search").count() == 1
    assert page.get_by_role("heading", level=1).count() == 1
    assert page.get_by_role("navigation", name="This memory").get_by_role("link").count() == 4
    assert page.get_by_role("complementary", name="Tune and filter").count() == 1
    assert page.locator("html").get_attribute("lang") == "en"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory, serve):
    """A memory in Arabic, Hebrew and Chinese."""
    from datasette_agent_memory.ingest import IndexSettings, update_index

    root = tmp_path_factory.mktemp("scripts")
    (root / "MEMORY.md").write_text(
        "# العربية\n\nالقهوة في الصباح مع مريم.\n\n# עברית\n\nקפה בבוקר\n", encoding="utf-8"
    )
    (root / "memory").mkdir()
    (root / "memory" / "会议记录.md").write_text(
        "# 会议\n\n" + "数据库迁移完成" * 60 + "\n", encoding="utf-8"
    )
    (root / "memory" / "יומן.md").write_text("# יומן\n\nפגישה עם דנה\n", encoding="utf-8")
    update_index(root / "memory.db", IndexSettings(root))
    return f"{serve('serve', root / 'memory.db')}/memory/-/agent-memory"


@pytest.mark.parametrize(
    "q, path",
    [("قهوة الصباح القهوة", "MEMORY.md"), ("数据库迁移", "memory/会议记录.md"), ("פגישה דנה", "יומן")],
)
def test_other_scripts(open_page, scripts, q, path):
    page = open_page(f"{scripts}?q={q}", width=360)
    first = page.locator(".am-hit").first
    assert path in first.locator(".am-place").inner_text()
    assert width_of(page) <= 360
    direction = first.locator(".am-snippet").evaluate("element => getComputedStyle(element).direction")
    assert direction == ("ltr" if path.endswith("记录.md") else "rtl")
    assert first.locator("mark").count() > 0
