"""The pages in a real browser, served by a real Datasette."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing

import pytest
from playwright import sync_api

from datasette_agent_memory.cli import _free_port

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

# On CI a browser that is missing is a failure.
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="no Chromium is installed"
)


@pytest.fixture(scope="module")
def demo():
    """`datasette agent-memory demo`, and the address that it prints."""
    port = _free_port(0)
    command = [sys.executable, "-m", "datasette", "agent-memory", "demo", "--no-browser", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and server.poll() is None:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/memory/-/agent-memory"
    finally:
        server.terminate()
        output, _ = server.communicate(timeout=20)
        assert "Indexed a sample memory: 25 files" in output
        assert "Traceback" not in output, output


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(params=[True, False], ids=["with JavaScript", "without"])
def page(browser, request):
    context = browser.new_context(java_script_enabled=request.param)
    page = context.new_page()
    failures = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("requestfailed", lambda failed: failures.append(failed.url))
    yield page
    context.close()
    assert failures == []


def scores(page):
    return [float(text) for text in page.locator(".am-score").all_inner_texts()]


@pytest.mark.parametrize(
    "q, path", [("certificate expired", "2026-03-14-incident"), ("数据库磁盘", "2026-07-07")]
)
def test_asking_finds_and_explains(page, demo, q, path):
    page.goto(demo)
    page.get_by_label("Search this memory").fill(q)
    page.get_by_role("button", name="Search").first.click()
    first = page.locator(".am-hit").first
    assert path in first.get_by_role("heading").inner_text()
    assert first.locator("mark").count() > 0
    parts = [float(number) for number in re.findall(r"\d\.\d+", first.locator(".am-parts").inner_text())]
    weight, vector, text_weight, text = parts
    assert scores(page)[0] == pytest.approx(weight * vector + text_weight * text, abs=0.002)
    assert scores(page) == sorted(scores(page), reverse=True)


def test_the_sql_opens_in_the_editor_with_the_same_scores(page, demo):
    page.goto(f"{demo}?q=backup+restore")
    expected = scores(page)
    page.get_by_role("link", name="View and edit SQL").click()
    page.wait_for_url("**sql=**")
    shown = page.locator("td.col-score").all_inner_texts()
    assert [round(float(score), 3) for score in shown] == expected != []


def test_an_option_is_kept_in_the_address(page, demo):
    page.goto(f"{demo}?q=backup&mode=keyword")
    page.get_by_label("k", exact=True).fill("2")
    page.get_by_role("button", name="Search").last.click()
    page.wait_for_url("**k=2**")
    assert "mode=keyword" in page.url
    assert page.locator(".am-hit").count() == 2


def test_a_hit_leads_to_its_lines(page, demo):
    page.goto(f"{demo}?q=潮汐时间差八小时")
    page.locator(".am-hit h2 a").first.click()
    assert "2026-10-13" in page.get_by_role("heading").first.inner_text()
    assert page.locator("ol.am-file li").count() > 5


def test_a_notice_and_an_error_are_shown(page, demo):
    page.goto(f"{demo}?q=%3F%3F")
    assert "no word" in page.locator(".am-notice").last.inner_text()
    page.goto(f"{demo}?q=x&k=0")
    assert "k must be a whole number" in page.locator(".message-error").inner_text()


def test_nothing_sticks_out_on_a_phone(browser, demo):
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    for url in (
        f"{demo}?q=certificate+expired&k=3&decay=1",
        f"{demo}/file?path=MEMORY.md",
        f"{demo}/status",
        demo,
    ):
        page.goto(url)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, url
    context.close()
