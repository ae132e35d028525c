// <audit-log>: every change of every sandbox, newest first, live.

import { h } from "../pane.js";
import { api } from "./api.js";
import { BaseElement, detailPath, link, renderProblem } from "./base-element.js";
import { renderChange } from "./sandbox-detail.js";

/** @import {Change} from "./api.js" */

export class AuditLog extends BaseElement {
  #list = h("ol", { class: "timeline" });
  #older = h("button", { type: "button", hidden: true, onclick: () => void this.#more() }, "Older");
  /** @type {any} */ #filter = null;
  /** @type {string|null} */ #cursor = null;

  begin() {
    this.#filter = h("input", { type: "search", placeholder: "actor, cause, project", "aria-label": "Filter", oninput: () => this.#sift() });
    this.replaceChildren(h("div", { class: "heading" }, h("h1", {}, "Audit"), this.#filter), h("section", { class: "card" }, this.#list, this.#older));
    this.follow(({ event, data }) => {
      if (event !== "change") return;
      this.#list.prepend(renderEntry(/** @type {Change} */ (data)));
      this.#sift();
    });
    void this.#more();
  }

  async #more() {
    try {
      const query = new URLSearchParams({ limit: "100" });
      if (this.#cursor) query.set("cursor", this.#cursor);
      const page = await api.changes(query);
      this.#list.append(...page.items.map(renderEntry));
      this.#cursor = page.nextCursor;
      this.#older.hidden = !page.nextCursor;
      this.#sift();
    } catch (error) {
      this.#list.append(h("li", {}, renderProblem(error)));
    }
  }

  #sift() {
    const wanted = this.#filter.value.toLowerCase();
    for (const entry of this.#list.children) entry.hidden = !entry.textContent.toLowerCase().includes(wanted);
  }
}

/** @param {Change} change */
function renderEntry(change) {
  const entry = renderChange(change);
  entry.children[0]?.after(link(detailPath(change.project), change.project));
  return entry;
}

customElements.define("audit-log", AuditLog);
