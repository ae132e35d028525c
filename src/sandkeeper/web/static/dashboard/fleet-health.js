// <fleet-health>: the health thresholds, each with its current value.

import { h, renderSpan } from "../pane.js";
import { api } from "./api.js";
import { BaseElement, when } from "./base-element.js";

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
  clock_skew: "clocks",
};

export class FleetHealth extends BaseElement {
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
    const quiet = health.items.filter((light) => light.ok && light.value === null);
    this.#lights.replaceChildren(
      ...health.items.filter((light) => !quiet.includes(light)).map((light) => renderLight(light)),
      ...(quiet.length ? [renderQuiet(quiet)] : []));
  }
}

/** @param {Threshold} light */
function renderLight(light) {
  const label = labelOf(light);
  const limit = `Limit ${figure(light.limit, light.unit)}.`;
  const title = `${label}: ${light.ok ? "ok" : "over the limit"}. ${light.sentence} ${limit}`;
  return h("li", { "data-badge": light.ok ? "green" : "red", title },
    h("details", { name: "light" },
      h("summary", {}, h("span", { class: "dot" }), `${label} `, h("b", {}, light.value === null ? "–" : figure(light.value, light.unit)), h("span", { class: "unseen" }, light.ok ? " ok" : " over the limit")),
      h("div", { class: "popover" }, h("p", {}, light.sentence), h("p", {}, limit), h("p", {}, "Last ok: ", when(light.lastOkAt)))));
}

/** Show all thresholds without enough data as one light, to leave room for the others. @param {Threshold[]} lights */
function renderQuiet(lights) {
  return h("li", { "data-badge": "gray", title: `Not enough data: ${lights.map(labelOf).join(", ")}.` },
    h("details", { name: "light" },
      h("summary", {}, h("span", { class: "dot" }), `${lights.length} quiet`),
      h("div", { class: "popover" }, h("p", {}, "Not enough data:"), ...lights.map((light) => h("p", {}, h("b", {}, labelOf(light)), `: ${light.sentence} Limit ${figure(light.limit, light.unit)}.`)))));
}

/** @param {Threshold} light */
function labelOf(light) {
  return LABELS[light.name] ?? light.name.replaceAll("_", " ");
}

/** @param {number} value @param {string} unit */
export function figure(value, unit) {
  if (unit === "ratio") return `${(value * 100).toFixed(value && value < 0.1 ? 1 : 0)} %`;
  if (unit === "s") return value < 10 ? `${value.toFixed(1)} s` : renderSpan(value * 1000);
  if (unit === "ms") return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
  return `${Number.isInteger(value) ? value : value.toFixed(1)}${unit ? ` ${unit}` : ""}`;
}

customElements.define("fleet-health", FleetHealth);
