"""Make the pictures of the README: python scripts/screenshots.py, with Chromium installed."""

import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from playwright.sync_api import sync_playwright

PORT = 8765
PAGE = f"http://127.0.0.1:{PORT}/memory/-/agent-memory"
IMAGES = Path(__file__).parent.parent / "docs" / "images"


def wait_for(url: str) -> None:
    for _ in range(300):
        try:
            urlopen(url).close()
            return
        except URLError:
            time.sleep(0.1)
    raise SystemExit(f"{url} does not answer")


def main() -> None:
    command = [sys.executable, "-m", "datasette", "agent-memory", "demo", "--no-browser", "--port", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(PAGE)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1000, "height": 800})
            page.goto(f"{PAGE}?q=why+did+the+scanners+go+offline")
            page.screenshot(path=str(IMAGES / "search.png"))
            page.get_by_role("link", name="View and edit SQL").click()
            page.screenshot(path=str(IMAGES / "sql.png"))
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
