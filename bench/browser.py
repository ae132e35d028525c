"""Measure what users see in a real Chromium: sizes, first status, changes, a large fleet."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import importlib.util
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from http.client import HTTPResponse

import httpx
from playwright.sync_api import Browser, BrowserContext, Page
from rich.console import Console

from bench.databases import sqlite
from bench.load import percentile
from bench.processes import RunningKeeper, hung_provider, keeper_running
from bench.report import Report, Row
from bench.seed_data import fill, make_record, prepare, project, render_webhook
from sandkeeper.common.dashboard_host import get_dashboard_url
from sandkeeper.domain.states import State
from sandkeeper.store import open_store

PART = "browser"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# A browser that runs as root has no sandbox of its own; the pages here are ours.
OPTIONS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
FLEET = 10_000
ASLEEP = 1000
LOADS = 20
EVENTS = 100
WARM_UP = 5
ROUNDS = 10
PAGE_ROWS = 50
REST_S = 0.02
# No wait of this part is longer, so that it always ends.
WAIT_MS = 10_000

# `painted` is the first task after a frame in which the change was drawn. A promise inside the page
# has no time limit of its own, hence `within`.
IN_PAGE = """
window.painted = () => new Promise((done) => requestAnimationFrame(() => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => done();
  port2.postMessage(null);
}));
window.within = (promise) => Promise.race([promise, new Promise((_, fail) =>
  setTimeout(() => fail(new Error("nothing changed in time")), WAIT_MS))]);
window.when = (element, options, test) => within(new Promise((done) => {
  const look = () => test() && (observer.disconnect(), painted().then(done));
  const observer = new MutationObserver(look);
  observer.observe(element, { subtree: true, ...options });
  look();
}));
""".replace("WAIT_MS", str(WAIT_MS))

# The host is an application of another origin, as in production. Each state of the pane is saved
# with the time at which it was painted, on the same clock as this process.
HOST = """<!doctype html><title>host</title><link rel="icon" href="data:,">
<sandbox-preview project="PROJECT" base="KEEPER" token="TOKEN"></sandbox-preview>
<script>
IN_PAGE
const pane = document.querySelector("sandbox-preview");
const isShown = () => !["NONE", undefined].includes(pane.dataset.state);
const script = () => performance.getEntriesByType("resource")
  .find((one) => one.name.endsWith("/pane.js"));
window.first = when(pane, { attributes: true }, isShown)
  .then(() => performance.now())
  .then((now) => ({ sinceScript: now - script().responseEnd, sinceStart: now }));
window.showing = (state) => when(pane, { attributes: true }, () => pane.dataset.state === state)
  .then(() => Date.now());
</script>
<script type="module" src="KEEPER/embed/pane.js"></script>
"""

OPENED = """() => {
  const isDrawn = () => document.querySelector("tr[data-project]");
  return when(document, { childList: true }, isDrawn).then(() => performance.now());
}"""

# The table itself drops a draw that was requested before the act, so the next draw belongs to it.
ACT = """([act, selector, value]) => {
  const row = document.querySelector("tr[data-project]");
  const target = [...document.querySelectorAll(selector)]
    .find((one) => act === "set" || one.textContent.startsWith(value));
  const started = performance.now();
  if (act === "set") {
    target.value = value;
    target.dispatchEvent(new Event("change", { bubbles: true }));
  } else {
    target.click();
  }
  const isDrawn = () => !row?.isConnected && document.querySelector("tr[data-project]");
  return when(document, { childList: true }, isDrawn).then(() => performance.now() - started);
}"""

ROWS = """() => [...document.querySelectorAll("tr[data-project]")]
  .map((row) => ({ project: row.dataset.project, state: row.dataset.state }))"""

LOADED = """() => ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind))
  .filter((one) => one.entryType === "navigation" || one.name.includes("/static/"))
  .map((one) => one.name)"""


def run(report: Report) -> None:
    program = find_browser()
    if program is None:
        Console(stderr=True).print("  left out: there is no Chromium, or no Playwright, here")
        return
    with sqlite() as database:
        url = database.make()
        # Before the browser, whose driver then has an event loop in this thread.
        prepare(url, count=FLEET - ASLEEP)
        asyncio.run(add_sleepers(url))
        with (
            hung_provider() as provider,
            keeper_running(
                provider_url=provider,
                database=url,
                reconciler=False,
                catch_up=False,
                allowed_origins="*",
            ) as keeper,
            host_running(keeper) as host,
            browser_running(program) as browser,
        ):
            first_status(report, browser, host)
            changes(report, browser, host, keeper)
            opening(report, browser, keeper)
            acts(report, browser, keeper)


def find_browser() -> str | None:
    """Return the browser's path, if it and its driver are installed."""
    if importlib.util.find_spec("playwright") is None:
        return None
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


