// <timeline-tab>: what happened to the sandbox, and how its last wake went.

import { h } from "../pane.js";
import { api } from "./api.js";
import { amount, askSoon, nothing, orNull, renderProblem, section, table, when } from "./base-element.js";
import { ChangeList } from "./changes.js";
import { SandboxTab } from "./sandbox-tab.js";
import { FLEET_WORDS } from "./words.js";

/** @import {Status} from "../shapes.js" */
/** @import {Change} from "./api.js" */

const SHOWN_MAX = 200;

export class TimelineTab extends SandboxTab {
  #list = new ChangeList({ most: SHOWN_MAX });
  #older = h("button", { type: "button", hidden: true, onclick: () => void this.#more() }, "Older");
  #problem = h("div");
  #wake = h("div");

  begin() {
    this.replaceChildren(h("div", { class: "columns" },
      h("div", { class: "column" }, section("Timeline", this.#list.element, this.#problem, this.#older)),
      h("div", { class: "column" }, section("Last wake", this.#wake))));
    void this.#more();
    void this.#readWake();
  }

  /** @param {Change[]} changes */
  changesArrived(changes) {
    if (this.#list.prepend(changes)) this.#older.hidden = false;
  }

  /** @param {Status} before */
  statusChanged(before) {
    if (before.status !== this.status.status || Boolean(before.waking) !== Boolean(this.status.waking)) askSoon(`wake ${this.project}`, () => this.isConnected && this.#readWake());
  }

  #readWake() {
    return this.load(this.#wake, () => orNull(api.receipt(this.project)), renderReceipt);
  }

  async #more() {
    try {
      const { oldest } = this.#list;
      const page = await api.history(this.project, oldest === null ? null : String(oldest));
      this.#list.append(page.items);
      this.#older.hidden = !page.nextCursor;
      this.#problem.replaceChildren();
    } catch (error) {
      this.#problem.replaceChildren(renderProblem(error, () => void this.#more()));
    }
  }
}

/** @param {any} wake */
function renderReceipt(wake) {
  if (!wake || (wake.method === "nothing" && wake.status === "succeeded")) return [nothing(FLEET_WORDS.notWoken)];
  const receipt = wake.receipt;
  const kept = receipt ? ["memory", "disk"].filter((part) => receipt.kept[part]).join(" and ") : "";
  const summary = [
    wake.status, wake.method && wake.method !== "nothing" && `by ${wake.method}`, kept && `${kept} kept`, receipt?.restored && `${amount(receipt.restored, "file")} restored`,
    receipt?.appKept && "app kept running", receipt?.filesNote, receipt?.lostCount && `${amount(receipt.lostCount, "file")} lost: ${receipt.lost.join(", ")}`, receipt?.reason, wake.error?.message,
  ].filter(Boolean).join(" · ");
  const rows = wake.steps.map((/** @type {any} */ step) => [step.name.replaceAll("_", " "), step.outcome, step.tookMs === null ? "–" : `${(step.tookMs / 1000).toFixed(2)} s`, step.detail]);
  return [h("p", {}, when(wake.startedAt), ` ${summary}`), rows.length ? table(["Step", "Outcome", "Took", "Note"], rows, "Steps of the last wake") : ""];
}

customElements.define("timeline-tab", TimelineTab);
