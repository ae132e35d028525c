"""Fixtures of the browser tests.

browser   one real Chromium for all tests of a worker
page      a page in a context of its own, with the errors that its scripts threw in `page.faults`
scripted  a server with scripted answers, and the preview that its sandboxes show
product   the whole product, `sandkeeper up`, with quick periods: make your own projects in it
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from support.keeper_process import Keeper
from support.scripted_api import ScriptedApi, preview_app, served

# The machine may be busy with other tests; a wait that is not needed costs nothing.
expect.set_options(timeout=30_000)

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium on this machine: install the package chromium")
    async with async_playwright() as playwright:
        # A browser of root has no sandbox of its own; the pages here are ours.
        options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = await playwright.chromium.launch(executable_path=program, args=options)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    context = await browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(30_000)
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(context: BrowserContext) -> AsyncIterator[Page]:
    page = await context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    yield page
    assert faults == []


@pytest_asyncio.fixture(loop_scope="session")
async def scripted() -> AsyncIterator[ScriptedApi]:
    api = ScriptedApi()
    async with served(preview_app()) as preview, served(api.app()) as url:
        api.url, api.preview_url = url, preview + "/"
        yield api
        api.cut_streams()


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    quick = {
        "newborn_grace_s": 0,
        "woken_grace_s": 0,
        "reconcile_period_s": 2,
        "catch_up_period_s": 1,
        "creations_per_s": 50,
        "viewer_keys": "sk_a_viewer",
        "allowed_origins": "*",
    }
    running = Keeper(tmp_path_factory.mktemp("browser") / "data", **quick)
    try:
        yield running.start()
    finally:
        running.stop()
