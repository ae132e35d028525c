// <sandbox-detail name="…">: one sandbox: what is true now, what can be done, and the tabs.

import { h, SandkeeperError, updateText, WORDS } from "../pane.js";
import { api } from "./api.js";
import { askSoon, BaseElement, copyButton, detailPath, lasting, link, mayOperate, menu, renderProblem, state } from "./base-element.js";
import { operationButtons } from "./operations.js";
import { TABS } from "./sandbox-tabs.js";

/** @import {Status} from "../shapes.js" */
/** @import {Change} from "./api.js" */
/** @import {SandboxTab} from "./sandbox-tab.js" */

const POLL_MS = 10000;
const TAIL_LINES = 5;
const DOWN = new Set(["crashed", "ended", "silent"]);

export class SandboxDetail extends BaseElement {
  /** @type {Status|null} */ #status = null;
  /** @type {SandboxTab|null} */ #tab = null;
  #shown = "";
  #offered = "";
  #live = false;
  #truth = h("div", { class: "truth", role: "status" });
  #since = h("span", { class: "quiet" });
  #actions = h("div", { class: "row actions" });
  #tail = h("div", { hidden: true });
  #tabs = h("nav", { class: "tabs", "aria-label": "Sections" });
  #place = h("div");

  get name() {
    return this.getAttribute("name") ?? "";
  }

  begin() {
    this.replaceChildren(
      h("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, link("/", "Sandboxes"), " / ", h("span", { "aria-current": "page" }, this.name)),
      h("div", { class: "heading" }, h("div", { class: "row" }, h("h1", {}, this.name), copyButton(this.name, "Copy name")), mayOperate() ? this.#actions : null),
      h("div", { class: "truth-line" }, this.#truth, this.#since),
      this.#tail, this.#tabs, this.#place);
    // The stream only sends new changes; read again what changed before it opened.
    const feed = this.followFleet(({ statuses, changes }) => this.#onBatch(statuses.get(this.name), changes), (live) => this.#setLive(live));
    this.#live = feed.live;
    this.every(POLL_MS, () => this.#live || this.#reload());
    void this.#load();
  }

  /** Show the tab that the address names. */
  restore() {
    if (this.#status) void this.#showTab();
  }

  /** @param {boolean} live */
  #setLive(live) {
    this.#live = live;
    if (live) this.#reload();
  }

  #reload() {
    askSoon(`status ${this.name}`, () => this.isConnected && this.#load());
  }

  async #load() {
    try {
      this.#setStatus(await api.status(this.name));
    } catch (error) {
      if (!this.isConnected || this.#status) return;
      const isAbsent = error instanceof SandkeeperError && error.status === 404;
      const absent = h("section", { class: "card" }, h("h2", {}, WORDS.page.absent), h("p", {}, link("/", "Go to the fleet")));
      this.#place.replaceChildren(isAbsent ? absent : renderProblem(error, () => void this.#load()));
    }
  }

  /** @param {Status|undefined} status @param {Change[]} changes */
  #onBatch(status, changes) {
    if (status) this.#setStatus(status);
    const own = changes.filter((change) => change.project === this.name);
    if (own.length) this.#tab?.changesArrived(own);
  }

  /** @param {Status} status */
  #setStatus(status) {
    const before = this.#status;
    if (before && status.version < before.version) return;
    this.#status = status;
    this.#drawHead(status);
    if (!before) return void this.#showTab();
    if (!this.#tab) return undefined;
    this.#tab.status = status;
    this.#tab.statusChanged(before);
    return undefined;
  }

  /** @param {Status} status */
  #drawHead(status) {
    const { summary, badge, pulses } = status;
    const said = `${badge} ${summary.word} ${summary.sentence}`;
    if (this.#truth.dataset.said !== said) {
      this.#truth.dataset.said = said;
      this.#truth.dataset.badge = badge;
      this.#truth.replaceChildren(state(badge, summary.word, pulses), " ", h("span", {}, summary.sentence));
      this.#drawTail(status);
    }
    this.#since.replaceChildren("for ", lasting(summary.since));
    const offered = summary.operations.join();
    if (!mayOperate() || this.#offered === offered) return;
    this.#offered = offered;
    const [first, ...others] = operationButtons(() => this.#status ?? status, summary.operations);
    this.#actions.replaceChildren(first ?? "", others.length ? menu("More", ...others) : "");
  }

  /** Show the last lines of an app that is down, and the way to the whole log. @param {Status} status */
  #drawTail(status) {
    const isDown = status.status === "RUNNING" && DOWN.has(status.app ?? "");
    this.#tail.hidden = !isDown;
    if (!isDown) return void this.#tail.replaceChildren();
    const lines = h("pre", { tabindex: 0, "aria-label": "Last lines of the app's log" });
    this.#tail.className = "tail";
    this.#tail.replaceChildren(lines, link(`${detailPath(this.name)}?tab=log`, "View log"));
    askSoon(`tail ${this.name}`, () => this.#readTail(lines));
    return undefined;
  }

  /** @param {HTMLElement} place */
  async #readTail(place) {
    // Where they cannot be read, the log's own tab says why.
    const { lines } = await api.log(this.name).catch(() => ({ lines: [] }));
    updateText(place, lines.slice(-TAIL_LINES).join("\n"));
  }

  async #showTab() {
    const wanted = new URLSearchParams(location.search).get("tab");
    const tab = TABS.find(({ id }) => id === wanted) ?? TABS[0];
    if (!tab) return;
    this.#tabs.replaceChildren(...TABS.map(({ id, title }, i) => {
      const anchor = link(i ? `${detailPath(this.name)}?tab=${id}` : detailPath(this.name), title);
      if (id === tab.id) anchor.setAttribute("aria-current", "page");
      return anchor;
    }));
    if (this.#shown === tab.id) return;
    this.#shown = tab.id;
    try {
      await tab.load();
    } catch (error) {
      this.#shown = "";
      if (this.isConnected) this.#place.replaceChildren(renderProblem(error, () => void this.#showTab()));
      return;
    }
    if (this.#shown !== tab.id || !this.isConnected || !this.#status) return;
    const element = /** @type {SandboxTab} */ (document.createElement(tab.tag));
    element.setAttribute("project", this.name);
    element.status = this.#status;
    this.#tab = element;
    this.#place.replaceChildren(element);
  }
}

customElements.define("sandbox-detail", SandboxDetail);
