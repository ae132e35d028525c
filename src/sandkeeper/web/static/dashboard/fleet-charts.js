// <fleet-charts>: metrics of the fleet and the keeper over time.

import { h } from "../pane.js";
import { api } from "./api.js";
import { renderChart } from "./chart.js";
import { BaseElement } from "./base-element.js";

const REFRESH_MS = 60000;

export class FleetCharts extends BaseElement {
  begin() {
    const place = h("div", { class: "charts" });
    const span = h("select", { "aria-label": "Time span", onchange: () => show() }, ...[[1, "last hour"], [24, "last 24 hours"], [168, "last week"]].map(([hours, name]) => h("option", { value: hours, selected: hours === 24 }, name)));
    const show = () => void this.load(place, () => api.trends(Number(span.value)), ({ charts }) => charts.map(renderChart));
    this.replaceChildren(h("div", { class: "heading" }, h("h1", {}, "Charts"), span), place);
    show();
    this.every(REFRESH_MS, show);
  }
}

customElements.define("fleet-charts", FleetCharts);
