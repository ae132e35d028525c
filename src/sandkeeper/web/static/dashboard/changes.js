// What happened, as lines: the steps of one wake are one line that opens.

import { h } from "../pane.js";
import { api } from "./api.js";
import { detailPath, link, when } from "./base-element.js";

/** @import {Change} from "./api.js" */

/** @type {Record<string, string>} */
const CAUSES = { reply: "answer to a call", look: "check", get: "check", list: "list call", files: "file capture" };

/** A list of changes that keeps the newest ones only, so that a busy fleet does not fill the page. */
export class ChangeList {
  element = h("ol", { class: "timeline" });
  /** @type {Change[]} The newest first. */ #changes = [];
  #most;
  #added = 0;
  #named;

  /** @param {{most: number, named?: boolean}} options `named` shows whose change it is. */
  constructor({ most, named = false }) {
    this.#most = most;
    this.#named = named;
  }

  /** The number of the oldest one that is shown: the cursor of what is older. */
  get oldest() {
    return this.#changes.at(-1)?.seq ?? null;
  }

  clear() {
    this.#changes = [];
    this.#added = 0;
    this.#draw();
  }

  /** @param {Change[]} changes Older than all others, the newest first. */
  append(changes) {
    this.#added += changes.length;
    this.#changes.push(...changes);
    this.#draw();
  }

  /** @param {Change[]} changes Newer than all others, the newest last. @returns {boolean} Whether old ones had to leave. */
  prepend(changes) {
    const newest = this.#changes[0]?.seq ?? 0;
    this.#changes.unshift(...changes.filter(({ seq }) => seq > newest).reverse());
    // What the user asked for stays, so that reading on is not cut short by what comes in.
    const most = Math.max(this.#most, this.#added);
    const isTooLong = this.#changes.length > most;
    if (isTooLong) this.#changes.length = most;
    this.#draw();
    return isTooLong;
  }

  #draw() {
    const open = new Set([...this.element.querySelectorAll("details[open]")].map((one) => /** @type {HTMLElement} */ (one).dataset.wake));
    this.element.replaceChildren(...groupWakes(this.#changes).map((group) => {
      const line = group.length > 1 ? renderWake(group, this.#named) : renderChange(/** @type {Change} */ (group[0]), this.#named);
      const details = line.querySelector("details");
      if (details) details.open = open.has(details.dataset.wake);
      return line;
    }));
  }
}

/** @param {Change[]} changes */
function groupWakes(changes) {
  /** @type {Change[][]} */
  const groups = [];
  /** @type {Map<unknown, Change[]>} */
  const wakes = new Map();
  for (const change of changes) {
    const known = change.detail.wakeId ? wakes.get(change.detail.wakeId) : undefined;
    if (known) {
      known.push(change);
      continue;
    }
    const group = [change];
    groups.push(group);
    if (change.detail.wakeId) wakes.set(change.detail.wakeId, group);
  }
  return groups;
}

/** @param {Change[]} steps The newest first. @param {boolean} named */
function renderWake(steps, named) {
  const last = /** @type {Change} */ (steps[0]);
  const { wakeId, status, elapsedMs } = /** @type {any} */ (last.detail);
  const took = `${(Number(elapsedMs) / 1000).toFixed(1)} s`;
  const names = [...new Set([...steps].reverse().map((one) => String(one.detail.step).replaceAll("_", " ")))];
  return h("li", {}, when(last.at), named ? link(detailPath(last.project), last.project) : null,
    h("details", { "data-wake": wakeId },
      h("summary", {}, h("b", {}, `wake ${status}`), ` ${took}: ${names.join(" → ")}`, h("span", { class: "quiet" }, ` ${last.actor}`)),
      h("ol", {}, ...[...steps].reverse().map((one) => h("li", {}, `${String(one.detail.step).replaceAll("_", " ")} ${one.detail.status}, after ${(Number(one.detail.elapsedMs) / 1000).toFixed(2)} s`)))));
}

/** @param {Change} change @param {boolean} [named] */
export function renderChange(change, named = false) {
  const detail = /** @type {any} */ (change.detail ?? {});
  const { fromState, toState } = change;
  const moved = fromState && toState ? `${api.words[fromState] ?? fromState} → ${api.words[toState] ?? toState}` : change.type.replace(/^sandbox\./, "").replaceAll("_", " ");
  const lag = detail.lagS !== undefined && detail.lagS !== null ? ` (+${Number(detail.lagS).toFixed(1)} s)` : "";
  const by = [...new Set([CAUSES[change.cause] ?? change.cause, change.actor])].filter(Boolean).join(", ");
  return h("li", {}, when(change.at), named ? link(detailPath(change.project), change.project) : null,
    h("span", {}, h("b", {}, moved), change.reason ? ` ${change.reason}` : "", lag, h("span", { class: "quiet" }, ` ${by}`)));
}
