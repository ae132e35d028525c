"""A person signs in to the dashboard with a real identity provider, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.async_api import Page, expect

from support.engine_process import Engine
from support.identity_provider import RealProvider, free_port, keeping_people
from support.keeper_process import Keeper

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def people(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RealProvider, Keeper]]:
    port = free_port()
    provider = RealProvider(f"http://sandkeeper.localhost:{port}/login/oidc/callback").start()
    data = tmp_path_factory.mktemp("people") / "data"
    try:
        with keeping_people(data, provider.issuer, port, engine=engine) as keeper:
            yield provider, keeper
    finally:
        provider.stop()


async def go_and_sign_in(page: Page, person: str) -> None:
    await page.get_by_role("link", name="Sign in with Example").click()
    await page.get_by_placeholder("Enter any login").fill(person)
    await page.get_by_placeholder("and password").fill("any")
    await page.get_by_role("button", name="Sign-in").click()


async def test_a_person_signs_in_with_the_provider_and_out(
    page: Page, people: tuple[RealProvider, Keeper]
) -> None:
    provider, keeper = people
    await page.goto(f"{keeper.url}/audit")
    await expect(page.get_by_label("Operator or viewer key")).to_be_visible()
    await go_and_sign_in(page, "ada")
    await page.wait_for_url(f"{keeper.dashboard_url}/audit")
    await expect(page.get_by_text("person:ada@example.test").first).to_be_visible()
    cookies = {one["name"]: one for one in await page.context.cookies(keeper.dashboard_url)}
    assert cookies["sandkeeper_login"]["sameSite"] == "Strict"
    assert cookies["sandkeeper_login"]["httpOnly"]
    assert "sandkeeper_sign_in" not in cookies
    assert "sandkeeper" not in json.dumps(
        [one["name"] for one in await page.context.cookies(provider.issuer)]
    )
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("link", name="Sign in with Example")).to_be_visible()
    assert await page.evaluate("fetch('/api/me').then((answer) => answer.status)") == 401


async def test_a_person_without_a_role_reads_why_and_finds_the_way_back(
    page: Page, people: tuple[RealProvider, Keeper]
) -> None:
    _, keeper = people
    await page.goto(keeper.dashboard_url + "/")
    await go_and_sign_in(page, "eve")
    await expect(page.get_by_role("alert")).to_contain_text("eve@example.test has no role")
    await page.get_by_role("link", name="Back to the sign-in page").click()
    await expect(page.get_by_role("link", name="Sign in with Example")).to_be_visible()


async def test_a_provider_that_is_down_is_told_on_a_page(
    page: Page, people: tuple[RealProvider, Keeper]
) -> None:
    provider, keeper = people
    provider.stop()
    await page.goto(keeper.dashboard_url + "/")
    await page.get_by_role("link", name="Sign in with Example").click()
    await expect(page.get_by_role("alert")).to_contain_text("cannot be used now")
