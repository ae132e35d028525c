// <fleet-table>: the whole fleet. The database sorts, filters and pages; the address holds the view,
// so a link shows the same rows to another user. Rows are updated in place.

import { h, isEnded } from "../pane.js";
import { api } from "./api.js";
import { amount, BaseElement, confirmAction, detailPath, link, mayOperate, renderProblem, showDialog, state, stateOf, until, when } from "./base-element.js";
import { renderEmpty } from "./fleet-empty.js";

/** @import {Status} from "../shapes.js" */
/** @import {BulkItem, Summary} from "./api.js" */

const LIMIT = 50;
const RELOAD_MS = 30000;
const STREAM_WAIT_MS = 2000;
/** @type {[string, string|null][]} */
const COLUMNS = [["Project", "owner"], ["State", "state"], ["Why", null], ["Sleeps in", "check"], ["Version", null], ["Last active", "active"]];
const FILTERS = ["search", "state", "kind", "region", "sort", "cursor"];
/** @type {Record<string, string>} */
const BULK = { pause: "Pause", wake: "Wake", kill: "Kill" };
/** @type {Record<string, (state: string) => boolean>} */
const AFFECTS = { pause: (state) => state === "RUNNING", wake: (state) => state !== "RUNNING" && state !== "STARTING", kill: (state) => !isEnded(state) };

export class FleetTable extends BaseElement {
  /** @type {Map<string, {status: Status, row: HTMLElement}>} */ #rows = new Map();
  /** @type {Set<string>} */ #chosen = new Set();
  /** @type {string|null} */ #next = null;
  #counts = h("div", { class: "counts" });
  #news = h("button", { type: "button", class: "plain", hidden: true, onclick: () => void this.#reload() });
  #body = h("tbody");
  #heads = h("tr");
  #place = h("div");
  #bulk = h("div", { class: "bulk", role: "status" });
  #pages = h("div", { class: "row pages" });
  /** @type {any} */ #form;
  /** @type {Set<string>} */ #fresh = new Set();
  #loads = 0;
  #first = 0;
  #live = false;

