"""The pane inside other people's pages, and how its files are served."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect

from sandkeeper.web import Assets
from support.scripted_api import ScriptedApi

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "node_modules"
PANE_BYTES_MAX = 12 * 1024
DASHBOARD_BYTES_MAX = 90 * 1024
SCRIPT = {"Content-Type": "text/javascript"}

REACT_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>react</title>
<script type="importmap">{"imports": {"react": "/page/react.js"}}</script>
<div id="root"></div>
<script type="module">
  import React, { ReactDOM } from "react";
  import { SandkeeperProvider, useSandbox } from "/embed/react.js";
  const h = React.createElement;
  function Line() {
    const { view, live, wake } = useSandbox("shop");
    return h("p", { id: "line" }, `${view.label} ${live}`, h("button", { onClick: wake }, "Go"));
  }
  function App() {
    const [project, setProject] = React.useState("shop");
    return h(SandkeeperProvider, { stream: "project" }, h(Line),
      h("sandbox-preview", { project, token: () => "good" }),
      h("button", { onClick: () => setProject("blog") }, "Other"));
  }
  ReactDOM.createRoot(document.getElementById("root")).render(h(React.StrictMode, null, h(App)));
</script>"""

TYPESCRIPT_PAGE = """import { Client, describe, SandboxStore } from "./types/pane.js";
const store = new SandboxStore(new Client({ base: "", token: async () => "good" }), "shop");
store.subscribe(() => console.log(describe(store.model, location.origin).label.length));
store.start();
"""


def react_module() -> str:
    """React 19 as one module: it is shipped as CommonJS only."""
    files = {
        "react": "react/cjs/react.production.js",
        "scheduler": "scheduler/cjs/scheduler.production.js",
        "react-dom": "react-dom/cjs/react-dom.production.js",
        "client": "react-dom/cjs/react-dom-client.production.js",
    }
    parts = ["const known = {};", "const require = name => known[name].exports;"]
    for name, path in files.items():
        parts.append(f"known['{name}'] = {{ exports: {{}} }};")
        source = (MODULES / path).read_text()
        parts.append(f"((module, exports) => {{ {source}\n }})")
        parts.append(f"(known['{name}'], known['{name}'].exports);")
    parts.append("export default known.react.exports;")
    parts.append("export const ReactDOM = known.client.exports;")
    hooks = ("useContext", "useEffect", "useMemo", "useSyncExternalStore")
    names = ("createContext", "createElement", *hooks)
    parts += [f"export const {name} = known.react.exports.{name};" for name in names]
    return "\n".join(parts)


async def test_the_hook_and_the_element_live_in_a_react_19_page(
    page: Page, scripted: ScriptedApi
) -> None:
    if not (MODULES / "react-dom").exists():
        pytest.skip("React is not installed: npm install")
    scripted.pages["react.js"] = (react_module(), SCRIPT)
    scripted.pages["react"] = (REACT_PAGE, {})
    scripted.tell("shop", "PAUSED")
    scripted.tell("blog", "EXPIRED")
    await page.goto(scripted.url + "/page/react")
    await expect(page.locator("#line")).to_contain_text("Sandbox asleep true")
    pane = page.locator("sandbox-preview")
    await expect(pane).to_have_attribute("data-state", "PAUSED")
    assert await pane.evaluate("pane => pane.token()") == "good"
    await page.get_by_role("button", name="Go").click()
    await expect(page.locator("#line")).to_contain_text("Waking sandbox...")
    scripted.tell("shop", "RUNNING")
    await expect(page.locator("#line")).to_contain_text("Live preview ready")
    await page.get_by_role("button", name="Other").click()
    await expect(pane).to_have_attribute("data-state", "EXPIRED")
    # Two components of one page, and a double mount in strict mode, share the project's stream.
    assert scripted.streams_opened <= 3


async def test_the_pane_works_from_280_pixels_to_a_wall(page: Page, scripted: ScriptedApi) -> None:
    scripted.tell("shop", "UNKNOWN")
    scripted.pages["pane"] = (
        """<!doctype html><title>host</title><script type="module" src="/embed/pane.js"></script>
        <sandbox-preview project="shop"></sandbox-preview>""",
        {},
    )
    for width in (296, 768, 3840):
        await page.set_viewport_size({"width": width, "height": 700})
        await page.goto(scripted.url + "/page/pane")
        pane = page.locator("sandbox-preview")
        await expect(pane.get_by_role("button", name="Retry")).to_be_visible()
        overflow = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not await page.evaluate(overflow)


