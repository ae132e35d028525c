"""The pane never stays green over a frame that does not answer, whatever failed."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import AsyncSandbox
from playwright.async_api import Locator, Page, expect

from support.engine_process import Engine
from support.keeper_process import Keeper

pytestmark = pytest.mark.asyncio(loop_scope="session")

APP = "python3 -m http.server 8000"

# Closes its port while a file is there, and lives on.
DOOR = """python3 -c '
import http.server, os, threading, time
class Server(http.server.ThreadingHTTPServer):
    allow_reuse_address = True
while True:
    server = Server(("", 8000), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while not os.path.exists("/tmp/closed"):
        time.sleep(0.1)
    server.shutdown()
    server.server_close()
    while os.path.exists("/tmp/closed"):
        time.sleep(0.1)
'"""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    running = Engine(tmp_path / "engine").start()
    yield running
    running.restart()
    running.kill_all()
    running.stop()


@pytest.fixture
def keeper(tmp_path: Path, engine: Engine) -> Iterator[Keeper]:
    preview = f"http://{{port}}-{{instance}}.localhost:{engine.port}"
    regions = json.dumps({"default": {"preview_url": preview}})
    running = Keeper(tmp_path / "keeper", engine=engine, app_watch_period_s=1, regions=regions)
    yield running.start()
    running.stop()


class Shown:
    """A project and its pane in the dashboard."""

    def __init__(self, page: Page, keeper: Keeper) -> None:
        self.name = f"web-{secrets.token_hex(4)}"
        self.pane = page.locator("sandbox-preview")
        self.bar, self.frame = self.pane.locator(".bar"), self.pane.locator("iframe")
        self._page, self._keeper = page, keeper

    async def call(self, method: str, rest: str = "", body: object = None) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._keeper.key}"}
        async with httpx.AsyncClient(base_url=self._keeper.url, headers=headers) as client:
            url = f"/api/sandboxes/{self.name}{rest}"
            answer = await client.request(method, url, json=body, timeout=60)
        return answer.raise_for_status().json()

    async def open(self, start_command: str) -> dict[str, Any]:
        """Create the sandbox with this app, and open its page."""
        made = await self.call("PUT", body={"port": 8000, "startCommand": start_command})
        await self._page.goto(f"{self._keeper.dashboard_url}/sandboxes/{self.name}")
        await self._page.get_by_label("Operator or viewer key").fill(self._keeper.key)
        await self._page.keyboard.press("Enter")
        return made

    async def expect_green(self) -> None:
        await expect(self.bar).to_have_attribute("data-badge", "green")
        app = self.pane.frame_locator("iframe").locator("h1")
        await expect(app).to_contain_text("Directory listing")

    async def expect_no_green(self) -> None:
        await expect(self.bar).not_to_have_attribute("data-badge", "green")
        await expect(self.frame).to_have_count(0)

    @property
    def title(self) -> Locator:
        return self.pane.locator("h2")

    @property
    def caption(self) -> Locator:
        return self.pane.locator(".caption")


async def test_green_goes_when_the_app_ends_and_when_the_provider_falls_silent(
    page: Page, engine: Engine, keeper: Keeper
) -> None:
    shown = Shown(page, keeper)
    made = await shown.open(APP)
    await shown.expect_green()

    sandbox = await AsyncSandbox.connect(made["instanceId"], **engine.sdk_options())
    await sandbox.commands.run("pkill -x python3")
    await shown.expect_no_green()
    await expect(shown.title).to_contain_text("App ")
    await shown.pane.get_by_role("button", name="Restart app").click()
    await shown.expect_green()

    engine.kill9()
    await shown.expect_no_green()
    await expect(shown.title).to_have_text("Provider unreachable", timeout=60_000)
    await expect(shown.caption).to_contain_text("has not answered since")
    await expect(shown.pane).to_have_attribute("data-state", "UNKNOWN")

    engine.restart()
    await expect(shown.bar).to_have_attribute("data-badge", "green", timeout=60_000)
    await shown.expect_green()


async def test_green_goes_while_the_port_is_closed_and_the_process_lives(
    page: Page, engine: Engine, keeper: Keeper
) -> None:
    shown = Shown(page, keeper)
    made = await shown.open(DOOR)
    await shown.expect_green()
    sandbox = await AsyncSandbox.connect(made["instanceId"], **engine.sdk_options())
    await sandbox.commands.run("touch /tmp/closed")
    await shown.expect_no_green()
    await expect(shown.title).to_have_text("App not responding")
    await expect(shown.caption).to_have_text("The sandbox is running, but its app does not answer.")
    assert (await sandbox.commands.run("pgrep -x python3")).exit_code == 0
    await sandbox.commands.run("rm /tmp/closed")
    await shown.expect_green()


async def test_a_pause_by_hand_is_no_automatic_one_and_shows_no_frame(
    page: Page, keeper: Keeper
) -> None:
    shown = Shown(page, keeper)
    await shown.open(APP)
    await shown.expect_green()
    await shown.call("POST", "/pause")
    await shown.expect_no_green()
    await expect(shown.title).to_have_text("Sandbox asleep")
    await expect(shown.caption).to_have_text("Paused on request. Wake it to continue.")


async def test_an_app_that_crashes_at_its_start_is_never_green(page: Page, keeper: Keeper) -> None:
    shown = Shown(page, keeper)
    await shown.open("sh -c 'echo no database; exit 3'")
    await expect(shown.title).to_have_text("App crashed (exit 3)")
    await shown.expect_no_green()
    await expect(shown.pane.locator("pre")).to_contain_text("no database")
