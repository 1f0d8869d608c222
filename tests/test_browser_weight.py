"""How light a page is: what it loads, and what is seen before scripts are there."""

import gzip

import pytest
from browsing import needs_browser

pytestmark = needs_browser

#: Bytes of scripts and styles of a page, compressed, Datasette's own included.
MOST_BYTES = 150_000


@pytest.mark.parametrize("page_of", ["?q=backup", "", "/file?path=MEMORY.md", "/queries", "/status"])
def test_scripts_and_styles_are_few(open_page, sample, page_of):
    page = open_page("about:blank")
    loaded = {}
    page.on("response", lambda response: loaded.update({response.url: response}))
    page.goto(sample + page_of)
    page.wait_for_load_state("networkidle")
    files = {
        url: len(gzip.compress(response.body()))
        for url, response in loaded.items()
        if response.request.resource_type in ("script", "stylesheet")
    }
    assert any("agent_memory.css" in url for url in files)
    assert sum(files.values()) < MOST_BYTES, files


def test_results_are_painted_before_any_script_has_come(open_page, sample):
    page = open_page("about:blank")
    held = []
    page.route(lambda url: url.split("?")[0].endswith(".js"), lambda route: held.append(route))
    page.goto(f"{sample}?q=certificate+expired", wait_until="commit")
    page.locator(".am-hit").first.wait_for()
    page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length > 0")
    assert any("search.js" in route.request.url for route in held)
    for route in held:
        route.continue_()
    page.wait_for_load_state("load")
