"""The pane in a real browser: what it shows in each state, and what it asks of the server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from sandkeeper.domain.states import State
from sandkeeper.domain.texts.page_words import ACTION_LABELS, render_word_modules
from sandkeeper.domain.texts.presentation import PRESENTATIONS
from support.eventually import eventually
from support.scripted_api import ScriptedApi

pytestmark = pytest.mark.asyncio(loop_scope="session")

BUTTONS = ACTION_LABELS


async def show(page: Page, api: ScriptedApi, attributes: str = 'project="shop"') -> Locator:
    """Opens a page with one pane."""
    api.pages["pane"] = (
        f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>host</title>
        <script type="module" src="/embed/pane.js"></script>
        <main><h1>Host</h1><sandbox-preview {attributes}></sandbox-preview></main>""",
        {
            "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
            "frame-src http:; require-trusted-types-for 'script'"
        },
    )
    await page.goto(api.url + "/page/pane")
    return page.locator("sandbox-preview")


@pytest.mark.parametrize("state", list(State))
async def test_every_state_is_shown_in_the_words_of_the_table(
    page: Page, scripted: ScriptedApi, state: State
) -> None:
    words = PRESENTATIONS[state]
    scripted.tell("shop", state.value)
    pane = await show(page, scripted)
    await expect(pane).to_have_attribute("data-state", state.value)
    await expect(pane.locator("[role=status]")).to_have_text(words.label)
    await expect(pane.locator(".bar")).to_have_attribute("data-badge", words.badge.value)
    await expect(pane.locator(".caption")).to_have_text(words.caption)
    running = state is State.RUNNING
    await expect(pane.locator("iframe")).to_have_count(1 if running else 0)
    await expect(pane.locator(".overlay")).to_be_visible(visible=not running)
    offered = [BUTTONS[action] for action in words.actions if action in BUTTONS]
    assert await pane.locator(".overlay button").all_inner_texts() == offered
    for tool in ("refresh", "copy_url", "open"):
        label = {"refresh": "Refresh", "copy_url": "Copy URL", "open": "Open"}[tool]
        shown = tool in [action.value for action in words.actions]
        await expect(pane.locator(f".tool[aria-label='{label}']")).to_be_visible(visible=shown)
    if not running:
        await expect(pane.get_by_role("heading", name=words.label)).to_be_visible()
        await expect(pane.locator(f".card .icon.{words.icon}")).to_be_visible()


async def test_the_words_that_the_browser_has_without_a_status_are_the_servers(
    page: Page, scripted: ScriptedApi
) -> None:
    await page.goto(scripted.url + "/login")
    for path, (name, words) in render_word_modules().items():
        script = f"""async () => (await import("/embed/{path}")).{name}"""
        assert await page.evaluate(script) == words


