// <fleet-charts>: metrics of the fleet and the keeper over time, all on one axis. The address holds
// the span and the part of it that was chosen.

import { h } from "../pane.js";
import { api } from "./api.js";
import { renderChart } from "./chart.js";
import { BaseElement, link } from "./base-element.js";
import { exact } from "./clock.js";

const REFRESH_MS = 60000;
const SPANS = [[1, "last hour"], [6, "last 6 hours"], [24, "last 24 hours"], [168, "last week"], [720, "last 30 days"]];

export class FleetCharts extends BaseElement {
  #place = h("div", { class: "charts" });
  #chosen = h("div", { class: "row chosen", role: "status" });
  #span = h("select", { "aria-label": "Time span", onchange: () => this.#go({ hours: this.#span.value }) }, ...SPANS.map(([hours, name]) => h("option", { value: hours }, name)));

  begin() {
    this.replaceChildren(h("div", { class: "heading" }, h("h1", {}, "Charts"), h("div", { class: "row" }, this.#chosen, this.#span)), this.#place);
    this.on(this, "chart-range", ({ detail }) => this.#go({ hours: this.#span.value, from: iso(detail.from), to: iso(detail.to) }));
    this.every(REFRESH_MS, () => new URLSearchParams(location.search).has("from") || this.#show());
    this.restore();
  }

  /** Show the span that the address describes. */
  restore() {
    this.#span.value = new URLSearchParams(location.search).get("hours") ?? "24";
    if (!this.#span.value) this.#span.value = "24";
    this.#show();
  }

  /** @param {Record<string, string>} query */
  #go(query) {
    history.pushState(null, "", `/charts?${new URLSearchParams(query)}`);
    this.restore();
  }

  #show() {
    const query = new URLSearchParams(location.search);
    const [from, to] = [query.get("from"), query.get("to")];
    this.#chosen.replaceChildren(...(from && to ? [
      h("span", { class: "quiet" }, `${exact(from)} – ${exact(to)}`),
      link(`/audit?${new URLSearchParams({ since: from, until: to })}`, "Events in this time"),
      h("button", { type: "button", onclick: () => this.#go({ hours: this.#span.value }) }, "Whole span"),
    ] : [h("span", { class: "quiet" }, "Drag over a chart to choose a part of it.")]));
    const hours = Number(this.#span.value);
    void this.load(this.#place, () => api.trends(hours), ({ since, stepS, charts }) => {
      const start = Date.parse(since) / 1000;
      const range = from && to ? { from: Date.parse(from) / 1000, to: Date.parse(to) / 1000, stepS } : { from: start, to: start + hours * 3600, stepS };
      return charts.map((chart) => renderChart(chart, range));
    });
  }
}

/** @param {number} seconds */
function iso(seconds) {
  return new Date(seconds * 1000).toISOString().replace(/\.\d+/, "");
}

customElements.define("fleet-charts", FleetCharts);
