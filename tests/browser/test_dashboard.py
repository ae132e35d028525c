"""The dashboard in a real browser: fleet, detail, charts, jobs, login."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from support.eventually import eventually
from support.scripted_api import ScriptedApi

pytestmark = pytest.mark.asyncio(loop_scope="session")

AXE = Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js"


async def test_a_wrong_key_is_refused_and_a_right_one_opens_the_fleet(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.signed_in = False
    scripted.tell("shop", "RUNNING")
    await page.goto(scripted.url + "/")
    key = page.get_by_label("Operator or viewer key")
    await key.fill("wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("not one of ours")
    await key.fill("right")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("link", name="shop")).to_be_visible()
    await page.get_by_role("button", name="Sign out").click()
    await expect(key).to_be_visible()


async def test_a_link_with_a_login_code_signs_in_and_leaves_a_clean_address(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.signed_in = False
    scripted.tell("shop", "RUNNING")
    await page.goto(scripted.url + "/#code=right")
    await expect(page.get_by_role("link", name="shop")).to_be_visible()
    await expect(page).to_have_url(scripted.url + "/")
    await page.get_by_role("button", name="Sign out").click()
    await page.goto(scripted.url + "/#code=spent")
    await expect(page.get_by_label("Operator or viewer key")).to_be_visible()
    await expect(page).to_have_url(scripted.url + "/")


async def test_a_viewer_sees_everything_and_can_change_nothing(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.role = "viewer"
    scripted.tell("shop", "RUNNING")
    await page.goto(scripted.url + "/")
    await expect(page.get_by_role("link", name="shop")).to_be_visible()
    assert await page.get_by_label("Select").count() == 0
    await page.get_by_role("link", name="shop").click()
    await expect(page.get_by_role("heading", name="shop")).to_be_visible()
    await expect(page.locator(".truth")).to_contain_text("Running")
    assert await page.locator("button[data-operation]").count() == 0


async def test_sorting_filtering_and_paging_are_the_servers_and_stand_in_the_address(
    page: Page, scripted: ScriptedApi
) -> None:
    for number in range(120):
        scripted.tell(f"p{number:03}", "PAUSED" if number % 2 else "RUNNING")
    await page.goto(scripted.url + "/")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(50)
    order = page.get_by_role("button", name="Sandbox", exact=True)
    await order.click()
    await expect(rows.first).to_contain_text("p000")
    await page.get_by_role("button", name="Sandbox ↑").click()
    await expect(rows.first).to_contain_text("p119")
    await page.get_by_role("button", name="Sandbox ↓").click()
    await expect(rows.first).to_contain_text("p000")
    await page.get_by_role("button", name="Next page").click()
    await expect(rows.first).to_contain_text("p050")
    await page.get_by_role("button", name="Next page").click()
    await expect(rows.first).to_contain_text("p100")
    await expect(page.get_by_text("Page 3 of 3")).to_be_visible()
    await page.get_by_role("button", name="Previous page").click()
    await expect(rows.first).to_contain_text("p050")
    await page.get_by_role("combobox", name="State").select_option("PAUSED")
    await expect(rows.first).to_contain_text("p001")
    assert "state=PAUSED" in page.url
    assert "sort=owner" in page.url
    await page.get_by_label("Search").fill("p03")
    await expect(rows).to_have_count(5)
    # The address is the view: another page shows the same rows.
    await page.goto(page.url)
    await expect(rows).to_have_count(5)
    await expect(page.get_by_label("Search")).to_have_value("p03")
    await page.get_by_label("Search").fill("nothing like it")
    await expect(page.get_by_text("No sandbox matches.")).to_be_visible()


async def test_a_row_changes_in_its_place_while_the_fleet_lives(
    page: Page, scripted: ScriptedApi
) -> None:
    for name in ("alpha", "beta", "gamma"):
        scripted.tell(name, "RUNNING")
    await page.goto(scripted.url + "/?sort=owner")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(3)
    await eventually(lambda: len(scripted.streams) == 1)
    scripted.tell("beta", "PAUSED", reason="idle for 3 minutes")
    await expect(rows.nth(1)).to_contain_text("Asleep")
    await expect(rows.nth(1).locator(".why")).to_have_attribute("title", "idle for 3 minutes")
    await expect(rows.nth(0)).to_contain_text("alpha")
    scripted.tell("delta", "RUNNING")
    await page.get_by_role("button", name="1 change elsewhere, show").click()
    await expect(rows).to_have_count(4)


async def test_the_list_is_loaded_once_and_after_the_stream_is_open(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.tell("shop", "RUNNING")
    await page.goto(scripted.url + "/")
    await expect(page.get_by_role("link", name="shop")).to_be_visible()
    await eventually(lambda: len(scripted.streams) == 1)
    scripted.tell("shop", "PAUSED")
    await expect(page.locator("tbody tr")).to_contain_text("Asleep")
    assert scripted.requests["GET /sandboxes"] == 1


async def test_a_bulk_action_counts_asks_and_tells_the_result_of_each(
    page: Page, scripted: ScriptedApi
) -> None:
    for name in ("bad-one", "good-one", "good-two"):
        scripted.tell(name, "RUNNING")
    await page.goto(scripted.url + "/")
    await page.get_by_label("Select all on this page").check()
    bulk = page.locator(".bulk")
    await bulk.get_by_role("button", name="Pause").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Pause 3 sandboxes?")
    await expect(dialog).to_contain_text("bad-one")
    await dialog.get_by_role("button", name="Cancel").click()
    assert [body["dryRun"] for line, body in scripted.bodies if "bulk" in line] == [True]
    await bulk.get_by_role("button", name="Pause").click()
    await dialog.get_by_role("button", name="Pause").click()
    await expect(dialog).to_contain_text("2 of 3 done")
    await expect(dialog).to_contain_text("The provider did not answer.")
    await dialog.get_by_role("button", name="Close").click()


async def test_an_empty_fleet_shows_how_to_begin_and_a_button_that_does(
    page: Page, scripted: ScriptedApi
) -> None:
    await page.goto(scripted.url + "/")
    await expect(page.get_by_text("sandkeeper create my-project")).to_be_visible()
    scripted.answers["PUT /sandboxes/"] = (201, {})
    scripted.answers["POST /sandboxes/"] = (200, {})
    scripted.answers["DELETE /sandboxes/"] = (200, {})
    await page.get_by_role("button", name="Start a demo fleet").click()
    await eventually(lambda: scripted.count("PUT /sandboxes/demo-") == 6)
    await eventually(lambda: scripted.count("DELETE /sandboxes/demo-") == 1)


async def test_a_chip_leads_to_what_is_wrong_and_what_helps(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.tell("shop", "RUNNING")
    await page.goto(scripted.url + "/")
    chip = page.locator("fleet-health a")
    await expect(chip).to_have_text("Background runs")
    await chip.click()
    parts = page.locator(".part")
    await expect(parts).to_have_count(2)
    await expect(parts.first).to_contain_text("What to do: Look for a slow database.")
    await expect(page.locator(".limits")).to_contain_text("background run 1 m 35 s, limit 1 m 30 s")


async def test_a_lost_connection_and_a_silent_provider_are_said_on_every_page(
    page: Page, scripted: ScriptedApi
) -> None:
    since = "2026-01-02T03:04:05Z"
    provider = {"name": "provider:e2b/eu", "title": "Provider e2b/eu", "state": "bad"}
    provider |= {"finding": "It has not answered since 03:04 UTC.", "since": since}
    scripted.parts = [provider | {"meaning": "Runs the sandboxes.", "action": "Check it."}]
    scripted.tell("shop", "RUNNING")
    await page.goto(scripted.url + "/sandboxes/shop")
    banner = page.locator(".banner")
    await expect(banner).to_contain_text("It has not answered since 03:04 UTC.")
    await eventually(lambda: len(scripted.streams) == 1)
    scripted.down = True
    scripted.cut_streams()
    await expect(banner).to_contain_text("Connection lost. Last update")
    scripted.down, scripted.parts = False, []
    await expect(banner).to_have_count(0)


@pytest.mark.parametrize("width", [1440, 1024, 390])
async def test_no_page_is_wider_than_its_window_or_moves_while_it_loads(
    page: Page, scripted: ScriptedApi, width: int
) -> None:
    for number in range(60):
        scripted.tell(f"shop-{number:03}", "PAUSED" if number % 3 else "RUNNING")
    await page.set_viewport_size({"width": width, "height": 800})
    for path in ("/", "/sandboxes/shop-001", "/health", "/audit"):
        await page.goto(scripted.url + path)
        await expect(page.locator("main h1")).to_be_visible()
        await expect(page.get_by_text("Loading…")).to_have_count(0)
        if path == "/":
            await expect(page.locator("tbody tr")).to_have_count(50)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        shift = await page.evaluate(
            """() => new Promise((resolve) => {
                const add = (list) => list.reduce((sum, one) => sum + one.value, 0);
                const seen = new PerformanceObserver((list) => resolve(add(list.getEntries())));
                seen.observe({ type: "layout-shift", buffered: true });
                setTimeout(() => resolve(0), 200);
            })"""
        )
        # On a slow machine a part may come late; it was 3.6 where parts had no room of their own.
        assert shift < 0.2, path


async def test_everything_is_found_by_keyboard(page: Page, scripted: ScriptedApi) -> None:
    scripted.tell("shop", "RUNNING")
    scripted.tell("blog", "PAUSED")
    await page.goto(scripted.url + "/")
    await expect(page.locator("tbody tr")).to_have_count(2)
    await page.keyboard.press("/")
    await page.keyboard.type("blo")
    await expect(page.locator(".found a").first).to_have_text("blog")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(scripted.url + "/sandboxes/blog")
    await page.keyboard.press("Control+k")
    await page.keyboard.type("heal")
    await expect(page.locator(".found a").first).to_have_text("Health")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(scripted.url + "/health")


async def test_counts_are_filters_columns_are_chosen_and_a_form_creates(
    page: Page, scripted: ScriptedApi
) -> None:
    for number in range(60):
        scripted.tell(f"p{number:03}", "PAUSED" if number % 2 else "RUNNING")
    await page.goto(scripted.url + "/")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(50)
    await page.get_by_role("button", name="Asleep 30").click()
    await expect(rows).to_have_count(30)
    assert "state=PAUSED" in page.url
    await page.get_by_role("button", name="All 60").click()
    await expect(rows).to_have_count(50)
    await page.get_by_text("Columns").click()
    await page.get_by_label("Template").check()
    await expect(page.get_by_role("columnheader", name="Template")).to_be_visible()
    assert "columns=" in page.url
    await page.keyboard.press("Escape")

    await page.get_by_label("Select all on this page").check()
    await page.get_by_role("button", name="Select all that match").click()
    await page.locator(".bulk").get_by_role("button", name="Wake").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Wake 30 sandboxes?")
    await dialog.get_by_role("button", name="Cancel").click()
    assert [body["filter"] for line, body in scripted.bodies if "bulk" in line] == [{}]

    await page.get_by_role("button", name="New sandbox").click()
    await dialog.get_by_label("Project").fill("new-one")
    await dialog.get_by_label("Port").fill("3000")
    scripted.answers["PUT /sandboxes/new-one"] = (201, scripted.tell("new-one", "STARTING"))
    await dialog.get_by_role("button", name="Create").click()
    await expect(page).to_have_url(scripted.url + "/sandboxes/new-one")
    await expect(page.locator("sandbox-preview")).to_be_visible()
    assert ("PUT /sandboxes/new-one", {"port": 3000}) in scripted.bodies


async def test_a_burst_of_changes_neither_fills_a_page_nor_makes_it_ask_for_each(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.tell("shop", "RUNNING")
    for path in ("/", "/sandboxes/shop", "/sandboxes/shop?tab=timeline", "/audit"):
        await page.goto(scripted.url + path)
        await expect(page.locator("main h1")).to_be_visible()
        await eventually(lambda: len(scripted.streams) == 1)
        asked = scripted.requests.total()
        scripted.burst("shop", 5000)
        last = scripted.sandboxes["shop"]["summary"]["sentence"]
        if path != "/audit":
            await expect(page.get_by_text(last).first).to_be_attached()
        assert scripted.requests.total() - asked < 100, path
        assert await page.evaluate("document.querySelectorAll('*').length") < 4000, path


async def test_the_detail_page_says_why_and_what_happened(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.tell("shop", "PAUSED")
    await page.goto(scripted.url + "/")
    await page.get_by_role("link", name="shop").click()
    await expect(page).to_have_url(scripted.url + "/sandboxes/shop")
    await expect(page.get_by_text("4 passive reads ignored")).to_be_visible()
    await expect(page.get_by_text("Idle limit: learned 4 min 10 s")).to_be_visible()
    await expect(page.get_by_text("Paused when idle 4 times, 1 too early")).to_be_visible()
    await expect(page.locator("sandbox-preview")).to_have_attribute("data-state", "PAUSED")
    await expect(page.locator(".truth")).to_have_text("Asleep It is asleep, as the script says.")
    await page.get_by_role("link", name="Timeline").click()
    await expect(page).to_have_url(scripted.url + "/sandboxes/shop?tab=timeline")
    await expect(page.locator(".timeline")).to_contain_text("Running → Asleep idle for 3 minutes")
    # Only what makes sense now is offered; the page says what came of it.
    await expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    await page.get_by_text("More").click()
    await page.get_by_role("button", name="Verify").click()
    await expect(page.locator(".toast")).to_contain_text("shop: Verify, no change: Asleep.")
    await page.get_by_text("More").click()
    await page.get_by_role("button", name="Kill").click()
    await page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    await eventually(lambda: scripted.count("DELETE /sandboxes/shop") == 1)
    await page.get_by_role("link", name="Sandboxes").first.click()
    await expect(page.locator("tbody tr")).to_have_count(1)


async def test_what_changed_before_the_stream_opened_is_not_missed(
    page: Page, scripted: ScriptedApi
) -> None:
    """The fleet's stream tells changes only; a change may fall before it is open."""
    scripted.stream_refused = True
    scripted.tell("shop", "STARTING", pollAfterMs=None)
    await page.goto(scripted.url + "/sandboxes/shop")
    pane = page.locator("sandbox-preview")
    await expect(pane).to_have_attribute("data-state", "STARTING")
    scripted.tell("shop", "PAUSED", pollAfterMs=None)
    scripted.stream_refused = False
    await expect(pane).to_have_attribute("data-state", "PAUSED")
    await expect(page.locator(".facts")).to_contain_text("Asleep")