async def test_a_key_press_wakes_and_the_steps_are_shown_until_it_lives(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.tell("shop", "PAUSED")
    pane = await show(page, scripted)
    await pane.get_by_role("button", name="Wake sandbox").focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Enter")
    await expect(pane.locator("[role=status]")).to_have_text("Waking sandbox...")
    await expect(pane.locator(".overlay button")).to_have_count(0)
    steps = ["resuming", "restoring_files", "starting_app"]
    waking = {"step": "restoring_files", "steps": steps, "startedAt": None, "usualMs": 3000}
    scripted.tell("shop", "PAUSED", waking=waking)
    await expect(pane.locator("li[data-now]")).to_have_text("restoring files …")
    await expect(pane.locator("li").first).to_have_text("resuming ✓")
    await expect(pane.locator(".card time")).to_contain_text("of about 3 s")
    scripted.tell("shop", "RUNNING")
    await expect(pane.locator("[role=status]")).to_have_text("Live preview ready")
    await expect(pane.frame_locator("iframe").locator("#app")).to_have_text("It lives")
    assert scripted.count("POST /sandboxes/shop/wake") == 1


async def test_a_wake_that_takes_too_long_offers_a_way_out(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.tell("shop", "PAUSED")
    pane = await show(page, scripted)
    await pane.get_by_role("button", name="Wake sandbox").click()
    waking = {"step": "resuming", "steps": ["resuming"], "startedAt": None, "usualMs": 100}
    scripted.tell("shop", "PAUSED", waking=waking)
    await expect(pane.get_by_text("This takes longer than usual.")).to_be_visible()
    await pane.get_by_role("button", name="Retry").click()
    await eventually(lambda: scripted.count("POST /sandboxes/shop/wake") == 2)


async def test_a_failed_wake_says_why_and_offers_another(page: Page, scripted: ScriptedApi) -> None:
    scripted.tell("shop", "PAUSED")
    detail = {"code": "sandbox_unreachable", "detail": "The provider did not answer.", "hint": ""}
    scripted.answers["POST /sandboxes/shop/wake"] = (503, detail)
    pane = await show(page, scripted)
    await pane.get_by_role("button", name="Wake sandbox").click()
    await expect(pane.get_by_role("alert")).to_contain_text("The provider did not answer.")
    await expect(pane.get_by_role("button", name="Wake sandbox")).to_be_enabled()


async def test_a_kill_behind_the_back_appears_without_a_reload_and_a_wake_says_recreated(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.tell("shop", "RUNNING")
    pane = await show(page, scripted)
    await expect(pane.locator("iframe")).to_have_count(1)
    await eventually(lambda: len(scripted.streams) == 1)
    scripted.tell("shop", "KILLED")
    await expect(pane.get_by_role("heading", name="Sandbox not found")).to_be_visible()
    await expect(pane.locator("iframe")).to_have_count(0)
    await pane.get_by_role("button", name="Wake sandbox").click()
    receipt = {"method": "recreate", "restored": 12, "lost": ["big.bin"], "tookMs": 2400}
    reason = "the provider says that it is gone"
    scripted.tell("shop", "RUNNING", recreated=True, recreationReason=reason, receipt=receipt)
    await pane.get_by_role("button", name="Recreated").click()
    await expect(pane.locator(".receipt")).to_contain_text("12 files restored.")
    await expect(pane.locator(".receipt")).to_contain_text("Not restored: big.bin.")
    await expect(pane.locator(".receipt")).to_contain_text(reason)


async def test_an_app_that_does_not_answer_shows_its_last_lines_and_no_frame(
    page: Page, scripted: ScriptedApi
) -> None:
    lines = ["> vite", "Error: <img src=x onerror=\"document.title='owned'\">"]
    scripted.tell("shop", "RUNNING", ready=False, log=lines)
    pane = await show(page, scripted)
    await expect(pane.get_by_role("heading", name="Starting the app…")).to_be_visible()
    await expect(pane.locator("pre")).to_contain_text("onerror")
    await expect(pane.locator("iframe")).to_have_count(0)
    scripted.tell("shop", "RUNNING")
    await expect(pane.locator("iframe")).to_have_count(1)
    assert await page.title() == "host"


async def test_a_preview_of_the_pages_own_origin_is_refused(
    page: Page, scripted: ScriptedApi
) -> None:
    for url in (scripted.url + "/app", "javascript:alert(1)"):
        scripted.tell("shop", "RUNNING", sandboxUrl=url)
        pane = await show(page, scripted)
        await expect(pane.get_by_role("heading", name="Preview refused")).to_be_visible()
        await expect(pane.locator("iframe")).to_have_count(0)


async def test_nothing_in_the_page_moves_while_nothing_changes(
    page: Page, scripted: ScriptedApi
) -> None:
    status = scripted.tell("shop", "RUNNING")
    pane = await show(page, scripted, 'project="shop" stream="off"')
    await expect(pane.frame_locator("iframe").locator("#app")).to_be_visible()
    await pane.evaluate(
        """pane => {
          window.moved = [];
          const seen = new MutationObserver(records => {
            for (const { target, type } of records) {
              const element = target.nodeType === 1 ? target : target.parentElement;
              // Clocks move: they say how old the truth is.
              if (element.closest("time")) continue;
              window.moved.push(type + " " + element.outerHTML.slice(0, 80));
            }
          });
          const all = { subtree: true, childList: true, attributes: true, characterData: true };
          seen.observe(pane.shadowRoot, all);
          seen.observe(pane, all);
        }"""
    )
    for _ in range(5):
        await pane.evaluate("pane => pane.refresh === undefined || 0")
        await page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
    await eventually(lambda: scripted.count("GET /sandboxes/shop/status") >= 6)
    # The same facts in a later version are no change for the eye either.
    scripted.sandboxes["shop"] = {**status, "version": status["version"] + 1}
    await page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
    await eventually(lambda: scripted.count("GET /sandboxes/shop/status") >= 7)
    assert await page.evaluate("window.moved") == []


@pytest.mark.parametrize(
    ("state", "attributes", "expected"),
    [
        ("RUNNING", 'project="shop"', 0),
        ("RUNNING", 'project="shop" stream="off"', 2),
        ("PAUSED", 'project="shop" stream="off"', 0),
    ],
)
async def test_requests_in_a_minute(
    page: Page, scripted: ScriptedApi, state: str, attributes: str, expected: int
) -> None:
    await page.clock.install()
    scripted.tell("shop", state)
    pane = await show(page, scripted, attributes)
    await expect(pane).to_have_attribute("data-state", state)
    if "off" not in attributes:
        await eventually(lambda: len(scripted.streams) == 1)
    await eventually(lambda: scripted.count("POST /sandboxes/shop/activity") == 1)
    before = scripted.requests.total()
    for _ in range(4):
        await page.clock.run_for(15_250)
        scripted.ping()
        await page.evaluate("() => fetch('/page/pane').then(() => 0)")
    assert scripted.requests.total() - before == expected


async def test_a_hidden_tab_is_quiet_and_asks_once_when_it_is_shown(
    page: Page, scripted: ScriptedApi
) -> None:
    await page.clock.install()
    scripted.tell("shop", "RUNNING")
    pane = await show(page, scripted)
    await expect(pane).to_have_attribute("data-state", "RUNNING")
    await eventually(lambda: len(scripted.streams) == 1)
    hide = """hidden => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    await page.evaluate(hide, True)
    await eventually(lambda: len(scripted.streams) == 0)
    before = scripted.requests.total()
    await page.clock.run_for(120_000)
    await page.evaluate("() => fetch('/page/pane').then(() => 0)")
    assert scripted.requests.total() == before
    scripted.tell("shop", "PAUSED")
    await page.evaluate(hide, False)
    await expect(pane).to_have_attribute("data-state", "PAUSED")
    await eventually(lambda: len(scripted.streams) == 1)


async def test_a_refused_stream_falls_back_to_polling_and_comes_back(
    page: Page, scripted: ScriptedApi
) -> None:
    await page.clock.install()
    scripted.stream_refused = True
    scripted.tell("shop", "RUNNING")
    pane = await show(page, scripted)
    await expect(pane).to_have_attribute("data-state", "RUNNING")
    await eventually(lambda: scripted.count("GET /sandboxes/shop/events") >= 1)
    scripted.tell("shop", "PAUSED")
    await page.clock.run_for(31_000)
    await expect(pane).to_have_attribute("data-state", "PAUSED")
    scripted.stream_refused = False
    for _ in range(4):
        await page.clock.run_for(15_000)
    await eventually(lambda: len(scripted.streams) == 1)
    scripted.tell("shop", "KILLED")
    await expect(pane).to_have_attribute("data-state", "KILLED")


async def test_an_older_version_never_replaces_a_newer_one(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.tell("shop", "RUNNING")
    pane = await show(page, scripted)
    await eventually(lambda: len(scripted.streams) == 1)
    scripted.tell("shop", "PAUSED", version=9)
    await expect(pane).to_have_attribute("data-state", "PAUSED")
    scripted.tell("shop", "RUNNING", version=8)
    scripted.tell("shop", "KILLED", version=10)
    await expect(pane).to_have_attribute("data-state", "KILLED")


async def test_an_expired_token_is_renewed_while_the_page_is_open(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.tell("shop", "RUNNING")
    scripted.tokens = {"first"}
    pane = await show(page, scripted, "")
    await pane.evaluate(
        """pane => {
          window.given = [];
          pane.token = expired => {
            window.given.push(expired);
            return expired ? "second" : "first";
          };
          pane.setAttribute("project", "shop");
        }"""
    )
    await expect(pane).to_have_attribute("data-state", "RUNNING")
    scripted.tokens = {"second"}
    await pane.locator(".tool[aria-label=Refresh]").click()
    await eventually(lambda: scripted.count("POST /sandboxes/shop/verify") == 2)
    assert True in await page.evaluate("window.given")
    await expect(pane).to_have_attribute("data-state", "RUNNING")
    # A token that cannot be renewed is said, and a new one set by the page is used at once.
    scripted.tokens = {"third"}
    pane = await show(page, scripted, 'project="shop" token="old"')
    await expect(pane.get_by_role("alert")).to_contain_text("The token has expired")
    await pane.evaluate("pane => { pane.token = 'third'; }")
    await expect(pane).to_have_attribute("data-state", "RUNNING")


async def test_a_server_that_is_down_shows_a_connection_issue_and_retry_recovers(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.tell("shop", "RUNNING")
    scripted.down = True
    pane = await show(page, scripted)
    await expect(pane.get_by_role("heading", name="Connection issue")).to_be_visible()
    scripted.down = False
    await pane.get_by_role("button", name="Retry").click()
    await expect(pane).to_have_attribute("data-state", "RUNNING")


async def test_a_wake_that_was_not_needed_is_reported(page: Page, scripted: ScriptedApi) -> None:
    scripted.tell("shop", "PAUSED")
    pane = await show(page, scripted, 'project="shop" stream="off"')
    await pane.get_by_role("button", name="Wake sandbox").wait_for()
    scripted.tell("shop", "RUNNING")
    answer = {"status": "succeeded", "method": "nothing", "steps": []}
    scripted.answers["POST /sandboxes/shop/wake"] = (200, answer)
    await pane.get_by_role("button", name="Wake sandbox").click()
    await expect(pane).to_have_attribute("data-state", "RUNNING")
    await eventually(lambda: scripted.count("POST /sandboxes/shop/report-mismatch") == 1)


async def test_what_was_shown_wrongly_is_reported(page: Page, scripted: ScriptedApi) -> None:
    scripted.tell("shop", "RUNNING")
    pane = await show(page, scripted, 'project="shop" stream="off"')
    await expect(pane).to_have_attribute("data-state", "RUNNING")
    scripted.tell("shop", "KILLED")
    await pane.locator(".tool[aria-label=Refresh]").click()
    await eventually(lambda: scripted.count("POST /sandboxes/shop/report-mismatch") == 1)
    report = next(body for line, body in scripted.bodies if "report-mismatch" in line)
    assert (report["shown"], report["actual"]) == ("RUNNING", "KILLED")
    views = [body for line, body in scripted.bodies if "activity" in line and body.get("pageView")]
    assert len(views) == 1
    assert views[0]["kind"] == "passive"


async def test_a_preview_that_does_not_load_is_reported_and_tried_again(
    page: Page, scripted: ScriptedApi
) -> None:
    tries = 0

    async def hang(route: Any) -> None:
        nonlocal tries
        tries += 1
        if tries > 1:
            await route.continue_()

    await page.route(scripted.preview_url + "**", hang)
    await page.clock.install()
    scripted.tell("shop", "RUNNING")
    pane = await show(page, scripted)
    await eventually(lambda: tries == 1)
    await page.clock.run_for(10_500)
    await eventually(lambda: scripted.count("POST /sandboxes/shop/report-mismatch") == 1)
    await page.clock.run_for(1_500)
    await expect(pane.frame_locator("iframe").locator("#app")).to_have_text("It lives")


async def test_a_script_in_a_name_or_a_caption_does_not_run(
    page: Page, scripted: ScriptedApi
) -> None:
    bad = "<img src=x onerror=\"document.title='owned'\">"
    scripted.tell("shop", "PAUSED", label=bad, caption=bad, reason=bad)
    pane = await show(page, scripted)
    await expect(pane.locator("[role=status]")).to_have_text(bad)
    assert await pane.locator("img").count() == 0
    assert await page.title() == "host"


async def test_focus_stays_where_the_person_is(page: Page, scripted: ScriptedApi) -> None:
    scripted.tell("shop", "RUNNING")
    pane = await show(page, scripted)
    await eventually(lambda: len(scripted.streams) == 1)
    await page.evaluate(
        """() => {
          const field = document.createElement("input");
          document.body.append(field);
          field.focus();
        }"""
    )
    scripted.tell("shop", "PAUSED")
    await expect(pane.get_by_role("button", name="Wake sandbox")).to_be_visible()
    assert await page.evaluate("document.activeElement.tagName") == "INPUT"


async def test_keep_awake_counts_as_intent_and_looking_does_not(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.tell("shop", "RUNNING")
    pane = await show(page, scripted)
    await expect(pane.locator("time.sleep")).to_contain_text("sleeps in")
    await pane.locator(".tool[aria-label='Keep awake']").click()
    await eventually(lambda: any(b.get("source") == "keep-awake" for _, b in scripted.bodies))
    kinds = [body.get("kind", "intent") for line, body in scripted.bodies if "activity" in line]
    assert kinds.count("passive") == 1
    assert json.dumps(scripted.bodies).count("keep-awake") == 1
