"""Many tabs of one browser share one stream."""

from __future__ import annotations

import pytest
from playwright.async_api import BrowserContext, expect

from support.eventually import eventually
from support.scripted_api import ScriptedApi

pytestmark = pytest.mark.asyncio(loop_scope="session")

TABS = 12
HOST = """<!doctype html><title>host</title>
<script type="module" src="/embed/pane.js"></script>
<sandbox-preview project="shop"></sandbox-preview>"""


async def test_twelve_tabs_hold_one_stream_and_survive_their_leader(
    context: BrowserContext, scripted: ScriptedApi
) -> None:
    """A browser allows six connections per origin; the seventh stream would hang for ever."""
    scripted.tell("shop", "RUNNING")
    scripted.pages["pane"] = (HOST, {})
    tabs = []
    for _ in range(TABS):
        tab = await context.new_page()
        await tab.goto(scripted.url + "/page/pane")
        await expect(tab.locator("sandbox-preview")).to_have_attribute("data-state", "RUNNING")
        tabs.append(tab)
    await eventually(lambda: len(scripted.streams) == 1)
    scripted.tell("shop", "PAUSED")
    for tab in tabs:
        await expect(tab.locator("sandbox-preview")).to_have_attribute("data-state", "PAUSED")
    assert scripted.streams_opened == 1

    await tabs[0].close()
    await eventually(lambda: scripted.streams_opened == 2 and len(scripted.streams) == 1)
    scripted.tell("shop", "KILLED")
    for tab in tabs[1:]:
        await expect(tab.locator("sandbox-preview")).to_have_attribute("data-state", "KILLED")
