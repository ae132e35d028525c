// <fleet-table>: the whole fleet. The database sorts, filters and pages; the address holds the view,
// so a link shows the same rows to another user. Rows are updated in place.

import { h } from "../pane.js";
import { api } from "./api.js";
import { amount, askSoon, BaseElement, mayOperate, menu, renderProblem, state } from "./base-element.js";
import { openCreate } from "./create-sandbox.js";
import { BULK, performBulk } from "./fleet-bulk.js";
import { chosenColumns, COLUMNS, renderChoice } from "./fleet-columns.js";
import { renderEmpty } from "./fleet-empty.js";
import { LABELS, operationButtons } from "./operations.js";

/** @import {Status} from "../shapes.js" */
/** @import {Summary} from "./api.js" */

const LIMIT = 50;
const RELOAD_MS = 30000;
const STREAM_WAIT_MS = 1000;
const NEWS_MAX = 1000;
/** What the list and a bulk action are filtered by; `kind` is the list's `owner`. */
const FILTERS = ["search", "state", "kind", "region", "tenant", "overdue"];

export class FleetTable extends BaseElement {
  /** @type {Map<string, {status: Status, row: HTMLElement}>} */ #rows = new Map();
  /** @type {Set<string>} */ #chosen = new Set();
  #choosesAll = false;
  /** @type {string|null} */ #next = null;
  /** @type {Summary|null} */ #summary = null;
  #counts = h("div", { class: "counts" });
  #news = h("button", { type: "button", class: "plain", hidden: true, onclick: () => void this.#reload() });
  #body = h("tbody");
  #heads = h("tr");
  #place = h("div", { class: "fleet-place" });
  #bulk = h("div", { class: "bulk", role: "status" });
  #pages = h("nav", { class: "row paging", "aria-label": "Pages of the list" });
  /** @type {any} */ #form;
  /** @type {Set<string>} */ #fresh = new Set();
  #loads = 0;
  #first = 0;
  #live = false;

