// What an operator can do with a sandbox. Which of it makes sense now is in the status' summary.

import { h } from "../pane.js";
import { api } from "./api.js";
import { confirmAction, renderProblem, showDialog, toast } from "./base-element.js";
import { exact } from "./clock.js";
import { FLEET_WORDS } from "./words.js";

/** @import {Status} from "../shapes.js" */

export const LABELS = FLEET_WORDS.operations;

/** @type {Record<string, (project: string) => Promise<any>>} */
const ACTS = {
  wake: (project) => api.wake(project),
  restart: (project) => api.wake(project),
  pause: (project) => api.act(project, "pause"),
  extend: (project) => api.act(project, "extend", { byMs: 3600000 }),
  verify: (project) => api.verify(project),
  kill: (project) => api.kill(project),
};

/**
 * Render a button for each operation; the first one stands out, and one that destroys is red.
 * @param {() => Status} find Returns the status at the moment of the press.
 * @param {string[]} operations
 */
export function operationButtons(find, operations) {
  return operations.map((operation, i) => {
    const kind = operation === "kill" ? "danger" : i ? null : "primary";
    const button = h("button", { type: "button", class: kind, "data-operation": operation, onclick: () => void press() }, LABELS[operation] ?? operation);
    const press = async () => {
      button.disabled = true;
      await perform(find(), operation);
      button.disabled = false;
    };
    return button;
  });
}

/** Perform an operation and say what came of it. @param {Status} status @param {string} operation */
export async function perform(status, operation) {
  const project = status.project ?? "";
  const label = LABELS[operation] ?? operation;
  if (operation === "kill" && !(await confirmKill(project))) return;
  try {
    toast(`${project}: ${word(operation, label, await ACTS[operation]?.(project), status)}`);
  } catch (error) {
    showDialog(`${label} failed`, [renderProblem(error)]);
  }
}

/** @param {string} project */
function confirmKill(project) {
  const details = [h("p", {}, "The sandbox is killed at the provider. Its record and kept files stay, and a wake creates a new sandbox.")];
  return confirmAction(`Kill ${project}?`, details, "Kill", true);
}

/** @param {string} operation @param {string} label @param {any} answer @param {Status} before */
function word(operation, label, answer, before) {
  if (answer?.steps) return `${label} ${answer.status === "succeeded" ? `succeeded in ${(answer.elapsedMs / 1000).toFixed(1)} s` : answer.status}.`;
  if (operation === "extend") return `${label} done, until ${exact(answer.expiresAt)}.`;
  const { word: now, sentence } = answer.summary;
  const news = operation === "verify" ? (before.status === answer.status ? ", no change" : ", corrected") : " done";
  return `${label}${news}: ${now}. ${sentence}`;
}
