// <keeper-app>: login, routing, and the frame around the pages.

import { h, SandkeeperError } from "../pane.js";
import "./connection-banner.js";
import "./fleet-health.js";
import "./keeper-login.js";
import { api } from "./api.js";
import { BaseElement, link, renderProblem, tickTimes } from "./base-element.js";
import { isUtc, setUtc } from "./clock.js";
import { openFinder } from "./finder.js";
import { findPage, PAGES } from "./pages.js";

const GROUPS = ["Fleet", "Operate", "Admin"];

export class KeeperApp extends BaseElement {
  #main = h("main", { tabindex: -1 });
  #shown = "";

  begin() {
    this.on(window, "popstate", () => void this.#route());
    this.on(window, "hashchange", () => void this.#enter());
    this.on(this, "click", (event) => this.#follow(event));
    this.on(document, "keydown", (event) => this.#onKey(event));
    this.on(document, "keeper-go", (event) => this.#go(event.detail));
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
      const [{ role, name }] = await Promise.all([api.me(), api.loadStates(), findPage(location.pathname)?.page.load()]);
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
    const isOperator = document.documentElement.dataset.role === "operator";
    const groups = GROUPS.flatMap((group) => {
      const pages = PAGES.filter((page) => page.group === group && (isOperator || !page.onlyOperators));
      return pages.length ? [h("ul", { "aria-label": group }, ...pages.map((page) => h("li", {}, link(page.path, page.title))))] : [];
    });
    const times = h("button", { type: "button", class: "plain", onclick: () => (setUtc(!isUtc()), location.reload()) }, isUtc() ? "Times: UTC" : "Times: local");
    const find = h("button", { type: "button", class: "find", onclick: openFinder }, "Find", h("kbd", {}, "/"));
    const pages = h("details", { class: "pages", open: innerWidth > 900 },
      h("summary", {}, "Menu"),
      h("nav", { "aria-label": "Pages" }, ...groups),
      h("div", { class: "who" }, h("span", {}, name), times, h("button", { type: "button", class: "plain", onclick: () => void leave() }, "Sign out")));
    this.replaceChildren(
      h("a", { class: "skip", href: "#main", onclick: (/** @type {Event} */ e) => (e.preventDefault(), this.#main.focus()) }, "Skip to the page"),
      h("header", { class: "top" }, link("/", h("strong", { class: "brand" }, "Sandkeeper")), h("fleet-health"), find, pages),
      h("div", { class: "body" }, h("connection-banner"), this.#main));
    this.#shown = "";
    void this.#route();
  }

  /** Handle links without a page load, so the streams stay open. @param {MouseEvent} event */
  #follow(event) {
    const anchor = /** @type {Element} */ (event.target).closest?.("a[data-inside]");
    if (!anchor || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    this.#go(anchor.getAttribute("href") ?? "/");
  }

  /** @param {string} href */
  #go(href) {
    history.pushState(null, "", href);
    void this.#route();
    this.#main.focus({ preventScroll: true });
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const isTyping = /** @type {Element} */ (event.target).closest?.("input, textarea, select, [contenteditable], .xterm");
    const isFind = (event.key === "k" && (event.metaKey || event.ctrlKey)) || (event.key === "/" && !isTyping);
    if (!isFind || document.querySelector("dialog[open]") || !this.querySelector(".top") || /** @type {Element} */ (event.target).closest?.(".xterm")) return;
    event.preventDefault();
    openFinder();
  }

  async #route() {
    const found = findPage(location.pathname);
    for (const anchor of this.querySelectorAll(".top nav a")) {
      const here = anchor.getAttribute("href") === (found?.page.group ? found.page.path : null);
      if (here) anchor.setAttribute("aria-current", "page");
      else anchor.removeAttribute("aria-current");
    }
    if (innerWidth <= 900) this.querySelector(".pages")?.removeAttribute("open");
    if (!found) {
      this.#shown = "";
      document.title = "Page not found · Sandkeeper";
      this.#main.replaceChildren(h("section", { class: "card" }, h("h1", {}, "Page not found"), link("/", "Go to the fleet")));
      return;
    }
    const { page, name } = found;
    document.title = `${name ?? page.title} · Sandkeeper`;
    const shown = `${page.tag} ${name}`;
    const element = /** @type {any} */ (this.#main.firstChild);
    if (this.#shown === shown && element?.restore) return void element.restore();
    this.#shown = shown;
    try {
      await page.load();
    } catch (error) {
      this.#main.replaceChildren(renderProblem(error, () => void this.#route()));
      this.#shown = "";
      return;
    }
    if (this.#shown !== shown) return;
    this.#main.replaceChildren(h(page.tag, { name }));
    scrollTo(0, 0);
  }
}

customElements.define("keeper-app", KeeperApp);
