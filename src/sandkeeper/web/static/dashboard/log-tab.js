// <log-tab>: the app's output: follow it, search in it, save it.

import { h } from "../pane.js";
import { api } from "./api.js";
import { nothing, renderProblem } from "./base-element.js";
import { SandboxTab } from "./sandbox-tab.js";

const FOLLOW_MS = 2000;
const LINES = 1000;
const NEAR_END_PX = 40;

export class LogTab extends SandboxTab {
  #text = h("pre", { class: "log", tabindex: 0, "aria-label": "Log" });
  #note = h("div");
  #count = h("span", { class: "quiet", role: "status" });
  #search = h("input", { type: "search", placeholder: "filter lines", "aria-label": "Filter lines", oninput: () => this.#draw() });
  #follow = h("input", { type: "checkbox", checked: true });
  /** @type {string[]} */ #lines = [];
  #drawn = "";
  #busy = false;

  begin() {
    const save = h("button", { type: "button", onclick: () => this.#save() }, "Download");
    this.replaceChildren(h("section", { class: "card" },
      h("div", { class: "filters" }, this.#search, h("label", { class: "check" }, this.#follow, " Follow"), save, this.#count),
      this.#note, this.#text));
    void this.#read();
    this.every(FOLLOW_MS, () => this.#follow.checked && void this.#read());
  }

  async #read() {
    if (this.#busy) return;
    this.#busy = true;
    try {
      const { lines, note } = await api.wholeLog(this.project, LINES);
      // What was read stays readable when the sandbox is no longer.
      if (lines.length) this.#lines = lines;
      this.#note.replaceChildren(lines.length || !note ? "" : nothing(note));
      this.#draw();
    } catch (error) {
      this.#note.replaceChildren(renderProblem(error, () => void this.#read()));
    }
    this.#busy = false;
  }

  #draw() {
    const wanted = this.#search.value.toLowerCase();
    const found = wanted ? this.#lines.filter((line) => line.toLowerCase().includes(wanted)) : this.#lines;
    const text = found.join("\n");
    this.#text.hidden = !this.#lines.length;
    this.#count.textContent = wanted ? `${found.length} of ${this.#lines.length} lines` : `${this.#lines.length} lines`;
    if (text === this.#drawn) return;
    const box = this.#text;
    const isAtEnd = !this.#drawn || box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END_PX;
    this.#drawn = text;
    box.textContent = text;
    if (isAtEnd) box.scrollTop = box.scrollHeight;
  }

  #save() {
    const href = URL.createObjectURL(new Blob([`${this.#lines.join("\n")}\n`], { type: "text/plain" }));
    h("a", { href, download: `${this.project}.log` }).click();
    URL.revokeObjectURL(href);
  }
}

customElements.define("log-tab", LogTab);