async def test_a_chart_has_a_title_a_sentence_and_a_table(
    page: Page, scripted: ScriptedApi
) -> None:
    await page.goto(scripted.url + "/charts")
    chart = page.locator("figure").first
    await expect(chart.get_by_role("heading")).to_have_text("States over time")
    plot = chart.get_by_role("img")
    await expect(plot.locator("canvas")).to_be_visible()
    await chart.get_by_text("As a table").click()
    await expect(chart.get_by_role("columnheader", name="PAUSED")).to_be_visible()
    # Where samples are missing the line is interrupted.
    gap = await page.evaluate(
        """async () => {
            const { src } = document.querySelector("script[type=module]");
            const { alignPoints } = await import(src.replace("app.js", "chart.js"));
            const at = (minute) => [`2026-01-02T00:${minute}:00Z`, 1];
            return alignPoints([[at("00"), at("01"), at("30")]], 60)[1];
        }"""
    )
    assert gap == [1, 1, None, 1]
    # Dragging over a part chooses it for all charts, and leads to what happened then.
    place = await plot.bounding_box()
    assert place is not None
    await page.mouse.move(place["x"] + 120, place["y"] + 80)
    await page.mouse.down()
    await page.mouse.move(place["x"] + 300, place["y"] + 80, steps=5)
    await page.mouse.up()
    await page.get_by_role("link", name="Events in this time").click()
    assert "since=" in page.url
    assert "until=" in page.url
    await expect(page.get_by_role("heading", name="Audit")).to_be_visible()


