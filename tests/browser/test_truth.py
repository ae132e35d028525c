"""The pane never stays green over a frame that does not answer, whatever failed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2b import AsyncSandbox
from playwright.async_api import Page, expect

from support.engine_process import Engine
from support.keeper_process import Keeper

pytestmark = pytest.mark.asyncio(loop_scope="session")

APP = "python3 -m http.server 8000"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    running = Engine(tmp_path / "engine").start()
    yield running
    running.restart()
    running.kill_all()
    running.stop()


@pytest.fixture
def keeper(tmp_path: Path, engine: Engine) -> Iterator[Keeper]:
    running = Keeper(tmp_path / "keeper", engine=engine, app_watch_period_s=1).start()
    yield running
    running.stop()


async def test_green_goes_when_the_app_ends_and_when_the_provider_falls_silent(
    page: Page, engine: Engine, keeper: Keeper
) -> None:
    project = f"web-{secrets.token_hex(4)}"
    headers = {"Authorization": f"Bearer {keeper.key}"}
    async with httpx.AsyncClient(base_url=keeper.url, headers=headers, timeout=60) as client:
        body = {"port": 8000, "startCommand": APP}
        made = (await client.put(f"/api/sandboxes/{project}", json=body)).json()
    await page.goto(f"{keeper.dashboard_url}/sandboxes/{project}")
    await page.get_by_label("Operator or viewer key").fill(keeper.key)
    await page.keyboard.press("Enter")
    pane = page.locator("sandbox-preview")
    bar, frame = pane.locator(".bar"), pane.locator("iframe")
    await expect(bar).to_have_attribute("data-badge", "green")
    await expect(frame).to_be_visible()

    sandbox = await AsyncSandbox.connect(made["instanceId"], **engine.sdk_options())
    await sandbox.commands.run("pkill -x python3")
    await expect(bar).not_to_have_attribute("data-badge", "green")
    await expect(frame).to_have_count(0)
    await expect(pane.locator("h2")).to_contain_text("App ")
    await pane.get_by_role("button", name="Restart app").click()
    await expect(bar).to_have_attribute("data-badge", "green")
    await expect(frame).to_be_visible()

    engine.kill9()
    await expect(bar).not_to_have_attribute("data-badge", "green")
    await expect(frame).to_have_count(0)
    await expect(pane.locator("h2")).to_have_text("Provider unreachable", timeout=60_000)
    await expect(pane.locator(".caption")).to_contain_text("has not answered since")
