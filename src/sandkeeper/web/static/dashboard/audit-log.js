// <audit-log>: every change of every sandbox, newest first. The server searches; the address holds
// the search, so a link shows the same changes to another user.

import { h } from "../pane.js";
import { api } from "./api.js";
import { BaseElement, nothing, renderProblem } from "./base-element.js";
import { ChangeList } from "./changes.js";
import { isUtc } from "./clock.js";

const SHOWN_MAX = 200;
const TYPES = ["created", "state_changed", "ready", "extended", "operation_failed", "wake_progressed", "files_captured", "capture_failed", "mismatch_reported", "owner_changed", "policy_changed"];
const TYPING_MS = 300;

export class AuditLog extends BaseElement {
  #list = new ChangeList({ most: SHOWN_MAX, named: true });
  #older = h("button", { type: "button", hidden: true, onclick: () => void this.#more() }, "Older");
  #note = h("div");
  /** @type {any} */ #form;
  /** @type {string|null} */ #cursor = null;
  #asked = 0;

  begin() {
    const type = h("select", { name: "type", "aria-label": "Type" }, h("option", { value: "" }, "any type"), ...TYPES.map((name) => h("option", { value: `sandbox.${name}` }, name.replaceAll("_", " "))));
    /** @param {string} name @param {string} label */
    const time = (name, label) => h("label", { class: "field" }, label, h("input", { type: "datetime-local", name, step: 1 }));
    this.#form = h("form", { class: "filters", role: "search", onsubmit: (/** @type {Event} */ e) => (e.preventDefault(), this.#search()), onchange: () => this.#search() },
      h("input", { name: "text", type: "search", placeholder: "text", "aria-label": "Text" }),
      h("input", { name: "project", placeholder: "sandbox", "aria-label": "Sandbox", size: 16 }),
      h("input", { name: "actor", placeholder: "actor", "aria-label": "Actor", size: 12 }),
      type, time("since", isUtc() ? "from (UTC)" : "from"), time("until", isUtc() ? "to (UTC)" : "to"),
      h("button", { type: "button", class: "plain", onclick: () => (this.#form.reset(), this.#search()) }, "Clear"));
    let typing = 0;
    this.#form.addEventListener("input", () => (clearTimeout(typing), (typing = window.setTimeout(() => this.#search(), TYPING_MS))));
    this.replaceChildren(h("div", { class: "heading" }, h("h1", {}, "Audit")), this.#form, h("section", { class: "card audit" }, this.#note, this.#list.element, this.#older));
    this.followFleet(({ changes }) => {
      if (location.search || !changes.length || !this.#asked) return;
      if (this.#list.prepend(changes)) {
        this.#cursor = String(this.#list.oldest);
        this.#older.hidden = false;
      }
    });
    this.restore();
  }

  /** Show the search that the address describes. */
  restore() {
    const query = new URLSearchParams(location.search);
    for (const field of this.#form.elements) {
      if (!field.name) continue;
      const value = query.get(field.name) ?? "";
      field.value = field.type === "datetime-local" && value ? toField(value) : value;
    }
    void this.#begin();
  }

  #search() {
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(this.#form)) {
      const text = String(value).trim();
      if (text) query.set(name, ["since", "until"].includes(name) ? fromField(text) : text);
    }
    const address = query.size ? `/audit?${query}` : "/audit";
    if (address === location.pathname + location.search) return;
    history.replaceState(null, "", address);
    void this.#begin();
  }

  async #begin() {
    this.#cursor = null;
    const number = ++this.#asked;
    await this.#more(() => number === this.#asked && (this.#list.clear(), true));
  }

  /** @param {() => boolean} [isWanted] */
  async #more(isWanted = () => true) {
    try {
      const query = new URLSearchParams(location.search);
      query.set("limit", "100");
      if (this.#cursor) query.set("cursor", this.#cursor);
      const page = await api.changes(query);
      if (!isWanted()) return;
      this.#list.append(page.items);
      this.#cursor = page.nextCursor;
      this.#older.hidden = !page.nextCursor;
      const isEmpty = !this.#list.element.childElementCount;
      this.#note.replaceChildren(isEmpty ? nothing(page.nextCursor ? "Nothing in the newest part; look further with Older." : "Nothing found.") : "");
    } catch (error) {
      this.#note.replaceChildren(renderProblem(error, () => void this.#begin()));
    }
  }
}

/** @param {string} iso */
function toField(iso) {
  const at = new Date(iso);
  const shifted = isUtc() ? at : new Date(at.getTime() - at.getTimezoneOffset() * 60000);
  return shifted.toISOString().slice(0, 19);
}

/** @param {string} text */
function fromField(text) {
  return new Date(isUtc() ? `${text}Z` : text).toISOString();
}

customElements.define("audit-log", AuditLog);