def job(name: str, **fields: Any) -> dict[str, Any]:
    known = {"job_id": name, "status": "ready", "sandbox_paused": True, "preview_url": None}
    return known | fields


async def test_a_paused_job_is_ready_and_its_card_resumes_the_preview(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.jobs = [job("j1")]
    answer = {"preview_url": scripted.preview_url, "sandbox_id": "i2"}
    scripted.answers["POST /jobs/j1/resume"] = (200, answer)
    await page.goto(scripted.url + "/jobs")
    card = page.get_by_role("article", name="j1")
    await expect(card).to_contain_text("Ready")
    await expect(card).to_contain_text("Your preview is sleeping.")
    running = {"sandbox_paused": False, "sandbox_state": "RUNNING"}
    scripted.jobs = [job("j1", preview_url=scripted.preview_url, **running)]
    await card.get_by_role("button", name="Resume preview").click()
    await expect(card.get_by_role("link", name="Open preview")).to_be_visible()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("sandbox_expired", "The sandbox has expired and can't be recovered."),
        ("sandbox_unreachable", "The sandbox couldn't be reached. It may be corrupted."),
    ],
)
async def test_a_failed_resume_says_which_and_a_rebuild_asks_before_it_costs(
    page: Page, scripted: ScriptedApi, kind: str, text: str
) -> None:
    scripted.jobs = [job("j1")]
    failure = {"code": kind, "error_type": kind, "detail": "no"}
    scripted.answers["POST /jobs/j1/resume"] = (503, failure)
    scripted.answers["POST /jobs/j1/rebuild"] = (200, {"confirmation": "c1"})
    await page.goto(scripted.url + "/jobs")
    card = page.get_by_role("article", name="j1")
    await card.get_by_role("button", name="Resume preview").click()
    await expect(card.get_by_role("alert")).to_contain_text("Resume failed")
    await expect(card.get_by_role("alert")).to_contain_text(text)
    await card.get_by_role("button", name="Rebuild").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("This will use 1 build credit. Continue?")
    await dialog.get_by_role("button", name="Cancel").click()
    await card.get_by_role("button", name="Rebuild").click()
    await dialog.get_by_role("button", name="Continue").click()
    await eventually(lambda: scripted.count("POST /jobs/j1/rebuild") == 3)
    sent = [body.get("confirmation") for line, body in scripted.bodies if "rebuild" in line]
    assert sent == [None, None, "c1"]