  begin() {
    const states = h("select", { name: "state", "aria-label": "State" }, h("option", { value: "" }, "any state"), ...Object.entries(api.words).map(([name, word]) => h("option", { value: name }, word)));
    const kinds = h("select", { name: "kind", "aria-label": "Kind" }, h("option", { value: "" }, "any kind"), ...["project", "job", "session", "pool"].map((kind) => h("option", { value: kind }, kind)));
    const search = h("input", { name: "search", type: "search", placeholder: "id, owner, metadata", "aria-label": "Search" });
    const region = h("input", { name: "region", placeholder: "region", "aria-label": "Region", size: 8 });
    const tenant = h("input", { name: "tenant", placeholder: "tenant", "aria-label": "Tenant", size: 8 });
    this.#form = h("form", { class: "filters", role: "search", onsubmit: (/** @type {Event} */ e) => (e.preventDefault(), this.#filter()), onchange: () => this.#filter() }, search, states, kinds, region, tenant, this.#news);
    let typing = 0;
    search.addEventListener("input", () => (clearTimeout(typing), (typing = window.setTimeout(() => this.#filter(), 250))));
    const create = mayOperate() ? h("button", { type: "button", class: "primary", onclick: openCreate }, "New sandbox") : null;
    this.replaceChildren(
      h("div", { class: "heading" }, h("h1", {}, "Sandboxes"), h("div", { class: "row" }, this.#columnMenu(), create)),
      this.#counts, this.#form, this.#bulk, this.#place, this.#pages);
    this.on(document, "fleet-summary", (event) => this.#count(event.detail));
    const feed = this.followFleet(({ statuses }) => statuses.forEach((status) => this.#onStatus(status)), (live) => this.#setLive(live));
    this.#live = feed.live;
    this.every(RELOAD_MS, () => this.#live || void this.#reload());
    this.#fill();
    // What changed before the stream was open is only in a list that is loaded after it.
    if (feed.connecting) this.#first = window.setTimeout(() => void this.#reload(), STREAM_WAIT_MS);
    else void this.#reload();
    /** @type {any} */ (document.querySelector("fleet-health"))?.repeat();
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

  #columnMenu() {
    const boxes = COLUMNS.filter(({ id }) => id !== "project").map(({ id, title }) => {
      const box = h("input", { type: "checkbox", value: id, onchange: () => choose() });
      box.checked = chosenColumns(new URLSearchParams(location.search)).some((column) => column.id === id);
      return h("label", { class: "check" }, box, ` ${title}`);
    });
    const choose = () => {
      const ids = boxes.map((label) => label.querySelector("input")).filter((box) => box.checked).map((box) => box.value);
      this.#go({ columns: renderChoice(["project", ...ids]) }, { keepsPage: true });
    };
    return menu("Columns", ...boxes);
  }

  /** @param {Record<string, string|null>} changes @param {{replace?: boolean, keepsPage?: boolean}} [options] */
  #go(changes, { replace = false, keepsPage = false } = {}) {
    const query = new URLSearchParams(location.search);
    if (!keepsPage) for (const name of ["cursor", "page"]) query.delete(name);
    for (const [name, value] of Object.entries(changes)) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    const address = query.size ? `/?${query}` : "/";
    // How one came here, for the way back: a cursor only leads forward.
    const trail = keepsPage ? (history.state?.trail ?? []) : [];
    if (replace) history.replaceState({ trail }, "", address);
    else history.pushState({ trail }, "", address);
    void this.#reload();
  }

  #filter() {
    const fields = new FormData(this.#form);
    const changes = Object.fromEntries([...fields].map(([name, value]) => [name, String(value).trim() || null]));
    const query = new URLSearchParams(location.search);
    if (Object.entries(changes).some(([name, value]) => (query.get(name) ?? null) !== value)) this.#go(changes, { replace: true });
  }

  async #reload() {
    clearTimeout(this.#first);
    const load = ++this.#loads;
    const address = new URLSearchParams(location.search);
    const query = new URLSearchParams({ limit: String(LIMIT), fields: "compact" });
    for (const name of [...FILTERS, "sort", "cursor"]) {
      const value = address.get(name);
      if (value) query.set(name === "kind" ? "owner" : name, value);
    }
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
    this.#choosesAll = false;
    const filtered = FILTERS.some((name) => new URLSearchParams(location.search).has(name));
    this.#drawPages();
    this.#drawBulk();
    this.#drawCounts();
    if (!items.length && !filtered) return void this.#place.replaceChildren(renderEmpty(() => void this.#reload()));
    this.#drawHeads();
    this.#body.replaceChildren(...[...this.#rows.values()].map(({ row }) => row));
    this.#place.replaceChildren(
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Sandboxes" },
        h("table", { class: "fleet" }, h("caption", { class: "unseen" }, "Sandboxes"), h("thead", {}, this.#heads), this.#body)),
      items.length ? "" : h("p", { class: "quiet" }, "No sandbox matches."));
    return undefined;
  }

  #drawHeads() {
    const query = new URLSearchParams(location.search);
    const sort = query.get("sort") ?? "-created";
    const all = h("input", { type: "checkbox", "aria-label": "Select all on this page", onchange: () => this.#choose([...this.#rows.keys()], all.checked) });
    const heads = chosenColumns(query).map(({ title, sort: key }) => {
      if (!key) return h("th", { scope: "col" }, title);
      const direction = sort === key ? "ascending" : sort === `-${key}` ? "descending" : null;
      const turn = () => this.#go({ sort: direction === "ascending" ? `-${key}` : key });
      return h("th", { scope: "col", "aria-sort": direction }, h("button", { type: "button", class: "plain", onclick: turn }, title, direction === "ascending" ? " ↑" : direction ? " ↓" : ""));
    });
    const operate = mayOperate();
    this.#heads.replaceChildren(...(operate ? [h("th", { class: "pick" }, all)] : []), ...heads, ...(operate ? [h("th", { scope: "col" }, h("span", { class: "unseen" }, "Action"))] : []));
  }

  /** @param {Status} status */
  #row(status) {
    const name = keyOf(status);
    const box = h("input", { type: "checkbox", "aria-label": `Select ${name}`, onchange: () => this.#choose([name], box.checked) });
    box.checked = this.#chosen.has(name);
    const columns = chosenColumns(new URLSearchParams(location.search));
    const cells = columns.map(({ title, id, cell }) => h("td", { "data-title": title, "data-column": id }, cell(status)));
    const row = h("tr", { "data-project": name, "data-state": status.status }, ...cells);
    if (!mayOperate()) return row;
    const usual = status.summary.operations.find((operation) => operation !== "verify" && operation !== "kill");
    const [button] = usual ? operationButtons(() => this.#rows.get(name)?.status ?? status, [usual]) : [];
    button?.setAttribute("aria-label", `${LABELS[usual ?? ""]} ${name}`);
    button?.classList.replace("primary", "small");
    row.prepend(h("td", { class: "pick" }, box));
    row.append(h("td", { class: "act" }, button ?? ""));
    return row;
  }

  /** @param {Status} status */
  #onStatus(status) {
    const name = keyOf(status);
    const known = this.#rows.get(name);
    if (!known) {
      if ((status.version > 1 && this.#rows.size >= LIMIT) || this.#fresh.size >= NEWS_MAX) return;
      this.#fresh.add(name);
      this.#news.textContent = `${amount(this.#fresh.size, "change")} elsewhere, show`;
      this.#news.hidden = false;
      if (!this.#rows.size) askSoon("fleet", () => this.isConnected && this.#reload());
      return;
    }
    if (status.version < known.status.version) return;
    const row = this.#row(status);
    if (known.status.status !== status.status) row.classList.add("changed");
    known.row.replaceWith(row);
    this.#rows.set(name, { status, row });
  }

  /** @param {boolean} live */
  #setLive(live) {
    this.#live = live;
    if (live || !this.#loads) void this.#reload();
  }

  /** @param {Summary} summary */
  #count(summary) {
    this.#summary = summary;
    this.#drawCounts();
    this.#drawPages();
  }

  /** Show the counts; each is the filter that finds what it counts. */
  #drawCounts() {
    if (!this.#summary) return;
    const { total, states, overdue } = this.#summary;
    const query = new URLSearchParams(location.search);
    /** @param {Record<string, string|null>} filter @param {Node|string} label @param {number} count @param {string} badge */
    const one = (filter, label, count, badge) => {
      const isOn = Object.entries(filter).every(([name, value]) => (query.get(name) ?? null) === value);
      return h("button", { type: "button", class: "count", "data-badge": badge, "aria-pressed": String(isOn), onclick: () => (this.#go({ state: null, overdue: null, ...filter }), this.#fill()) }, label, h("b", {}, count.toLocaleString("en")));
    };
    const present = Object.entries(api.states).filter(([name]) => states[name]);
    this.#counts.replaceChildren(
      one({ state: null, overdue: null }, "All", total, "gray"),
      ...present.map(([name, { badge }]) => one({ state: name }, state(badge, api.words[name] ?? name), states[name] ?? 0, badge)),
      overdue || query.has("overdue") ? one({ overdue: "true" }, state("red", "Overdue"), overdue, "red") : "");
  }

  /** @param {string[]} names @param {boolean} chosen */
  #choose(names, chosen) {
    this.#choosesAll = false;
    for (const name of names) {
      if (chosen) this.#chosen.add(name);
      else this.#chosen.delete(name);
      const box = /** @type {HTMLInputElement|null|undefined} */ (this.#rows.get(name)?.row.querySelector("input"));
      if (box) box.checked = chosen;
    }
    this.#drawBulk();
  }

  #drawBulk() {
    const count = this.#chosen.size;
    if (!count) return void this.#bulk.replaceChildren();
    const buttons = BULK.map((action) => h("button", { type: "button", class: action === "kill" ? "danger" : null, onclick: () => void this.#perform(action) }, LABELS[action] ?? action));
    const isPage = count === this.#rows.size && (this.#next || new URLSearchParams(location.search).has("cursor"));
    const all = isPage && !this.#choosesAll ? h("button", { type: "button", class: "plain", onclick: () => ((this.#choosesAll = true), this.#drawBulk()) }, "Select all that match") : "";
    this.#bulk.replaceChildren(h("span", {}, this.#choosesAll ? "All that match are selected" : `${count} selected`), all, ...buttons, h("button", { type: "button", class: "plain", onclick: () => this.#choose([...this.#chosen], false) }, "Clear"));
    return undefined;
  }

  #drawPages() {
    const query = new URLSearchParams(location.search);
    const page = Number(query.get("page") ?? 1);
    const trail = /** @type {(string|null)[]} */ (history.state?.trail ?? []);
    /** @param {string|null} cursor @param {number} number @param {(string|null)[]} way */
    const turn = (cursor, number, way) => {
      this.#go({ cursor, page: number > 1 ? String(number) : null });
      history.replaceState({ trail: way }, "");
      scrollTo(0, 0);
    };
    const here = query.get("cursor");
    const first = here ? h("button", { type: "button", onclick: () => turn(null, 1, []) }, "First page") : "";
    const previous = trail.length ? h("button", { type: "button", onclick: () => turn(trail.at(-1) ?? null, page - 1, trail.slice(0, -1)) }, "Previous page") : "";
    const next = this.#next ? h("button", { type: "button", onclick: () => turn(this.#next, page + 1, [...trail, here]) }, "Next page") : "";
    const isWhole = !FILTERS.some((name) => query.has(name)) && this.#summary;
    const of = isWhole ? ` of ${Math.max(1, Math.ceil((this.#summary?.total ?? 0) / LIMIT))}` : "";
    const where = first || next ? h("span", { class: "quiet" }, `Page ${page}${of}`) : "";
    this.#pages.replaceChildren(where, first, previous, next);
  }

  /** @param {string} action */
  async #perform(action) {
    const query = new URLSearchParams(location.search);
    const entries = FILTERS.flatMap((name) => {
      const value = query.get(name);
      return value ? [[name === "kind" ? "owner" : name, name === "overdue" ? true : value]] : [];
    });
    const targets = this.#choosesAll ? { filter: Object.fromEntries(entries) } : { projects: [...this.#chosen] };
    if (!(await performBulk(action, targets))) return;
    this.#choose([...this.#chosen], false);
    void this.#reload();
  }
}

/** @param {Status} status */
function keyOf(status) {
  return status.project ?? "";
}

customElements.define("fleet-table", FleetTable);