@contextlib.contextmanager
def browser_running(program: str) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  # It may be missing.

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


async def add_sleepers(url: str) -> None:
    """Add some sleeping records to filter for, among the running ones."""
    asleep = make_record().evolve(state=State.PAUSED, ready=False)
    async with open_store(url) as store:
        await fill(store, asleep, count=ASLEEP, first=FLEET - ASLEEP)


@contextlib.contextmanager
def host_running(keeper: RunningKeeper) -> Iterator[str]:
    """Yield the address of a page that embeds the pane of project 0."""
    with keeper.client() as client:
        answer = client.post("/api/client-tokens", json={"project": project(0)})
        token = answer.raise_for_status().json()["token"]
    page = HOST.replace("IN_PAGE", IN_PAGE).replace("PROJECT", project(0))
    body = page.replace("KEEPER", keeper.url).replace("TOKEN", token).encode()

    class Host(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            # A page that is closed early needs no answer.
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # Its name there.
            """Log nothing: the table is what this prints."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Host) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()


@contextlib.contextmanager
def fresh_page(browser: Browser) -> Iterator[tuple[BrowserContext, Page]]:
    """Yield a page with an empty cache."""
    context = browser.new_context()
    try:
        context.set_default_timeout(WAIT_MS)
        yield context, context.new_page()
    finally:
        context.close()


def first_status(report: Report, browser: Browser, host: str) -> None:
    since_script, since_start = [], []
    for _ in range(LOADS + 1):
        with fresh_page(browser) as (_context, page):
            page.goto(host)
            taken = page.evaluate("first")
        since_script.append(taken["sinceScript"] / 1000)
        since_start.append(taken["sinceStart"] / 1000)
    # The first load also warms the browser itself.
    report.add_times(PART, "pane: script to first status painted", since_script[1:], at_most=150)
    report.add_times(PART, "pane: navigation to first status painted", since_start[1:])


def changes(report: Report, browser: Browser, host: str, keeper: RunningKeeper) -> None:
    """Measure from sending a signed webhook until the embedded pane has painted its change."""
    taken = []
    with (
        fresh_page(browser) as (_context, page),
        socket.create_connection(("127.0.0.1", keeper.port)) as connection,
    ):
        page.goto(host)
        page.evaluate("first")
        for number in range(WARM_UP + EVENTS):
            kind, state = ("resumed", "RUNNING") if number % 2 else ("paused", "PAUSED")
            sent_at = post(connection, kind)
            taken.append(page.evaluate("state => showing(state)", state) - sent_at * 1000)
            # Without a rest every event would arrive at the same point between two frames.
            time.sleep(REST_S * (1 + number % 7 / 7))
    taken = taken[WARM_UP:]
    report.add(
        Row(
            PART,
            "webhook to painted pane p99",
            percentile(taken, 0.99),
            "ms",
            low=statistics.median(taken),
            high=max(taken),
            at_most=250,
            note="beside it: the median … the slowest",
        )
    )


def post(connection: socket.socket, kind: str) -> float:
    """Deliver an event of sandbox 0; return the time at which it was sent."""
    webhook = render_webhook(0, kind).encode("latin-1")
    sent_at = time.time()
    connection.sendall(webhook)
    answer = HTTPResponse(connection)
    answer.begin()
    said = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"a webhook was refused: {said!r}")
    return sent_at


@contextlib.contextmanager
def dashboard_page(browser: Browser, keeper: RunningKeeper) -> Iterator[Page]:
    """Yield a page of an operator who has signed in."""
    with fresh_page(browser) as (context, page):
        context.add_init_script(IN_PAGE)
        dashboard = get_dashboard_url(keeper.url)
        host = {"Host": dashboard.removeprefix("http://")}
        answer = httpx.post(f"{keeper.url}/api/login", json={"key": keeper.key}, headers=host)
        if not answer.is_success:
            raise RuntimeError(f"the dashboard refused its operator: {answer.text}")
        for name, value in answer.cookies.items():
            context.add_cookies([{"name": name, "value": value, "url": dashboard}])
        page.goto(f"{dashboard}/", wait_until="commit")
        yield page


def opening(report: Report, browser: Browser, keeper: RunningKeeper) -> None:
    """Measure from the navigation to the first rows, with an empty cache; and what that loads."""
    opened: list[float] = []
    addresses: set[str] = set()
    for _ in range(ROUNDS):
        with dashboard_page(browser, keeper) as page:
            opened.append(page.evaluate(OPENED) / 1000)
            addresses.update(page.evaluate(LOADED))
    pane = weigh(f"{keeper.url}/embed/pane.js")
    report.add(Row(PART, "pane: script and style, gzipped", pane, "B", at_most=12_288))
    whole = sum(weigh(address) for address in addresses)
    name = f"dashboard: all {len(addresses)} files, gzipped"
    report.add(Row(PART, name, whole, "B", at_most=40_960))
    # Mostly the browser's own time: a new process and every file. The goal is on what follows a
    # click.
    report.add_times(PART, f"dashboard of {FLEET}, navigation to first rows", opened[1:])


class LoopbackTransport(httpx.HTTPTransport):
    """Find every name below `localhost` on this machine, as browsers do; resolvers may not."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not request.url.host.endswith(".localhost"):
            return super().handle_request(request)
        local = httpx.Request(
            request.method,
            request.url.copy_with(host="127.0.0.1"),
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        return super().handle_request(local)


def weigh(address: str) -> int:
    """Return the size of a file in bytes, as a browser gets it."""
    with httpx.Client(transport=LoopbackTransport(), follow_redirects=True) as client:
        answer = client.get(address, headers={"Accept-Encoding": "gzip"})
    # The body of a redirect has a length of its own, which is not counted.
    return answer.raise_for_status().num_bytes_downloaded


def acts(report: Report, browser: Browser, keeper: RunningKeeper) -> None:
    """Measure the fleet's table as an operator uses it: from each act to its painted rows."""
    taken: dict[str, list[float]] = {}
    with dashboard_page(browser, keeper) as page:
        page.evaluate(OPENED)

        def act(name: str, *how: str) -> list[dict[str, str]]:
            taken.setdefault(name, []).append(page.evaluate(ACT, how) / 1000)
            rows: list[dict[str, str]] = page.evaluate(ROWS)
            return rows

        for _ in range(ROUNDS):
            page.get_by_role("link", name="Webhooks").click()
            page.locator("tbody tr[data-project]").wait_for(state="detached")
            expect(len(act("opened by a click", "click", "nav a", "Fleet")) == PAGE_ROWS)
            before = act("sort", "click", "th button", "Project")
            after = act("next page", "click", ".pages button", "Next page")
            expect(not {row["project"] for row in before} & {row["project"] for row in after})
            expect(act("first page", "click", ".pages button", "First page") == before)
            asleep = act("filter by state", "set", "[name=state]", "PAUSED")
            expect({row["state"] for row in asleep} == {"PAUSED"})
            act("filter taken away", "set", "[name=state]", "")
            found = act("search", "set", "[name=search]", "project-77")
            expect(all("project-77" in row["project"] for row in found))
            act("filter taken away", "set", "[name=search]", "")
    for name, seconds in taken.items():
        report.add_times(PART, f"dashboard of {FLEET}, {name}", seconds, at_most=200)


def expect(is_right: object) -> None:
    """Raise if the result is wrong: a quick wrong answer does not count."""
    if not is_right:
        raise RuntimeError("the dashboard shows other rows than were asked for")