async def test_a_jobs_own_page_speaks_of_a_preview(page: Page, scripted: ScriptedApi) -> None:
    scripted.tell("job:j1", "PAUSED")
    scripted.answers["GET /jobs/j1"] = (200, job("j1"))
    scripted.answers["POST /jobs/j1/resume"] = (503, {"error_type": "sandbox_expired"})
    scripted.answers["POST /jobs/j1/rebuild"] = (200, {"confirmation": "c1"})
    await page.goto(scripted.url + "/jobs/j1")
    pane = page.locator("sandbox-preview")
    await expect(pane.get_by_role("heading", name="Your preview is sleeping.")).to_be_visible()
    await pane.get_by_role("button", name="Resume preview").click()
    await expect(pane.get_by_role("heading", name="Resume failed")).to_be_visible()
    await pane.get_by_role("button", name="Rebuild").click()
    await expect(pane.get_by_text("This will use 1 build credit. Continue?")).to_be_visible()
    await pane.get_by_role("button", name="Continue").click()
    await expect(pane.locator("[role=status]")).to_have_text("Resuming preview...")
    scripted.tell("job:j1", "RUNNING")
    await expect(pane.locator("iframe")).to_have_count(1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_serious_fault(page: Page, scripted: ScriptedApi, scheme: Any) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm install")
    await page.emulate_media(color_scheme=scheme)
    for number, state in enumerate(("RUNNING", "PAUSED", "STARTING", "UNKNOWN", "EXPIRED")):
        scripted.tell(f"p{number}", state)
    scripted.jobs = [job("j1")]
    scripted.answers["GET /jobs/j1"] = (200, job("j1"))
    paths = ["/", "/sandboxes/p1", "/jobs"]
    if scheme == "light":
        paths += ["/sandboxes/p0", "/charts", "/webhooks", "/drift", "/health", "/audit"]
        paths += [f"/sandboxes/p0?tab={tab}" for tab in ("log", "files", "timeline")]
    for path in paths:
        await page.goto(scripted.url + path)
        await expect(page.locator("main > *").first).to_be_visible()
        await expect(page.get_by_text("Loading…")).to_have_count(0)
        # The content policy allows no foreign script, so axe comes in beside it.
        await page.evaluate(AXE.read_text())
        found = await page.evaluate("axe.run(document, { iframes: false })")
        serious = [
            f"{path}: {fault['id']} {[node['html'] for node in fault['nodes']][:3]}"
            for fault in found["violations"]
            if fault["impact"] in {"serious", "critical"}
        ]
        assert serious == []
