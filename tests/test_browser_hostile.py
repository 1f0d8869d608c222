"""Hostile memory in a real browser: nothing runs, nothing is fetched, nothing breaks the layout."""

import html
import json
from urllib.parse import quote

import pytest
from browsing import needs_browser, width_of

from datasette_agent_memory.connections import open_writable
from datasette_agent_memory.ingest import IndexSettings, update_index

pytestmark = needs_browser

#: What would run if it were not escaped, each with `canary` in it to be found by.
SCRIPTS = [
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload=window.pwned=1>",
    "<a href='javascript:window.pwned=1' id=bait>bait</a>",
    "[bait](javascript:window.pwned=1) [bait](JaVaScRiPt:window.pwned=1)",
    "[bait](data:text/html,<script>1</script>)",
    "[bait][r]\n\n[r]: javascript:window.pwned=1",
    "<javascript:window.pwned=1>",
    "![alt](https://evil.example/pixel.png) ![alt](javascript:window.pwned=1)",
    "<iframe src='javascript:parent.pwned=1'></iframe>",
    "<style>body { display: none }</style>",
    "<base href='https://evil.example/'><meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<form action=https://evil.example/><input name=q>",
    "<!-- an unterminated comment",
    "<textarea> <title> <xmp> <plaintext>",
    "</main></section></body></html><script>window.pwned = 1</script>",
    "{{ 7 * 7 }} {% raw %} ${7*7}",
    '```"><script>window.pwned = 1</script>\ncode\n```',
    "\x1b[31mred\x1b[0m \x1b]8;;https://evil.example\x07link\x1b]8;;\x07",
    "\u202eesrever \u2066isolated",
    "a bell\x07 and a \x85 next line",
]
NAMES = [
    "memory/<script>window.pwned = 1<／script>.md",
    "memory/<img src=x onerror=window.pwned=1>.md",
    'memory/" onmouseover="window.pwned=1" x=".md',
    "memory/\u202egnp.md",
    "memory/\x1b[31m.md",
    "memory/{{ 7 * 7 }}.md",
    "memory/" + "long" * 55 + ".md",
]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory, serve):
    """The pages of a memory of such things."""
    root = tmp_path_factory.mktemp("hostile")
    (root / "memory").mkdir()
    text = "\n\n".join(f"## canary {number}\n\n{script}" for number, script in enumerate(SCRIPTS))
    (root / "MEMORY.md").write_text(text, encoding="utf-8")
    for number, script in enumerate(SCRIPTS):
        (root / f"memory/2026-01-{number + 1:02}.md").write_text(
            f"# canary {script}\n\n{script}\n", encoding="utf-8"
        )
    for name in NAMES:
        (root / name).write_text("# canary of a name\n\nwords\n", encoding="utf-8")
    (root / "memory/wide.md").write_text("canary " + "w" * 2_000_000 + "\n", encoding="utf-8")
    update_index(root / "memory.db", IndexSettings(root))
    with open_writable(root / "memory.db") as conn:
        # A database may be anybody's.
        conn.execute("update chunks set text = 'canary nul ' || char(0) where path like '%-03.md'")
        conn.execute("update chunks set source = '<script>window.pwned=1</script>' where path like '%-02.md'")
        conn.execute("update files set source = '<script>window.pwned=1</script>' where path like '%-02.md'")
        meta = json.loads(conn.execute("select value from meta").fetchone()[0])
        meta["passedOver"] = [
            {"provider": "<script>window.pwned=1</script>", "reason": "<img src=x onerror=window.pwned=1>"}
        ]
        conn.execute("update meta set value = ? where key = 'memory_index_meta_v1'", (json.dumps(meta),))
    return f"{serve('serve', root / 'memory.db')}/memory/-/agent-memory"


def addresses():
    yield ""
    yield "?q=canary&k=60"
    yield "?q=" + quote("<script>window.pwned = 1</script> canary") + "&k=60&decay=1"
    yield "?q=canary&path=" + quote('"><script>window.pwned=1</script>')
    yield "/agent?q=canary&k=30"
    yield "/explain?q=canary&place=" + quote(NAMES[1])
    yield "/explain?q=canary&place=" + quote('"><img src=x onerror=window.pwned=1>')
    for path in [
        "MEMORY.md",
        "memory/wide.md",
        *(f"memory/2026-01-{number + 1:02}.md" for number in range(len(SCRIPTS))),
        *NAMES,
    ]:
        yield f"/file?path={quote(path)}"
    yield "/file?view=source&path=MEMORY.md"
    yield "/file?path=" + quote("<img src=x onerror=window.pwned=1>")
    yield "/map?q=canary"
    yield "/queries"
    yield "/status"


@pytest.mark.parametrize("width", [1100, 360])
def test_nothing_runs_and_nothing_sticks_out(open_page, hostile, width):
    page = open_page("about:blank", width=width)
    elsewhere = []
    page.on("request", lambda request: request.url.startswith(hostile[:21]) or elsewhere.append(request.url))
    for address in addresses():
        page.goto(hostile + address)
        page.wait_for_load_state("load")
        assert page.evaluate("window.pwned") is None, address
        assert width_of(page) <= width, address
        assert page.locator("footer").is_visible(), address
        assert (
            page.locator("main script, main iframe, main style, main form[action^=http], main base").count()
            == 0
        )
        for link in page.locator("main a[href]").all():
            assert link.get_attribute("href").split(":")[0] not in ("javascript", "data", "vbscript"), address
    assert [url for url in elsewhere if not url.startswith(("about:", "data:"))] == []


def test_links_that_bait_do_nothing(open_page, hostile):
    page = open_page(f"{hostile}/file?path=MEMORY.md")
    for bait in page.get_by_text("bait", exact=False).all():
        bait.dispatch_event("click")
    assert page.evaluate("window.pwned") is None and page.url.startswith(hostile)


def test_unfolding_what_is_hostile(open_page, hostile):
    page = open_page(f"{hostile}?q=canary&k=12")
    for summary in page.locator(".am-more > summary").all():
        summary.click()
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.pwned") is None and width_of(page) <= 1100


def test_the_policy_holds_were_escaping_to_fail(open_page, hostile):
    """The browser itself refuses what a page of ours would never have in it."""
    page = open_page(f"{hostile}?q=canary")
    injected = [*SCRIPTS[:2], SCRIPTS[3], "<button onclick='window.pwned=1'>x</button>", SCRIPTS[2]]
    results = '<ol class="am-results">'
    body = page.content().replace(results, results + "".join(injected), 1)
    assert body != page.content()
    policy = page.request.get(f"{hostile}?q=canary").headers["content-security-policy"]
    headers = {"Content-Security-Policy": policy}
    page.route(
        "**/injected", lambda route: route.fulfill(body=body, content_type="text/html", headers=headers)
    )
    page.goto(hostile.replace("/memory/-/agent-memory", "/injected"))
    page.get_by_role("button", name="x", exact=True).click()
    page.locator("#bait").click()
    page.wait_for_timeout(200)
    assert page.evaluate("window.pwned") is None
    refused = [failure for failure in open_page.failures if "Content Security Policy" in failure]
    assert len(refused) >= 4
    open_page.failures[:] = [failure for failure in open_page.failures if failure not in refused]


def test_what_is_hidden_is_shown(open_page, hostile):
    page = open_page(f"{hostile}?q=canary&k=60")
    text = page.locator("main").inner_text()
    for sign in ("‹U+202E›", "␛[31m", "␇", "‹U+0085›"):
        assert sign in text
    assert "\u202e" not in page.content() and "\x1b" not in html.unescape(page.content())
