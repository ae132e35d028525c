// <keeper-app>: who is there, which page the address names, and the frame around it.

import { h, ProblemError } from "../pane.js";
import "./audit-log.js";
import "./fleet-charts.js";
import "./fleet-drift.js";
import "./fleet-health.js";
import "./fleet-table.js";
import "./job-list.js";
import "./keeper-login.js";
import "./sandbox-detail.js";
import "./webhook-inbox.js";
import { api } from "./api.js";
import { link, Part, renderFault, tickTimes } from "./part.js";

/** @type {[RegExp, string, string][]} */
const PAGES = [
  [/^\/$/, "fleet-table", "Fleet"],
  [/^\/sandboxes\/(.+)$/, "sandbox-detail", "Sandbox"],
  [/^\/jobs$/, "job-list", "Jobs"],
  [/^\/jobs\/(.+)$/, "job-list", "Job"],
  [/^\/charts$/, "fleet-charts", "Charts"],
  [/^\/webhooks$/, "webhook-inbox", "Webhooks"],
  [/^\/drift$/, "fleet-drift", "Drift and leaks"],
  [/^\/audit$/, "audit-log", "Audit"],
];

const NAVIGATION = [["/", "Fleet"], ["/jobs", "Jobs"], ["/charts", "Charts"], ["/webhooks", "Webhooks"], ["/drift", "Drift"], ["/audit", "Audit"]];

export class KeeperApp extends Part {
  #main = h("main", { tabindex: -1 });
  #shown = "";

  begin() {
    this.on(window, "popstate", () => this.#route());
    this.on(window, "hashchange", () => void this.#enter());
    this.on(this, "click", (event) => this.#follow(event));
    this.on(this, "keeper-login", () => void this.#enter());
    this.on(window, "unhandledrejection", (event) => {
      if (event.reason instanceof ProblemError && event.reason.status === 401) this.#askKey();
    });
    this.every(1000, () => tickTimes(this));
    void this.#enter();
  }

  async #enter() {
    try {
      await this.#redeemPass();
      const { role } = await api.me();
      document.documentElement.dataset.role = role;
      this.#frame(role);
    } catch (error) {
      if (error instanceof ProblemError && [401, 403].includes(error.status)) this.#askKey();
      else this.replaceChildren(renderFault(error, () => void this.#enter()));
    }
  }

  /** A link with a pass in its fragment signs in once; the address is clean before anything else. */
  async #redeemPass() {
    const [, pass] = /^#pass=(.+)$/.exec(location.hash) ?? [];
    if (!pass) return;
    history.replaceState(null, "", location.pathname + location.search);
    await api.login({ pass });
  }

  #askKey() {
    this.replaceChildren(h("keeper-login"));
    document.title = "Sign in · Sandkeeper";
  }

  /** @param {string} role */
  #frame(role) {
    const leave = async () => {
      await api.logout();
      this.#askKey();
    };
    this.replaceChildren(
      h("header", { class: "top" },
        link("/", h("strong", { class: "brand" }, "Sandkeeper")),
        h("nav", { "aria-label": "Pages" }, ...NAVIGATION.map(([href, name]) => link(href ?? "/", name ?? ""))),
        h("fleet-health"),
        h("span", { class: "who" }, role, " ", h("button", { type: "button", class: "plain", onclick: () => void leave() }, "Sign out"))),
      this.#main);
    this.#shown = "";
    this.#route();
  }

  /** Links stay inside: the page changes, the streams live on. @param {MouseEvent} event */
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
      // The fleet's page keeps its own address in step; only another page is drawn anew.
      if (this.#shown === `${tag} ${name}` && tag === "fleet-table") return void this.#main.firstChild?.restore?.();
      this.#shown = `${tag} ${name}`;
      this.#main.replaceChildren(h(tag, { name }));
      return undefined;
    }
    this.#main.replaceChildren(h("section", { class: "card" }, h("h1", {}, "There is no such page"), link("/", "To the fleet")));
    return undefined;
  }
}

customElements.define("keeper-app", KeeperApp);
