// <settings-page>: the parts of the keeper that can be switched off, and its background tasks.

import { h, renderSpan } from "../pane.js";
import { api } from "./api.js";
import { BaseElement, confirmAction, renderProblem, section, showDialog, state, table, toast, when } from "./base-element.js";

const REFRESH_MS = 15000;
/** @type {Record<string, string>} */
const MEANINGS = {
  enforcer: "puts idle ones to sleep", reconciler: "compares records with the provider's list", catch_up: "reads the provider's events besides the webhooks",
  webhooks: "accepts webhook deliveries", sse: "serves live streams", legacy_verify: "asks the provider before each status read",
};

export class SettingsPage extends BaseElement {
  #switches = h("div");
  #tasks = h("div");

  begin() {
    this.replaceChildren(h("div", { class: "heading" }, h("h1", {}, "Switches and tasks")), h("div", { class: "column" }, section("Switches", this.#switches), section("Background tasks", this.#tasks)));
    this.#show();
    this.every(REFRESH_MS, () => this.#show());
  }

  #show() {
    void this.load(this.#switches, () => api.json("GET", "/api/switches"), ({ switches }) => [table(["Switch", "What it does", "Now", "Action"], Object.entries(switches).map(([name, isOn]) => this.#renderSwitch(name, Boolean(isOn))), "Switches")]);
    void this.load(this.#tasks, () => api.json("GET", "/readyz"), ({ tasks = [] }) => [table(["Task", "Every", "Last success", "Took", "Runs", "Failures", "Action"], tasks.map((/** @type {any} */ task) => this.#renderTask(task)), "Background tasks")]);
  }

  /** @param {string} name @param {boolean} isOn */
  #renderSwitch(name, isOn) {
    const label = isOn ? "Switch off" : "Switch on";
    const turn = async () => {
      if (isOn && !(await confirmAction(`Switch off ${name}?`, [h("p", {}, "It applies to every replica within seconds.")], "Switch off", true))) return;
      await this.#attempt(`${name}: ${isOn ? "off" : "on"}`, () => api.json("PATCH", "/api/switches", { [name]: !isOn }));
    };
    return [name, MEANINGS[name] ?? "", state(isOn ? "green" : "gray", isOn ? "On" : "Off"), h("button", { type: "button", class: "small", "aria-label": `${label}: ${name}`, onclick: () => void turn() }, label)];
  }

  /** @param {any} task */
  #renderTask(task) {
    const run = () => this.#attempt(`${task.name} ran`, () => api.json("POST", `/api/tasks/${encodeURIComponent(task.name)}/run`, {}));
    const failed = task.lastError ? h("span", { title: task.lastError }, state("red", String(task.failures))) : String(task.failures);
    return [task.name, renderSpan(task.periodS * 1000), when(task.lastSuccessAt), task.lastDurationS === null ? "–" : `${task.lastDurationS.toFixed(2)} s`, String(task.runs), failed, h("button", { type: "button", class: "small", "aria-label": `Run ${task.name}`, onclick: () => void run() }, "Run now")];
  }

  /** @param {string} done @param {() => Promise<unknown>} act */
  async #attempt(done, act) {
    try {
      await act();
      toast(done);
    } catch (error) {
      showDialog("It failed", [renderProblem(error)]);
    }
    this.#show();
  }
}

customElements.define("settings-page", SettingsPage);
