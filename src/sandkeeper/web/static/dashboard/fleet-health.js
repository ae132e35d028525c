// <fleet-health>: one chip for the keeper's health, which leads to the health page.

import { h } from "../pane.js";
import { api } from "./api.js";
import { amount, BaseElement, link } from "./base-element.js";

/** @import {Summary} from "./api.js" */

const REFRESH_MS = 15000;

export class FleetHealth extends BaseElement {
  #drawn = "";
  /** @type {Summary|null} */ #last = null;

  begin() {
    this.#show("gray", "Health", "");
    void this.refresh();
    this.every(REFRESH_MS, () => void this.refresh());
  }

  /** Tell a page that opened since what was read last. */
  repeat() {
    if (this.#last) this.#tell(this.#last);
  }

  /** @param {Summary} summary */
  #tell(summary) {
    this.#last = summary;
    this.dispatchEvent(new CustomEvent("fleet-summary", { detail: summary, bubbles: true }));
  }

  async refresh() {
    try {
      const summary = await api.summary();
      this.#tell(summary);
      this.#draw(summary);
    } catch (error) {
      this.dispatchEvent(new CustomEvent("fleet-silent", { detail: error, bubbles: true }));
      this.#show("yellow", "Health unknown", "");
    }
  }

  /** @param {Summary} summary */
  #draw({ health }) {
    const bad = health.parts.filter((part) => part.state === "bad");
    const [first] = bad;
    if (!first) this.#show("green", "Healthy", "");
    else this.#show("red", bad.length === 1 ? first.title : amount(bad.length, "problem"), bad.map((part) => `${part.title}: ${part.finding}`).join("\n"));
  }

  /** @param {string} badge @param {string} text @param {string} title */
  #show(badge, text, title) {
    const drawn = `${badge} ${text} ${title}`;
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    const chip = link("/health", h("span", { class: "dot" }), text);
    Object.assign(chip, { className: "chip", title });
    chip.dataset.badge = badge;
    this.replaceChildren(chip);
  }
}

customElements.define("fleet-health", FleetHealth);
