"""Fixtures of the tests in a real browser: a real Datasette, and pages that may not fail unnoticed."""

import os
import shutil

import pytest
from playwright import sync_api
from serving import Server

#: However busy the machine is.
PATIENCE_S = 30
sync_api.expect.set_options(timeout=1000 * PATIENCE_S)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

#: For the modules of such tests. On CI a browser that is missing is a failure.
needs_browser = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="no Chromium is installed"
)


@pytest.fixture(scope="module")
def serve():
    """Serve databases by a Datasette of its own; returns its address."""
    servers = []

    def run(*arguments, says=""):
        servers.append(Server(arguments, says))
        return servers[-1].url

    yield run
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def sample(serve, sample_database):
    """The pages of the sample memory."""
    # However busy the machine is, and while the model is still being loaded.
    patience = ("--setting", "sql_time_limit_ms", "30000")
    return f"{serve('serve', sample_database, *patience)}/memory/-/agent-memory"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser):
    """Open a page, by default as on a desk; any script error, refused script or dialog fails the test."""
    contexts, failures = [], []

    def fail(kind):
        return lambda what: failures.append(f"{kind}: {getattr(what, 'text', None) or what}")

    def dismiss(dialog):
        failures.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def run(url, width=1100, height=900, **settings):
        context = browser.new_context(viewport={"width": width, "height": height}, **settings)
        context.set_default_timeout(1000 * PATIENCE_S)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", fail("script error"))
        page.on("dialog", dismiss)
        # Nothing is asked of anybody else.
        page.on(
            "request",
            lambda request: (
                request.url.startswith(("http://127.0.0.1:", "data:", "about:", "blob:"))
                or fail("request")(request.url)
            ),
        )
        page.on(
            "console",
            # The browser itself reports an answer that is an error, and some tests ask for those.
            lambda message: (
                message.type == "error" and "Failed to load" not in message.text and fail("console")(message)
            ),
        )
        page.goto(url)
        return page

    run.failures = failures
    yield run
    for context in contexts:
        context.close()
    assert failures == []


def width_of(page):
    """How wide the whole page is, in CSS pixels: more than the window's width would scroll."""
    return page.evaluate("document.documentElement.scrollWidth")
