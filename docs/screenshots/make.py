"""Makes the pictures beside this file from a real demo fleet.

`.venv/bin/python docs/screenshots/make.py` starts `sandkeeper up --demo 6` with a data folder of
its own, signs in with a real browser, takes the pictures and ends everything again.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from playwright.async_api import async_playwright, expect

if TYPE_CHECKING:
    from playwright.async_api import Page

HERE = Path(__file__).parent
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
START_S = 60
SIZE = {"width": 1280, "height": 760}
FLEET_HEIGHT = 500
"""Six rows and a little air below them."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        log = Path(folder) / "log"
        flags = ["--data", str(data), "--port", "0", "--engine-port", "0", "--demo", "6"]
        with log.open("wb") as output:
            command = [sys.executable, "-m", "sandkeeper.cli.main", "up", *flags]
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            url = wait_for(log, r"dashboard\s+(http://\S+?)/?\s", process)
            key = (data / "operator.key").read_text().strip()
            asyncio.run(picture(url, key))
            end_sandboxes(url, key)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def wait_for(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    """Return what the pattern finds in the log as soon as it is there."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(pattern, log.read_text())
        if found:
            return found.group(1)
        time.sleep(0.1)
    raise SystemExit(f"sandkeeper up did not start:\n{log.read_text()}")


async def picture(url: str, key: str) -> None:
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = await browser.new_page(viewport=SIZE, reduced_motion="reduce")
        await page.goto(url)
        await page.get_by_label("Operator or viewer key").fill(key)
        await page.keyboard.press("Enter")
        await expect(page.locator("tr[data-state=PAUSED]")).to_have_count(2, timeout=60_000)
        await expect(page.locator("tr[data-state=KILLED]")).to_have_count(1, timeout=60_000)
        await expect(page.locator("fleet-health [data-badge=green]").first).to_be_visible()
        await page.set_viewport_size({"width": SIZE["width"], "height": FLEET_HEIGHT})
        await keep(page, "fleet")
        await page.set_viewport_size(SIZE)
        await page.goto(f"{url}/sandboxes/demo-shop")
        await page.wait_for_timeout(3000)
        await keep(page, "running")
        await page.goto(f"{url}/sandboxes/demo-landing")
        await expect(page.get_by_role("button", name="Wake sandbox")).to_be_visible()
        await keep(page, "asleep")
        await page.emulate_media(color_scheme="dark")
        await page.goto(f"{url}/charts")
        await expect(page.locator("figure").first).to_be_visible()
        await keep(page, "charts-dark")
        await browser.close()


async def keep(page: Page, name: str) -> None:
    await page.screenshot(path=HERE / f"{name}.png", animations="disabled")


def end_sandboxes(url: str, key: str) -> None:
    """End the sandboxes, which would outlive their engine."""
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        for item in client.get("/api/sandboxes").json()["items"]:
            client.delete(f"/api/sandboxes/{item['project']}")


if __name__ == "__main__":
    main()