async def test_the_pane_follows_reduced_transparency_and_forced_colours(
    page: Page, scripted: ScriptedApi
) -> None:
    scripted.tell("shop", "PAUSED")
    scripted.pages["pane"] = (
        """<!doctype html><title>host</title><script type="module" src="/embed/pane.js"></script>
        <sandbox-preview project="shop"></sandbox-preview>""",
        {},
    )
    await page.goto(scripted.url + "/page/pane")
    card = page.locator("sandbox-preview .card")
    await expect(card).not_to_have_css("backdrop-filter", "none")
    # Playwright has no name for this preference; the browser does.
    browser = await page.context.new_cdp_session(page)
    reduced = {"name": "prefers-reduced-transparency", "value": "reduce"}
    await browser.send("Emulation.setEmulatedMedia", {"features": [reduced]})
    await expect(card).to_have_css("backdrop-filter", "none")

    # Backgrounds go with forced colours: the button keeps an edge, and the dot keeps its meaning.
    wake = page.locator("sandbox-preview").get_by_role("button", name="Wake sandbox")
    await expect(wake).to_have_css("border-top-width", "0px")
    await page.emulate_media(forced_colors="active")
    await expect(wake).to_have_css("border-top-width", "1px")
    dot = page.locator("sandbox-preview .dot").first
    await expect(dot).to_have_css("forced-color-adjust", "none")


async def test_files_are_kept_for_ever_under_their_version_and_found_by_a_stable_name(
    scripted: ScriptedApi,
) -> None:
    async with httpx.AsyncClient(base_url=scripted.url) as client:
        found = await client.get("/embed/pane.js")
        assert found.status_code == 307
        assert found.headers["cache-control"] == "no-store"
        file = await client.get(found.headers["location"])
        assert "immutable" in file.headers["cache-control"]
        assert file.headers["content-encoding"] == "gzip"
        assert file.headers["content-type"].startswith("text/javascript")
        page = await client.get("/")
        assert "'unsafe-inline'" not in page.headers["content-security-policy"]
        assert found.headers["location"].split("/")[2] in page.text
        assert (await client.get("/embed/../../secret")).status_code == 404
        assert (await client.get("/static/x/nothing.js")).status_code == 404


async def test_pane_and_dashboard_stay_small() -> None:
    assets = Assets()
    sizes = {path: len(asset.zipped) for path in assets.paths() if (asset := assets.find(path))}
    assert sizes["pane.js"] <= PANE_BYTES_MAX
    whole = sum(
        size
        for path, size in sizes.items()
        if path.startswith("dashboard/") or path in {"pane.js", "job.js"}
    )
    assert whole <= DASHBOARD_BYTES_MAX


async def test_what_is_sent_is_what_was_written(tmp_path: Path) -> None:
    """Leaving comments out must leave no module broken."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    assets = Assets()
    for path in [path for path in assets.paths() if path.endswith(".js")]:
        asset = assets.find(path)
        assert asset is not None
        assert not re.search(rb"^\s*(//|/\*)", asset.body, re.MULTILINE)
        file = tmp_path / "module.mjs"
        file.write_bytes(asset.body)
        subprocess.run([node, "--check", file], check=True)


async def test_a_typescript_page_can_use_the_declarations(tmp_path: Path) -> None:
    tsc = MODULES / ".bin/tsc"
    if not tsc.exists():
        pytest.skip("TypeScript is not installed: npm install")
    types = tmp_path / "types"
    build = [tsc, "--project", ROOT / "tsconfig.types.json", "--outDir", types]
    subprocess.run(build, check=True, cwd=ROOT)
    for declared in (ROOT / "src/sandkeeper/web/static").glob("*.d.ts"):
        shutil.copy(declared, types)
    right, wrong = tmp_path / "right.ts", tmp_path / "wrong.ts"
    right.write_text(TYPESCRIPT_PAGE)
    wrong.write_text(TYPESCRIPT_PAGE.replace("label.length", "label.nothing"))
    options = ["--strict", "--noEmit", "--module", "ES2022", "--moduleResolution", "bundler"]
    check = [tsc, *options, "--target", "ES2022", "--lib", "ES2023,DOM,DOM.Iterable"]
    subprocess.run([*check, right], check=True, cwd=tmp_path)
    assert subprocess.run([*check, wrong], check=False, cwd=tmp_path).returncode != 0
