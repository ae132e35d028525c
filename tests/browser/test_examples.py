"""The examples, each started by its one command and used in a browser.

The suite runs those that need nothing installed; `make examples` runs all of them.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from sandkeeper.client import AsyncSandkeeper
from support.keeper_process import Keeper
from support.process_leaks import end_all

ROOT = Path(__file__).parents[2]
INSTALLED = ("express", "vite-react", "next")
RUNS_CODE = {"fastapi", "express"}
ALL = bool(os.environ.get("ALL_EXAMPLES"))
needs_all = pytest.mark.skipif(not ALL, reason="it installs npm packages: make examples")

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


@asynccontextmanager
async def started(name: str, variables: Mapping[str, str]) -> AsyncIterator[str]:
    """Run `make example NAME=…`; give the URL that it prints."""
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SANDKEEPER_", "E2B_"))
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "scripts" / "example.py"),
        name,
        env={**plain, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    said = ""
    try:
        while not (found := re.search(r"open (http://\S+) ", said)):
            line = await process.stdout.readline()
            assert line, said
            said += line.decode()
        yield found[1]
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.communicate()


@pytest.mark.parametrize(
    "name", ["plain", "fastapi", *(pytest.param(name, marks=needs_all) for name in INSTALLED)]
)
async def test_an_example_shows_the_sandbox_and_wakes_it(
    page: Page, product: Keeper, name: str
) -> None:
    named = {"SANDKEEPER_URL": product.url, "SANDKEEPER_OPERATOR_KEY": product.key}
    async with started(name, named) as url, AsyncSandkeeper(product.url, product.key) as keeper:
        await keeper.project("shop").wake()
        await page.goto(url, timeout=120_000)
        pane, state = page.locator("sandbox-preview"), page.locator("#state")
        await expect(pane).to_have_attribute("data-state", "RUNNING", timeout=60_000)
        await expect(pane.frame_locator("iframe").locator("h1")).to_have_text("The shop")
        await keeper.project("shop").pause()
        await expect(state).to_have_text("PAUSED")
        await pane.get_by_role("button", name="Wake sandbox").click()
        await expect(state).to_have_text("RUNNING")
        await expect(pane.frame_locator("iframe").locator("h1")).to_have_text("The shop")
        if name in RUNS_CODE:
            await page.get_by_role("button", name="Run a command").click()
            await expect(page.locator("#said")).to_have_text("hello from inside")
        if name == "next":
            refused = await page.request.get(f"{url}/sandkeeper-token?project=other")
            assert refused.status == 403
            token = await (await page.request.get(f"{url}/sandkeeper-token?project=shop")).text()
            async with AsyncSandkeeper(product.url, token) as browser:
                assert (await browser.me()).role == "client"
        await page.goto("about:blank")


@needs_all
async def test_one_command_brings_its_own_keeper(page: Page, tmp_path: Path) -> None:
    data = tmp_path / "data"
    try:
        async with started("plain", {"SANDKEEPER_DATA": str(data)}) as url:
            await page.goto(url)
            pane = page.locator("sandbox-preview")
            await expect(pane.frame_locator("iframe").locator("h1")).to_have_text("The shop")
            await page.goto("about:blank")
    finally:
        end_all(data / "engine")  # A keeper that stops leaves its sandboxes as they are.
