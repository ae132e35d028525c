"""Browser, keeper, engine and real sandboxes together."""

from __future__ import annotations

import contextlib
import re
import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Error as BrowserError
from playwright.async_api import Page, expect

from support.engine_process import Engine
from support.eventually import eventually
from support.keeper_process import Keeper, keeping
from support.scripted_api import host_app, served

# A site of one file, which is written only if it is not there yet.
APP = (
    "mkdir -p site; [ -e site/index.html ] || echo '<h1>written by the app</h1>' > site/index.html;"
    " exec python3 -m http.server 3000 --directory site"
)

ROOT = Path(__file__).parents[2]
README_SNIPPET = re.compile(r"```html\n(.+?)```", re.DOTALL)

pytestmark = pytest.mark.asyncio(loop_scope="session")


def client_of(product: Keeper) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {product.key}"}
    return httpx.AsyncClient(base_url=product.url, headers=headers, timeout=60)


async def create(product: Keeper, **asked: Any) -> tuple[str, dict[str, Any]]:
    project = f"web-{secrets.token_hex(4)}"
    async with client_of(product) as client:
        answer = await client.put(f"/api/sandboxes/{project}", json=asked)
        assert answer.status_code == 201, answer.text
        return project, answer.json()


async def sign_in(page: Page, product: Keeper, path: str, key: str | None = None) -> None:
    await page.goto(product.url + path)
    await page.get_by_label("Operator or viewer key").fill(key or product.key)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()


async def test_a_sandbox_falls_asleep_before_the_eyes_and_its_page_never_kept_it_awake(
    page: Page, product: Keeper
) -> None:
    project, _ = await create(product, policy={"idleTimeoutMs": 3000})
    await sign_in(page, product, f"/sandboxes/{project}")
    pane = page.locator("sandbox-preview")
    await expect(pane).to_have_attribute("data-state", "PAUSED")
    await expect(pane.get_by_role("heading", name="Sandbox asleep")).to_be_visible()
    await expect(pane.locator(".caption")).to_contain_text("Auto-paused after 3 seconds")
    await page.get_by_role("link", name="Timeline").click()
    await expect(page.locator(".timeline")).to_contain_text("Running → Asleep")


async def test_a_landing_page_has_its_sandbox_resumed_before_anybody_asks(
    page: Page, product: Keeper
) -> None:
    project, _ = await create(product)
    async with client_of(product) as client:
        await client.post(f"/api/sandboxes/{project}/pause", json={})
        token = await client.post("/api/client-tokens", json={"project": project})
    await page.goto(product.url)
    answer = await page.evaluate(
        """async ([project, token]) => {
            const { Client } = await import("/embed/client.js");
            return new Client({ token }).warm(project);
        }""",
        [project, token.json()["token"]],
    )
    assert answer["result"] == "started"
    async with client_of(product) as client:

        async def is_running() -> bool:
            status = (await client.get(f"/api/sandboxes/{project}/status")).json()
            return bool(status["status"] == "RUNNING")

        await eventually(is_running)


async def test_a_kill_behind_the_back_is_seen_without_a_reload(page: Page, product: Keeper) -> None:
    project, status = await create(product)
    await sign_in(page, product, f"/sandboxes/{project}")
    pane = page.locator("sandbox-preview")
    await expect(pane).to_have_attribute("data-state", "RUNNING")
    with product.engine_client() as engine:
        engine.delete(f"/sandboxes/{status['instanceId']}")
    await expect(pane.get_by_role("heading", name="Sandbox not found")).to_be_visible()
    await expect(pane.get_by_role("button", name="Wake sandbox")).to_be_visible()


async def test_one_key_press_brings_the_preview_back_with_its_files(
    page: Page, product: Keeper
) -> None:
    """Asleep, woken by keyboard, live; then killed behind the back, woken, recreated, live."""
    # Routing turns the browser's cache off: the small server in the sandbox tells versions of a
    # file apart by the second only.
    await page.route("**/*", lambda route: route.continue_())
    project, status = await create(product, port=3000, startCommand=APP)
    await sign_in(page, product, f"/sandboxes/{project}")
    pane = page.locator("sandbox-preview")
    app = pane.frame_locator("iframe").locator("h1")
    await expect(app).to_have_text("written by the app")
    async with client_of(product) as client:
        written = await client.put(
            f"/api/sandboxes/{project}/files/site/index.html", content=b"<h1>written by me</h1>"
        )
        assert written.status_code == 200, written.text
        paused = await client.post(f"/api/sandboxes/{project}/pause")
        assert paused.status_code == 200, paused.text
    await expect(pane.locator("iframe")).to_have_count(0)
    await pane.get_by_role("button", name="Wake sandbox").focus()
    await page.keyboard.press("Enter")
    await expect(app).to_have_text("written by me", timeout=60_000)

    with product.engine_client() as engine:
        engine.delete(f"/sandboxes/{status['instanceId']}")
    await expect(pane.get_by_role("heading", name="Sandbox not found")).to_be_visible()
    await pane.get_by_role("button", name="Wake sandbox").click()
    await expect(app).to_have_text("written by me", timeout=60_000)
    await pane.get_by_role("button", name="Recreated").click()
    await expect(pane.locator(".receipt")).to_contain_text("files restored")
    await page.get_by_role("link", name="Files").click()
    await expect(page.get_by_role("table", name="Kept files")).to_contain_text("site/index.html")
    await page.get_by_role("link", name="Timeline").click()
    await expect(page.get_by_role("table", name="Steps of the last wake")).to_contain_text(
        "recreating"
    )
    await page.goto(product.url + "/charts")
    chart = page.get_by_role("figure").filter(has_text="Time until awake")
    await expect(chart.get_by_role("listitem").filter(has_text="resume")).to_be_visible()
    await expect(chart.get_by_role("listitem").filter(has_text="recreation")).to_be_visible()


