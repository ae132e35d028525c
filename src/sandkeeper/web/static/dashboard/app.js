// <keeper-app>: login, routing, and the frame around the pages.

import { h, SandkeeperError } from "../pane.js";
import "./audit-log.js";
import "./costs-page.js";
import "./fleet-charts.js";
import "./fleet-drift.js";
import "./fleet-health.js";
import "./fleet-table.js";
import "./job-list.js";
import "./keeper-login.js";
import "./sandbox-detail.js";
import "./webhook-inbox.js";
import { api } from "./api.js";
import { BaseElement, link, renderProblem, tickTimes } from "./base-element.js";

/** @type {[RegExp, string, string][]} */
const PAGES = [
  [/^\/$/, "fleet-table", "Fleet"],
  [/^\/sandboxes\/(.+)$/, "sandbox-detail", "Sandbox"],
  [/^\/jobs$/, "job-list", "Jobs"],
  [/^\/jobs\/(.+)$/, "job-list", "Job"],
  [/^\/charts$/, "fleet-charts", "Charts"],
  [/^\/costs$/, "costs-page", "Costs"],
  [/^\/webhooks$/, "webhook-inbox", "Webhooks"],
  [/^\/drift$/, "fleet-drift", "Drift and leaks"],
  [/^\/audit$/, "audit-log", "Audit"],
];

const NAVIGATION = [["/", "Fleet"], ["/jobs", "Jobs"], ["/charts", "Charts"], ["/costs", "Costs"], ["/webhooks", "Webhooks"], ["/drift", "Drift"], ["/audit", "Audit"]];

export class KeeperApp extends BaseElement {
  #main = h("main", { tabindex: -1 });
  #shown = "";

  begin() {
    this.on(window, "popstate", () => this.#route());
    this.on(window, "hashchange", () => void this.#enter());
    this.on(this, "click", (event) => this.#follow(event));
    this.on(this, "keeper-login", () => void this.#enter());
    this.on(window, "unhandledrejection", (event) => {
      if (event.reason instanceof SandkeeperError && event.reason.status === 401) this.#askKey();
    });
    this.every(1000, () => tickTimes(this));
    void this.#enter();
  }

  async #enter() {
    try {
      await this.#redeemCode();
      const [{ role, name }] = await Promise.all([api.me(), api.loadStates()]);
      document.documentElement.dataset.role = role;
      this.#frame(name);
    } catch (error) {
      if (error instanceof SandkeeperError && [401, 403].includes(error.status)) this.#askKey();
      else this.replaceChildren(renderProblem(error, () => void this.#enter()));
    }
  }

  /** A login code in the URL fragment signs in once; it is removed from the address first. */
  async #redeemCode() {
    const [, code] = /^#code=(.+)$/.exec(location.hash) ?? [];
    if (!code) return;
    history.replaceState(null, "", location.pathname + location.search);
    await api.login({ code });
  }

  #askKey() {
    this.replaceChildren(h("keeper-login"));
    document.title = "Sign in · Sandkeeper";
  }

  /** @param {string} name The key or the person who signed in. */
  #frame(name) {
    const leave = async () => {
      await api.logout();
      this.#askKey();
    };
    this.replaceChildren(
      h("header", { class: "top" },
        link("/", h("strong", { class: "brand" }, "Sandkeeper")),
        h("nav", { "aria-label": "Pages" }, ...NAVIGATION.map(([href, name]) => link(href ?? "/", name ?? ""))),
        h("fleet-health"),
        h("span", { class: "who" }, name, " ", h("button", { type: "button", class: "plain", onclick: () => void leave() }, "Sign out"))),
      this.#main);
    this.#shown = "";
    this.#route();
  }

  /** Handle links without a page load, so the streams stay open. @param {MouseEvent} event */
  #follow(event) {
    const anchor = /** @type {Element} */ (event.target).closest?.("a[data-inside]");
    if (!anchor || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    history.pushState(null, "", anchor.getAttribute("href"));
    this.#route();
    this.#main.focus();
  }

  #route() {
    for (const anchor of this.querySelectorAll("nav a")) {
      const here = anchor.getAttribute("href") === location.pathname;
      if (here) anchor.setAttribute("aria-current", "page");
      else anchor.removeAttribute("aria-current");
    }
    for (const [pattern, tag, title] of PAGES) {
      const found = pattern.exec(location.pathname);
      if (!found) continue;
      const name = found[1] ? decodeURIComponent(found[1]) : null;
      document.title = `${name ?? title} · Sandkeeper`;
      // The fleet page updates its own address; only another page is redrawn.
      if (this.#shown === `${tag} ${name}` && tag === "fleet-table") return void this.#main.firstChild?.restore?.();
      this.#shown = `${tag} ${name}`;
      this.#main.replaceChildren(h(tag, { name }));
      return undefined;
    }
    this.#main.replaceChildren(h("section", { class: "card" }, h("h1", {}, "Page not found"), link("/", "Go to the fleet")));
    return undefined;
  }
}

customElements.define("keeper-app", KeeperApp);
