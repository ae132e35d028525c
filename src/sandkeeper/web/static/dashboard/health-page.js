// <health-page>: every part of the keeper: how it does, what it is for, and what helps.

import { h, renderSpan } from "../pane.js";
import { BaseElement, when } from "./base-element.js";

/** @import {HealthPart, Summary, Threshold} from "./api.js" */

/** @type {Record<string, [string, string]>} */
const LOOKS = { ok: ["green", "Ok"], bad: ["red", "Problem"], off: ["gray", "Off"] };

export class HealthPage extends BaseElement {
  #parts = h("div", { class: "parts" });
  #limits = h("section", { class: "card", hidden: true });

  begin() {
    this.replaceChildren(h("div", { class: "heading" }, h("h1", {}, "Health")), this.#parts, this.#limits);
    // The chip in the header reads it regularly.
    this.on(document, "fleet-summary", (event) => this.#draw(event.detail));
    /** @type {any} */ (document.querySelector("fleet-health"))?.repeat();
  }

  /** @param {Summary} summary */
  #draw({ health }) {
    const order = ["bad", "ok", "off"];
    const parts = [...health.parts].sort((one, other) => order.indexOf(one.state) - order.indexOf(other.state));
    this.#parts.replaceChildren(...parts.map(renderPart));
    this.#limits.hidden = false;
    this.#limits.replaceChildren(h("h2", {}, "Limits"), h("ul", { class: "limits" }, ...health.items.map(renderLimit)));
  }
}

/** @param {HealthPart} part */
function renderPart(part) {
  const [badge, word] = LOOKS[part.state] ?? ["gray", part.state];
  return h("section", { class: "card part", "data-badge": badge },
    h("h2", {}, h("span", { class: "dot" }), part.title, h("span", { class: "quiet" }, word)),
    h("p", {}, part.finding, part.since ? h("span", { class: "quiet" }, " Since ", when(part.since), ".") : ""),
    h("p", { class: "quiet" }, part.meaning),
    part.state === "bad" ? h("p", { class: "advice" }, h("b", {}, "What to do: "), part.action) : null);
}

/** @param {Threshold} one */
function renderLimit(one) {
  return h("li", { "data-badge": one.value === null ? "gray" : one.ok ? "green" : "red" },
    h("span", { class: "dot" }),
    h("span", {}, h("b", {}, one.name.replaceAll("_", " ")), ` ${one.value === null ? "not enough data" : figure(one.value, one.unit)}, limit ${figure(one.limit, one.unit)}. `, h("span", { class: "quiet" }, "Last ok: ", when(one.lastOkAt))));
}

/** @param {number} value @param {string} unit */
export function figure(value, unit) {
  if (unit === "ratio") return `${(value * 100).toFixed(value && value < 0.1 ? 1 : 0)} %`;
  if (unit === "s") return value < 10 ? `${value.toFixed(1)} s` : renderSpan(value * 1000);
  if (unit === "ms") return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
  return `${Number.isInteger(value) ? value : value.toFixed(1)}${unit ? ` ${unit}` : ""}`;
}

customElements.define("health-page", HealthPage);
