"""Make the pictures of the README and of docs/: python scripts/screenshots.py, with Chromium installed."""

import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from playwright.sync_api import Page, sync_playwright

PORT = 8765
PAGE = f"http://127.0.0.1:{PORT}/memory/-/agent-memory"
IMAGES = Path(__file__).parent.parent / "docs" / "images"
QUESTION = "why did the scanners go offline"


def wait_for(url: str) -> None:
    for _ in range(300):
        try:
            urlopen(url).close()
            return
        except URLError:
            time.sleep(0.1)
    raise SystemExit(f"{url} does not answer")


def shoot(page: Page, name: str, address: str) -> None:
    page.goto(address)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=str(IMAGES / f"{name}.png"))
    print(f"{name}.png")


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    command = [sys.executable, "-m", "datasette", "agent-memory", "demo", "--no-browser", "--port", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(PAGE)
        query = QUESTION.replace(" ", "+")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            light = browser.new_page(viewport={"width": 1100, "height": 820})
            dark = browser.new_page(viewport={"width": 1100, "height": 820}, color_scheme="dark")
            shoot(light, "search", f"{PAGE}?q={query}")
            shoot(light, "map", f"{PAGE}/map?q={query}")
            shoot(dark, "file-dark", f"{PAGE}/file?path=memory/runbooks/restore-backups.md#L23-L52")
            light.goto(f"{PAGE}?q={query}")
            light.get_by_role("link", name="View and edit SQL").click()
            light.screenshot(path=str(IMAGES / "sql.png"))
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