  begin() {
    const states = h("select", { name: "state", "aria-label": "State" }, h("option", { value: "" }, "any state"), ...Object.keys(api.states).map((name) => h("option", { value: name }, name.toLowerCase())));
    const kinds = h("select", { name: "kind", "aria-label": "Kind" }, h("option", { value: "" }, "any kind"), ...["project", "job", "session", "pool"].map((kind) => h("option", { value: kind }, kind)));
    const search = h("input", { name: "search", type: "search", placeholder: "search id, owner, metadata", "aria-label": "Search" });
    const region = h("input", { name: "region", placeholder: "region", "aria-label": "Region", size: 8 });
    this.#form = h("form", { class: "filters", role: "search", onsubmit: (/** @type {Event} */ e) => (e.preventDefault(), this.#filter()), onchange: () => this.#filter() }, search, states, kinds, region, this.#news, this.#bulk);
    let typing = 0;
    search.addEventListener("input", () => (clearTimeout(typing), (typing = window.setTimeout(() => this.#filter(), 250))));
    this.replaceChildren(h("h1", { class: "unseen" }, "Fleet"), this.#counts, this.#form, this.#place, this.#pages);
    this.on(document, "fleet-summary", (event) => this.#count(event.detail));
    const feed = this.follow((message) => this.#onMessage(message), (live) => this.#setLive(live));
    this.#live = feed.live;
    this.every(RELOAD_MS, () => this.#live || void this.#reload());
    this.#fill();
    // What changed before the stream was open is only in a list that is loaded after it.
    if (feed.connecting) this.#first = window.setTimeout(() => void this.#reload(), STREAM_WAIT_MS);
    else void this.#reload();
    void api.summary().then((summary) => this.#count(summary), () => undefined);
  }

  /** Show the view that the address describes. */
  restore() {
    this.#fill();
    void this.#reload();
  }

  #fill() {
    const query = new URLSearchParams(location.search);
    for (const field of this.#form.elements) if (field.name) field.value = query.get(field.name) ?? "";
  }

  /** @param {Record<string, string|null>} changes @param {boolean} [replace] */
  #go(changes, replace = false) {
    const query = new URLSearchParams(location.search);
    if (!("cursor" in changes)) query.delete("cursor");
    for (const [name, value] of Object.entries(changes)) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    const address = query.size ? `/?${query}` : "/";
    if (replace) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
    void this.#reload();
  }

  #filter() {
    const fields = new FormData(this.#form);
    const changes = Object.fromEntries([...fields].map(([name, value]) => [name, String(value).trim() || null]));
    const query = new URLSearchParams(location.search);
    if (Object.entries(changes).some(([name, value]) => (query.get(name) ?? null) !== value)) this.#go(changes, true);
  }

  async #reload() {
    clearTimeout(this.#first);
    const load = ++this.#loads;
    const query = new URLSearchParams([...new URLSearchParams(location.search)].filter(([name]) => FILTERS.includes(name)));
    const kind = query.get("kind");
    query.delete("kind");
    if (kind) query.set("owner", kind);
    query.set("limit", String(LIMIT));
    query.set("fields", "compact");
    try {
      const page = await api.list(query);
      if (load === this.#loads) this.#draw(page.items, page.nextCursor);
    } catch (error) {
      if (load === this.#loads) this.#place.replaceChildren(renderProblem(error, () => void this.#reload()));
    }
  }

  /** @param {Status[]} items @param {string|null} next */
  #draw(items, next) {
    this.#next = next;
    this.#fresh.clear();
    this.#news.hidden = true;
    this.#rows = new Map(items.map((status) => [keyOf(status), { status, row: this.#row(status) }]));
    this.#chosen = new Set([...this.#chosen].filter((name) => this.#rows.has(name)));
    const filtered = location.search !== "";
    if (!items.length && !filtered) return void this.#place.replaceChildren(renderEmpty(() => void this.#reload()));
    this.#drawHeads();
    this.#body.replaceChildren(...[...this.#rows.values()].map(({ row }) => row));
    this.#place.replaceChildren(
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Sandboxes" },
        h("table", { class: "fleet" }, h("caption", { class: "unseen" }, "Sandboxes"), h("thead", {}, this.#heads), this.#body)),
      items.length ? "" : h("p", { class: "quiet" }, "No sandbox matches."));
    this.#drawPages();
    this.#drawBulk();
    return undefined;
  }

  #drawHeads() {
    const sort = new URLSearchParams(location.search).get("sort") ?? "-created";
    const all = h("input", { type: "checkbox", "aria-label": "Select all on this page", onchange: () => this.#choose([...this.#rows.keys()], all.checked) });
    const heads = COLUMNS.map(([name, key]) => {
      if (!key) return h("th", { scope: "col" }, name);
      const direction = sort === key ? "ascending" : sort === `-${key}` ? "descending" : null;
      const turn = () => this.#go({ sort: direction === "descending" ? key : `-${key}` });
      return h("th", { scope: "col", "aria-sort": direction }, h("button", { type: "button", class: "plain", onclick: turn }, name, direction === "ascending" ? " ↑" : direction ? " ↓" : ""));
    });
    this.#heads.replaceChildren(...(mayOperate() ? [h("th", {}, all)] : []), ...heads);
  }

  /** @param {Status} status */
  #row(status) {
    const name = keyOf(status);
    const box = h("input", { type: "checkbox", "aria-label": `Select ${name}`, onchange: () => this.#choose([name], box.checked) });
    box.checked = this.#chosen.has(name);
    const cells = [
      link(detailPath(name), name),
      stateOf(status),
      h("span", { class: "why", title: status.reason ?? "" }, status.reason ?? ""),
      until(status.sleepsAt),
      `v${status.version}`,
      when(status.lastActiveClass && status.lastActiveAt),
    ];
    return h("tr", { "data-project": name, "data-state": status.status }, ...(mayOperate() ? [h("td", {}, box)] : []), ...cells.map((cell) => h("td", {}, cell)));
  }

  /** @param {import("../shapes.js").Message} message */
  #onMessage({ event, data }) {
    const status = /** @type {Status} */ (data);
    if (event !== "status" || !status.project) return;
    const known = this.#rows.get(status.project);
    if (!known) {
      if (status.version > 1 && this.#rows.size >= LIMIT) return;
      this.#fresh.add(status.project);
      this.#news.textContent = `${amount(this.#fresh.size, "change")} elsewhere, show`;
      this.#news.hidden = false;
      if (!this.#rows.size) void this.#reload();
      return;
    }
    if (status.version < known.status.version) return;
    const row = this.#row(status);
    if (known.status.status !== status.status) row.classList.add("changed");
    known.row.replaceWith(row);
    this.#rows.set(status.project, { status, row });
  }

  /** @param {boolean} live */
  #setLive(live) {
    this.#live = live;
    if (live || !this.#loads) void this.#reload();
  }

  /** @param {Summary} summary */
  #count({ total, states, overdue }) {
    const present = Object.entries(api.states).filter(([name]) => states[name]);
    const parts = present.map(([name, { badge }]) => {
      const count = states[name] ?? 0;
      const bar = h("span", { class: "share" });
      bar.style.setProperty("--share", String(count / Math.max(total, 1)));
      return h("span", { class: "count", "data-badge": badge }, state(badge, name.toLowerCase()), h("b", {}, count.toLocaleString("en")), bar);
    });
    this.#counts.replaceChildren(h("span", { class: "count" }, "all ", h("b", {}, total.toLocaleString("en"))), ...parts, overdue ? h("span", { class: "count", "data-badge": "red" }, state("red", "overdue"), h("b", {}, overdue)) : "");
  }

  /** @param {string[]} names @param {boolean} chosen */
  #choose(names, chosen) {
    for (const name of names) {
      if (chosen) this.#chosen.add(name);
      else this.#chosen.delete(name);
      const box = this.#rows.get(name)?.row.querySelector("input");
      if (box) box.checked = chosen;
    }
    this.#drawBulk();
  }

  #drawBulk() {
    const count = this.#chosen.size;
    this.#bulk.replaceChildren(...(count ? [`${count} selected:`, ...Object.entries(BULK).map(([action, label]) => h("button", { type: "button", onclick: () => void this.#perform(action) }, label))] : []));
  }

  #drawPages() {
    const query = new URLSearchParams(location.search);
    const first = query.has("cursor") ? h("button", { type: "button", onclick: () => this.#go({ cursor: null }) }, "First page") : "";
    const next = this.#next ? h("button", { type: "button", onclick: () => this.#go({ cursor: this.#next }) }, "Next page") : "";
    this.#pages.replaceChildren(first, next);
  }

  /** @param {string} action */
  async #perform(action) {
    const projects = [...this.#chosen];
    const verb = BULK[action] ?? action;
    try {
      const plan = await api.bulk(action, projects, true);
      const affected = plan.items.filter((item) => item.ok && AFFECTS[action]?.(item.status ?? "")).length;
      const question = `${verb} ${amount(affected, "sandbox")}?`;
      const others = plan.items.length - affected;
      const details = [h("p", {}, others ? `${others} of ${projects.length} selected are not affected.` : `${projects.join(", ").slice(0, 300)}`)];
      if (!(await confirmAction(question, details, verb))) return;
      const result = await api.bulk(action, projects, false);
      showDialog(`${verb}: ${result.items.filter((item) => item.ok).length} of ${result.items.length} done`, [renderResult(result.items)]);
      this.#choose(projects, false);
      void this.#reload();
    } catch (error) {
      showDialog(`${verb} failed`, [renderProblem(error)]);
    }
  }
}

/** @param {BulkItem[]} items */
function renderResult(items) {
  return h("ul", { class: "results" }, ...items.map((item) => h("li", { "data-badge": item.ok ? "green" : "red" }, h("span", { class: "dot" }), h("b", {}, item.project), ` ${item.ok ? (item.status ?? "done").toLowerCase() : (item.detail ?? item.code ?? "failed")}`)));
}

/** @param {Status} status */
function keyOf(status) {
  return status.project ?? "";
}

customElements.define("fleet-table", FleetTable);
