// <sessions-page>: who uses which sandbox, and for what.

import { h } from "../pane.js";
import { api } from "./api.js";
import { BaseElement, confirmAction, detailPath, link, mayOperate, nothing, renderProblem, stateOf, table, toast, when } from "./base-element.js";

export class SessionsPage extends BaseElement {
  #place = h("div");
  #older = h("button", { type: "button", hidden: true, onclick: () => void this.#more() }, "More");
  #user = h("input", { type: "search", placeholder: "user", "aria-label": "User", onchange: () => this.restart() });
  /** @type {any[]} */ #items = [];
  /** @type {string|null} */ #cursor = null;

  begin() {
    this.replaceChildren(h("div", { class: "heading" }, h("h1", {}, "Sessions"), this.#user), this.#place, this.#older);
    this.restart();
  }

  restart() {
    [this.#items, this.#cursor] = [[], null];
    void this.#more();
  }

  async #more() {
    const query = new URLSearchParams({ limit: "100", ...(this.#user.value ? { user: this.#user.value.trim() } : {}), ...(this.#cursor ? { cursor: this.#cursor } : {}) });
    try {
      const page = await api.json("GET", `/api/sessions?${query}`);
      this.#items.push(...page.items);
      this.#cursor = page.nextCursor;
      this.#older.hidden = !page.nextCursor;
      this.#draw();
    } catch (error) {
      this.#place.replaceChildren(renderProblem(error, () => void this.#more()));
    }
  }

  #draw() {
    const rows = this.#items.map((one) => [
      one.key, one.userId, one.kind,
      one.sandbox ? link(detailPath(one.sandbox.project), one.sandbox.project) : "–", one.sandbox ? stateOf(one.sandbox) : "–",
      when(one.lastUsedAt), String(one.uses), mayOperate() ? h("button", { type: "button", class: "small", onclick: () => void this.#close(one) }, "Close") : "",
    ]);
    this.#place.replaceChildren(rows.length ? table(["Session", "User", "Kind", "Sandbox", "State", "Last used", "Uses", "Action"], rows, "Sessions") : nothing("No open sessions."));
  }

  /** @param {any} session */
  async #close(session) {
    if (!(await confirmAction(`Close the session ${session.key}?`, [h("p", {}, "Its user gets a new one with the next request.")], "Close session", true))) return;
    try {
      await api.json("DELETE", `/api/sessions/${encodeURIComponent(session.id)}`);
      toast(`Closed ${session.key}`);
      this.restart();
    } catch (error) {
      this.#place.prepend(renderProblem(error));
    }
  }
}

customElements.define("sessions-page", SessionsPage);