async def test_an_app_that_dies_shows_its_last_words(page: Page, product: Keeper) -> None:
    project, _ = await create(product, port=3000, startCommand="echo my last words; exit 3")
    await sign_in(page, product, f"/sandboxes/{project}")
    pane = page.locator("sandbox-preview")
    await expect(pane.get_by_role("heading", name="App crashed (exit 3)")).to_be_visible()
    await expect(pane.locator("pre")).to_contain_text("my last words")


async def test_a_terminal_shows_a_real_shell_and_comes_back_after_a_lost_connection(
    page: Page, product: Keeper
) -> None:
    project, _ = await create(product)
    refused: list[str] = []
    page.on(
        "console",
        lambda said: refused.append(said.text) if "Content Security" in said.text else None,
    )
    await sign_in(page, product, f"/sandboxes/{project}?tab=terminal")
    await page.get_by_role("button", name="Open terminal").click()
    screen = page.locator(".xterm-rows")
    await expect(screen).to_contain_text("$")
    await page.keyboard.type("kept=here; printf '\\033[38;2;255;90;0mcol''our\\033[0m\\n'\n")
    await expect(screen).to_contain_text("colour")
    await page.evaluate(
        """() => {
            const { send } = WebSocket.prototype;
            WebSocket.prototype.send = function () {
                this.close();
                WebSocket.prototype.send = send;
            };
        }"""
    )
    await page.keyboard.type("x")
    await expect(page.locator(".terminal [role=status]").first).to_have_text("")
    await page.keyboard.press("Control+u")
    await page.keyboard.type('echo "it is $kept"\n')
    await expect(screen).to_contain_text("it is here")
    assert refused == []


async def test_a_ready_job_sleeps_and_resumes_from_its_card(page: Page, product: Keeper) -> None:
    job = f"job-{secrets.token_hex(4)}"
    async with client_of(product) as client:
        asked = {"job_id": job, "port": 3000, "start_command": APP}
        assert (await client.post("/api/jobs", json=asked)).status_code == 201
        assert (await client.post(f"/api/jobs/{job}/ready")).json()["sandbox_paused"]
    await sign_in(page, product, "/jobs")
    card = page.get_by_role("article", name=job)
    await expect(card).to_contain_text("Ready")
    await expect(card).to_contain_text("Your preview is sleeping.")
    await card.get_by_role("button", name="Resume preview").click()
    await expect(card.get_by_role("link", name="Open preview")).to_be_visible(timeout=60_000)
    await card.get_by_role("link", name=job).click()
    frame = page.locator("sandbox-preview").frame_locator("iframe")
    await expect(frame.locator("h1")).to_have_text("written by the app")


async def test_the_fleet_is_live_and_bulk_pauses_real_sandboxes(
    page: Page, product: Keeper
) -> None:
    mark = secrets.token_hex(4)
    names = [(await create(product, metadata={"batch": mark}))[0] for _ in range(2)]
    await sign_in(page, product, f"/?search={mark}")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(2)
    await page.get_by_label("Select all on this page").check()
    await page.locator(".bulk").get_by_role("button", name="Pause").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Pause").click()
    await expect(dialog).to_contain_text("2 of 2 done")
    await dialog.get_by_role("button", name="Close").click()
    await expect(page.locator("tr[data-state=PAUSED]")).to_have_count(2)
    async with client_of(product) as client:
        await client.delete(f"/api/sandboxes/{names[0]}")
    await expect(page.locator("tr[data-state=KILLED]")).to_have_count(1)


async def test_a_viewer_may_look(page: Page, product: Keeper) -> None:
    project, _ = await create(product)
    await sign_in(page, product, "/?search=" + project, "sk_a_viewer")
    await expect(page.get_by_role("link", name=project)).to_be_visible()
    assert await page.get_by_label("Select").count() == 0
    for path in (
        "/sessions",
        "/pools",
        "/health",
        "/charts",
        "/costs",
        "/webhooks",
        "/drift",
        "/audit",
    ):
        await page.goto(product.url + path)
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        await expect(page.get_by_text("Loading…")).to_have_count(0)
        await expect(page.get_by_role("alert")).to_have_count(0)


