// <fleet-health>: the thresholds that make an operator look, each with its figure.

import { h, renderSpan } from "../pane.js";
import { api } from "./api.js";
import { Part, when } from "./part.js";

/** @import {Summary, Threshold} from "./api.js" */

const REFRESH_MS = 15000;
/** @type {Record<string, string>} */
const LABELS = {
  webhook_failures: "webhooks",
  background_run: "runs",
  stale_records: "stale",
  mismatches: "mismatch",
  enforcer_silence: "enforcer",
  webhook_silence: "silence",
  idle_lag_p95: "idle lag",
};

export class FleetHealth extends Part {
  #lights = h("ul", { class: "lights", "aria-label": "Health" });
  #drawn = "";

  begin() {
    this.replaceChildren(this.#lights);
    void this.#refresh();
    this.every(REFRESH_MS, () => void this.#refresh());
  }

  async #refresh() {
    try {
      const summary = await api.summary();
      this.dispatchEvent(new CustomEvent("fleet-summary", { detail: summary, bubbles: true }));
      this.#draw(summary);
    } catch {
      this.#drawn = "";
      this.#lights.replaceChildren(h("li", { "data-badge": "yellow" }, h("span", { class: "dot" }), "health unknown"));
    }
  }

  /** @param {Summary} summary */
  #draw({ health }) {
    const drawn = JSON.stringify(health);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    this.#lights.replaceChildren(...health.items.map((light) => renderLight(light)));
  }
}

/** @param {Threshold} light */
function renderLight(light) {
  const badge = light.ok ? (light.value === null ? "gray" : "green") : "red";
  const label = LABELS[light.name] ?? light.name.replaceAll("_", " ");
  const said = `${label}: ${light.ok ? "fine" : "beyond its limit"}. ${light.sentence} Limit ${figure(light.limit, light.unit)}.`;
  return h("li", { "data-badge": badge, title: said },
    h("details", { name: "light" },
      h("summary", {}, h("span", { class: "dot" }), `${label} `, h("b", {}, light.value === null ? "–" : figure(light.value, light.unit)), h("span", { class: "unseen" }, light.ok ? " fine" : " beyond its limit")),
      h("div", { class: "popover" }, h("p", {}, light.sentence), h("p", {}, light.value === null ? "Too little was seen to judge." : `Limit ${figure(light.limit, light.unit)}.`), h("p", {}, "Last fine: ", when(light.lastOkAt)))));
}

/** @param {number} value @param {string} unit */
export function figure(value, unit) {
  if (unit === "ratio") return `${(value * 100).toFixed(value && value < 0.1 ? 1 : 0)} %`;
  if (unit === "s") return value < 10 ? `${value.toFixed(1)} s` : renderSpan(value * 1000);
  if (unit === "ms") return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
  return `${Number.isInteger(value) ? value : value.toFixed(1)}${unit ? ` ${unit}` : ""}`;
}

customElements.define("fleet-health", FleetHealth);
