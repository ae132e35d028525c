// <fleet-drift>: differences between our records and the provider, and instances without a record.

import { h } from "../pane.js";
import { api } from "./api.js";
import { amount, BaseElement, detailPath, link, mayOperate, renderProblem, showDialog, table, when } from "./base-element.js";

/** @import {Change, Leak} from "./api.js" */

export class FleetDrift extends BaseElement {
  begin() {
    const leaks = h("div");
    const drift = h("div");
    const show = () => {
      void this.load(leaks, () => api.leaks(), ({ items }) => renderLeaks(items));
      void this.load(drift, () => api.changes(new URLSearchParams({ type: "sandbox.state_changed,sandbox.mismatch_reported", limit: "200" })), ({ items }) => renderDrift(items.filter(isDrift)));
    };
    const reconcile = async () => {
      try {
        const report = await api.reconcile();
        const { corrections = [], complete } = report;
        const rows = corrections.map((/** @type {any} */ one) => [one.kind.replaceAll("_", " "), one.sandboxId ?? one.instanceId, one.ours, one.theirs]);
        const found = rows.length ? table(["What", "Which", "Ours", "Provider"], rows, "Corrections") : h("p", {}, "No differences found.");
        showDialog("Reconciled", [found, complete ? "" : h("p", {}, "The provider's list was incomplete, so no sandbox was marked as gone.")]);
        show();
      } catch (error) {
        showDialog("The reconciliation failed", [renderProblem(error)]);
      }
    };
    this.replaceChildren(
      h("div", { class: "heading" }, h("h1", {}, "Drift and leaks"), mayOperate() ? h("button", { type: "button", onclick: () => void reconcile() }, "Reconcile now") : null),
      h("div", { class: "column" },
        h("section", { class: "card" }, h("h2", {}, "Leaks"), h("p", { class: "quiet" }, "Instances at the provider that no record refers to. A second instance of a recorded sandbox is a leak: it is paused after two sightings and removed a day later, up to an hourly limit. An unowned instance is paused and never removed: adopt it, or kill it at the provider."), leaks),
        h("section", { class: "card" }, h("h2", {}, "Drift"), h("p", { class: "quiet" }, "Records that differed from the provider, what detected it, and how they were corrected."), drift)));
    show();
    this.every(30000, show);
  }
}

/** Changes detected by a read, not reported by an event: the record had drifted. */
const DETECTED_BY_READ = new Set(["get", "list"]);

/** @param {Change} change */
function isDrift(change) {
  return change.type === "sandbox.mismatch_reported" || DETECTED_BY_READ.has(change.cause);
}

/** @type {Record<string, string>} */
const WHOSE = { leak: "leak", unowned: "unowned", foreign: "not ours" };

/** @param {Leak[]} items */
function renderLeaks(items) {
  if (!items.length) return [h("p", {}, "No leaks found.")];
  const rows = items.map((leak) => [h("code", {}, leak.instanceId), WHOSE[leak.kind] + (leak.owner ? `, for ${leak.owner}` : ""), [leak.provider, leak.region].filter(Boolean).join(" · "), when(leak.firstSeenAt), when(leak.lastSeenAt), String(leak.sightings), leak.reason, leak.removedAt ? h("span", {}, "removed ", when(leak.removedAt), ` by ${leak.removedBy ?? "an older version"}`) : leak.pausedAt ? h("span", {}, "paused ", when(leak.pausedAt)) : "not paused by us"]);
  const open = items.filter((leak) => !leak.removedAt);
  return [h("p", {}, amount(open.filter((leak) => leak.kind === "leak").length, "leak"), " of ours left, ", amount(open.filter((leak) => leak.kind === "unowned").length, "unowned instance"), " to decide about."), table(["Instance", "Whose", "Provider", "First seen", "Last seen", "Seen", "Why", "Now"], rows, "Leaks")];
}

/** @param {Change[]} items */
function renderDrift(items) {
  if (!items.length) return [h("p", {}, "No difference is among the last 200 changes.")];
  const rows = items.map((one) => [when(one.at), link(detailPath(one.project), one.project), (one.fromState ?? String(one.detail?.shown ?? "–")).toLowerCase(), (one.toState ?? String(one.detail?.found ?? "–")).toLowerCase(), one.reason, [one.cause, one.actor].filter(Boolean).join(", ")]);
  return [table(["When", "Sandbox", "Ours", "Provider", "Why", "Found by"], rows, "Drift")];
}

customElements.define("fleet-drift", FleetDrift);