async def test_the_snippet_of_the_readme_works_in_a_page_of_another_origin(
    page: Page, product: Keeper
) -> None:
    project, _ = await create(product)
    async with client_of(product) as client:
        issued = (await client.post("/api/client-tokens", json={"project": project})).json()
        before = await counted(client, "sandkeeper_page_views_total")
        snippet = README_SNIPPET.search((ROOT / "README.md").read_text())
        assert snippet is not None
        given = {"http://127.0.0.1:7420": product.url, "shop": project, "TOKEN": issued["token"]}
        html = re.sub("|".join(given), lambda found: given[found[0]], snippet[1])
        async with served(host_app(f"<!doctype html><title>host</title>{html}")) as url:
            await page.goto(url)
            pane = page.locator("sandbox-preview")
            await expect(pane).to_have_attribute("data-state", "RUNNING")
            await client.post(f"/api/sandboxes/{project}/pause")
            await expect(pane).to_have_attribute("data-state", "PAUSED")

            async def viewed() -> bool:
                return await counted(client, "sandkeeper_page_views_total") > before

            await eventually(viewed)
            # The token is good for one project: another's pane is told so, and shows nothing of it.
            other, _ = await create(product)
            await pane.evaluate("(pane, name) => pane.setAttribute('project', name)", other)
            await expect(pane.get_by_role("alert")).to_contain_text("another sandbox")
            await page.goto("about:blank")


async def test_a_provider_that_is_down_shows_a_connection_issue_and_retry_finds_it_again(
    page: Page, own_engine: Engine, tmp_path: Path
) -> None:
    quick = {"reconcile_period_s": 300, "catch_up_period_s": 300, "breaker_open_s": 0.1}
    with keeping(tmp_path / "data", engine=own_engine, **quick) as keeper:
        project, _ = await create(keeper)
        await sign_in(page, keeper, f"/sandboxes/{project}")
        pane = page.locator("sandbox-preview")
        await expect(pane).to_have_attribute("data-state", "RUNNING")
        own_engine.kill9()
        await pane.get_by_role("button", name="Refresh").click()
        silent = re.compile("Connection issue|Provider unreachable")
        await expect(pane.get_by_role("heading", name=silent)).to_be_visible(timeout=90_000)
        retry = pane.get_by_role("button", name="Retry")
        await expect(retry).to_be_visible()
        own_engine.restart()

        async def recovered() -> bool:
            # The mismatch that the page reported is verified behind it, so it may recover alone.
            with contextlib.suppress(BrowserError):
                await retry.click(timeout=500)
            return await pane.get_attribute("data-state") == "RUNNING"

        await eventually(recovered, within_s=90)
        async with client_of(keeper) as client:
            assert await counted(client, "sandkeeper_status_mismatches_total") >= 1


async def counted(client: httpx.AsyncClient, name: str) -> float:
    """What a counter stands at."""
    lines = (await client.get("/metrics")).text.splitlines()
    found = [line for line in lines if line.startswith(name)]
    return float(found[0].split()[-1]) if found else 0.0


async def test_an_operator_makes_a_key_and_revokes_it_and_turns_a_switch(
    page: Page, product: Keeper
) -> None:
    name = f"ci-{secrets.token_hex(4)}"
    await sign_in(page, product, "/keys")
    await page.get_by_label("Name").fill(name)
    await page.get_by_label("Scope").fill("read")
    await page.get_by_role("button", name="Create key").click()
    dialog = page.get_by_role("dialog")
    key = (await dialog.locator("pre").inner_text()).strip()
    await dialog.get_by_role("button", name="Close").click()
    async with httpx.AsyncClient(base_url=product.url) as client:
        headers = {"Authorization": f"Bearer {key}"}
        assert (await client.get("/api/me", headers=headers)).json()["name"] == f"key:{name}"
        await page.get_by_role("button", name=f"Revoke the key {name}").click()
        await dialog.get_by_role("button", name="Revoke").click()
        await expect(page.get_by_role("cell", name=name)).to_have_count(0)

        async def is_refused() -> bool:
            return (await client.get("/api/me", headers=headers)).status_code == 401

        await eventually(is_refused)

    await page.get_by_role("link", name="Switches and tasks").click()
    row = page.get_by_role("row").filter(has_text="legacy_verify")
    await row.get_by_role("button", name="Switch on").click()
    await row.get_by_role("button", name="Switch off").click()
    await dialog.get_by_role("button", name="Switch off").click()
    await expect(row.get_by_role("button", name="Switch on")).to_be_visible()
    await expect(page.get_by_role("table", name="Background tasks")).to_contain_text("idle-sweep")
