"""A desktop's live view on the dashboard: a real browser watches and uses a real screen."""

from __future__ import annotations

from collections.abc import AsyncIterator

import e2b
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from sandkeeper.client import AsyncSandkeeper
from sandkeeper.engine.templates import desktop
from support.eventually import eventually
from support.keeper_process import Keeper

MISSING = desktop.find_missing()
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(
        bool(MISSING), reason=f"`make desktop` was not run: {', '.join(MISSING)} missing"
    ),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def patient(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Keeper]:
    """A keeper that gives a slow machine's desktop time."""
    limits = {"stream_ready_timeout_ms": 50_000, "session_check_timeout_s": 30}
    running = Keeper(tmp_path_factory.mktemp("live") / "data", **limits)
    try:
        yield running.start()
    finally:
        running.stop()


async def sign_in(page: Page, keeper: Keeper, path: str) -> None:
    await page.goto(keeper.url + path)
    await page.get_by_label("Operator or viewer key").fill(keeper.key)
    await page.keyboard.press("Enter")


async def test_a_person_watches_and_uses_the_desktop_and_stops(page: Page, patient: Keeper) -> None:
    async with AsyncSandkeeper(patient.url, patient.key) as keeper:
        async with keeper.sessions.hold("ada", "live", kind="desktop") as held:
            assert held.sandbox is not None
            await sign_in(page, patient, f"/sandboxes/{held.sandbox.project}")
            await page.get_by_role("button", name="Live view", exact=True).click()

            screen = page.frame_locator("iframe.live").locator("canvas")
            await expect(screen).to_have_js_property("width", 1024)
            await expect(screen).to_have_js_property("height", 768)
            await moves_the_mouse_inside(page, patient, held.connection.instance_id)
            assert (await keeper.sessions.show_stream(held.id)).running

            await page.get_by_role("button", name="Stop live view").click()
            await expect(page.locator("iframe.live")).to_have_count(0)

            async def has_stopped() -> bool:
                return not (await keeper.sessions.show_stream(held.id)).running

            await eventually(has_stopped)
        await keeper.sessions.close(held.id)


async def moves_the_mouse_inside(page: Page, keeper: Keeper, instance_id: str) -> None:
    """The pointer in the picture is the pointer of the screen: the middle of one is the other's."""
    options = {"api_url": keeper.engine_url, "sandbox_url": keeper.engine_url}
    native = await e2b.AsyncSandbox.connect(instance_id, api_key=keeper.engine_key, **options)
    screen = page.frame_locator("iframe.live").locator("canvas")

    async def is_in_the_middle() -> bool:
        await screen.hover()
        at = await native.commands.run("xdotool getmouselocation --shell")
        found = dict(line.split("=") for line in at.stdout.split())
        return abs(int(found["X"]) - 512) < 20 and abs(int(found["Y"]) - 384) < 20

    await eventually(is_in_the_middle, within_s=60)


async def test_a_session_without_a_screen_has_no_such_button(page: Page, patient: Keeper) -> None:
    async with AsyncSandkeeper(patient.url, patient.key) as keeper:
        found = await keeper.sessions.acquire("ada", "code", template="base")
        assert found.sandbox is not None
        await sign_in(page, patient, f"/sandboxes/{found.sandbox.project}")
        await expect(page.get_by_role("table", name="Sessions")).to_be_visible()
        await expect(page.get_by_role("button", name="Live view")).to_have_count(0)
        await keeper.sessions.close(found.id)
