// One action on many sandboxes: count first, confirm, and say the result of each.

import { h, isEnded } from "../pane.js";
import { api } from "./api.js";
import { amount, confirmAction, renderProblem, showDialog } from "./base-element.js";
import { LABELS } from "./operations.js";

/** @import {BulkItem, BulkResult} from "./api.js" */

export const BULK = ["pause", "wake", "kill"];
const NAMED_MAX = 10;
const RESULTS_MAX = 200;
/** @type {Record<string, (state: string) => boolean>} */
const AFFECTS = { pause: (state) => state === "RUNNING", wake: (state) => state !== "RUNNING" && state !== "STARTING", kill: (state) => !isEnded(state) };

/**
 * @typedef {{projects: string[]}|{filter: Record<string, string|boolean>}} Targets
 * @param {string} action
 * @param {Targets} targets
 * @returns {Promise<boolean>} Whether it was carried out.
 */
export async function performBulk(action, targets) {
  const verb = LABELS[action] ?? action;
  try {
    const plan = await api.bulk(action, targets, true, null);
    if (!(await confirmPlan(action, verb, plan))) return false;
    const items = await carryOut(action, verb, targets, plan.matched ?? plan.count);
    const done = items.filter((item) => item.ok).length;
    showDialog(`${verb}: ${done} of ${items.length} done`, [renderResult(items)]);
    return true;
  } catch (error) {
    showDialog(`${verb} failed`, [renderProblem(error)]);
    return false;
  }
}

/** @param {string} action @param {string} verb @param {BulkResult} plan */
async function confirmPlan(action, verb, plan) {
  const affected = plan.items.filter((item) => item.ok && AFFECTS[action]?.(item.status ?? ""));
  const matched = plan.matched ?? plan.count;
  if (matched > plan.items.length) {
    return confirmAction(`${verb} all ${amount(matched, "sandbox")} that match?`, [h("p", {}, "Those that the action does not affect stay as they are.")], verb, action === "kill");
  }
  if (!affected.length) {
    showDialog(`Nothing to ${verb.toLowerCase()}`, [h("p", {}, `None of the ${plan.items.length} selected is affected.`)]);
    return false;
  }
  const names = affected.slice(0, NAMED_MAX).map((item) => item.project).join(", ");
  const others = plan.items.length - affected.length;
  const details = [
    h("p", {}, names, affected.length > NAMED_MAX ? ` and ${affected.length - NAMED_MAX} more` : ""),
    others ? h("p", {}, `${others} of ${plan.items.length} selected are not affected.`) : "",
  ];
  return confirmAction(`${verb} ${amount(affected.length, "sandbox")}?`, details, verb, action === "kill");
}

/** @param {string} action @param {string} verb @param {Targets} targets @param {number} matched */
async function carryOut(action, verb, targets, matched) {
  const bar = h("progress", { "aria-label": verb, max: matched, value: 0 });
  const dialog = h("dialog", { "aria-label": verb }, h("h2", {}, `${verb}…`), bar);
  document.body.append(dialog);
  dialog.showModal();
  try {
    /** @type {BulkItem[]} */
    const items = [];
    /** @type {string|null} */
    let cursor = null;
    do {
      const page = /** @type {BulkResult} */ (await api.bulk(action, targets, false, cursor));
      items.push(...page.items);
      bar.value = items.length;
      cursor = page.nextCursor ?? null;
    } while (cursor);
    return items;
  } finally {
    dialog.remove();
  }
}

/** Failures first. @param {BulkItem[]} items */
function renderResult(items) {
  const sorted = [...items].sort((one, other) => Number(one.ok) - Number(other.ok));
  const more = sorted.length - RESULTS_MAX;
  return h("ul", { class: "results" },
    ...sorted.slice(0, RESULTS_MAX).map((item) => h("li", { "data-badge": item.ok ? "green" : "red" }, h("span", { class: "dot" }), h("b", {}, item.project), ` ${item.ok ? (api.words[item.status ?? ""] ?? "done") : (item.detail ?? item.code ?? "failed")}`)),
    more > 0 ? h("li", {}, `and ${more} more`) : null);
}
