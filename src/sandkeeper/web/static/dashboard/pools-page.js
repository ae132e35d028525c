// <pools-page>: how many sandboxes of a template wait for their first user.

import { h } from "../pane.js";
import { api } from "./api.js";
import { BaseElement, link, mayOperate, nothing, renderProblem, state, table, toast, until } from "./base-element.js";

const REFRESH_MS = 15000;

export class PoolsPage extends BaseElement {
  #place = h("div");
  #problem = h("div");

  begin() {
    this.replaceChildren(h("div", { class: "heading" }, h("h1", {}, "Pools"), link("/?kind=pool", "Show them")), mayOperate() ? this.#form() : "", this.#problem, this.#place);
    this.#show();
    this.every(REFRESH_MS, () => this.#show());
  }

  #form() {
    const template = h("input", { name: "template", required: true, placeholder: "base", "aria-label": "Template" });
    const target = h("input", { name: "target", type: "number", min: 0, max: 1000, required: true, placeholder: "0", "aria-label": "How many" });
    const set = async (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      try {
        await api.json("PUT", "/api/pools", { template: template.value.trim(), target: Number(target.value) });
        this.#problem.replaceChildren();
        toast(`The pool of ${template.value} has the target ${target.value}`);
        this.#show();
      } catch (error) {
        this.#problem.replaceChildren(renderProblem(error));
      }
    };
    return h("form", { class: "filters", onsubmit: set }, template, target, h("button", {}, "Set target"));
  }

  #show() {
    void this.load(this.#place, () => api.json("GET", "/api/pools"), ({ items }) => (items.length ? [table(["Template", "Ready", "Starting", "Target", "Hits", "Failures", "Now"], items.map(renderPool), "Pools")] : [nothing("No pools.")]));
  }
}

/** @param {any} pool */
function renderPool(pool) {
  const rate = pool.hitRate === null ? "–" : `${(pool.hitRate * 100).toFixed(0)} % of ${pool.hits + pool.misses}`;
  const now = pool.stopped ? state("red", "Stopped") : pool.error ? state("yellow", "Retrying") : pool.ready >= pool.target ? state("green", "Full") : state("blue", "Filling");
  return [pool.template, String(pool.ready), String(pool.starting), String(pool.target), rate, String(pool.failures), h("span", { title: pool.error }, now, " ", pool.error || "", pool.retryAt ? h("span", { class: "quiet" }, " again in ", until(pool.retryAt)) : "")];
}

customElements.define("pools-page", PoolsPage);
