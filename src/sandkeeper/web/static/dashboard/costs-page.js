// <costs-page>: what sandboxes cost, and what sleeping saved.

import { h } from "../pane.js";
import { api } from "./api.js";
import { BaseElement, table } from "./base-element.js";
import { renderChart } from "./chart.js";

const REFRESH_MS = 60000;
const GROUPS = ["tenant", "template", "owner", "sandbox"];
const DETAIL_DAYS = 35;

export class CostsPage extends BaseElement {
  #by = choose("Sum by", GROUPS.map((name) => [name, `by ${name}`]), () => this.#show());
  #span = choose("Days", [["month", "this month"], ["before", "last month"], ["7", "last 7 days"], [String(DETAIL_DAYS), `last ${DETAIL_DAYS} days`]], () => this.#show());
  #place = h("div", { class: "charts" });
  #simulated = h("div", { class: "charts" });

  begin() {
    this.replaceChildren(h("div", { class: "heading" }, h("h1", {}, "Costs"), this.#span, this.#by), this.#place, this.#simulated);
    this.#simulated.replaceChildren(h("button", { type: "button", onclick: () => this.#simulate() }, "Compare idle timeouts"));
    this.#show();
    this.every(REFRESH_MS, () => this.#show());
  }

  #simulate() {
    const ask = () => api.simulate(new URLSearchParams({ idle: "60,180,300,600,adaptive", days: "14" }));
    void this.load(this.#simulated, ask, (report) => [renderSimulation(report)]);
  }

  #show() {
    const days = findDays(this.#span.value, new Date());
    const by = this.#by.value;
    const ask = (/** @type {string} */ group) => api.costs(new URLSearchParams({ by: group, ...days }));
    void this.load(this.#place, () => Promise.all([ask(by), ask("day")]), ([lines, daily]) => [renderTotal(lines), renderDays(daily), renderLines(by, lines)]);
  }
}

/** @param {string} name @param {string[][]} options @param {() => void} act */
function choose(name, options, act) {
  return h("select", { "aria-label": name, onchange: act }, ...options.map(([value, text]) => h("option", { value }, text ?? "")));
}

/** The first and the last day (UTC) of a choice. @param {string} choice @param {Date} now */
export function findDays(choice, now) {
  const [year, month, day] = [now.getUTCFullYear(), now.getUTCMonth(), now.getUTCDate()];
  if (choice === "before") return render(Date.UTC(year, month - 1, 1), Date.UTC(year, month, 0));
  if (choice === "month") return render(Date.UTC(year, month, 1), Date.UTC(year, month, day));
  return render(Date.UTC(year, month, day - Number(choice) + 1), Date.UTC(year, month, day));
}

/** @param {number} first @param {number} last */
function render(first, last) {
  return { from: new Date(first).toISOString().slice(0, 10), to: new Date(last).toISOString().slice(0, 10) };
}

/** Cents, or as many places as a small amount needs. @param {string} amount */
function money(amount) {
  const value = Number(amount);
  return `$${value.toFixed(value === 0 || Math.abs(value) >= 1 ? 2 : 6)}`;
}

/** @param {number} seconds */
function hours(seconds) {
  return `${(seconds / 3600).toFixed(1)} h`;
}

/** @param {any} report */
function renderTotal({ total, first, last }) {
  const parts = [["idle time", total.idle], ["pools", total.pools], ["unused warm-ups", total.unusedWarmups], ["storage", String(Number(total.pausedStorage) + Number(total.keptStorage))]];
  return h("section", { class: "card" },
    h("h2", {}, `${money(total.cost)} from ${first} to ${last} (UTC)`),
    h("p", {}, `Saved: ${money(total.savedNeverPaused)} against never pausing, and ${money(total.savedTimeoutOnly)} against the provider's timeout alone.`),
    h("p", { class: "quiet" }, `Of it ${parts.map(([name, amount]) => `${name} ${money(amount)}`).join(" · ")}.`));
}

/** @param {any} report */
function renderDays({ items }) {
  const series = [["cost", "cost"], ["saved", "savedNeverPaused"]].map(([name, field]) => ({
    name: name ?? "", points: items.map((/** @type {any} */ item) => [`${item.key}T00:00:00Z`, Number(item[field ?? ""])]),
  }));
  return renderChart({ name: "costs", title: "Dollars a day", sentence: "What was paid, and what was saved.", unit: "dollars", series });
}

/** @param {string} by @param {any} report */
function renderLines(by, { items, hasMore }) {
  const rows = items.map((/** @type {any} */ item) => [item.key || "–", money(item.cost), hours(item.runningS), hours(item.pausedS), money(item.idle), money(item.savedNeverPaused), money(item.savedTimeoutOnly)]);
  return h("section", { class: "card" },
    h("h2", {}, `By ${by}`),
    items.length ? table([by, "cost", "running", "asleep", "idle time", "saved", "saved, timeout only"], rows, `Costs by ${by}`) : h("p", { class: "quiet" }, "Nothing ran in these days."),
    hasMore ? h("p", { class: "quiet" }, "There are more; the total has them all.") : null);
}

/** @param {any} report */
function renderSimulation({ groups, first, last }) {
  const rows = groups.flatMap((/** @type {any} */ group) => group.items).map((/** @type {any} */ item) => [
    item.best ? `★ ${item.idle}` : item.idle, hours(item.runningS), money(item.cost), String(item.earlyPauses), String(item.wakes), `${item.waitingS.toFixed(1)} s`, item.setting || "–",
  ]);
  return h("section", { class: "card" },
    h("h2", {}, `Idle timeouts compared, ${first} to ${last} (UTC)`),
    rows.length ? table(["idle timeout (s)", "running", "cost", "too early", "wakes", "waiting", "setting"], rows, "Idle timeouts compared") : h("p", { class: "quiet" }, "No use is recorded yet."),
    h("p", { class: "quiet" }, "★ None is better in both time and waiting."));
}

customElements.define("costs-page", CostsPage);
