// <fleet-drift>: where our records and the provider's truth came apart, and what nobody owns.

import { h } from "../pane.js";
import { api } from "./api.js";
import { amount, detailPath, link, mayOperate, Part, renderFault, table, tell, when } from "./part.js";

/** @import {Change, Leak} from "./api.js" */

export class FleetDrift extends Part {
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
        const found = rows.length ? table(["What", "Which", "Ours", "The provider's"], rows, "Corrections") : h("p", {}, "Nothing differed.");
        tell("Reconciled", [found, complete ? "" : h("p", {}, "The provider's list was not complete, so nothing was counted as gone.")]);
        show();
      } catch (error) {
        tell("The reconciliation did not work", [renderFault(error)]);
      }
    };
    this.replaceChildren(
      h("div", { class: "heading" }, h("h1", {}, "Drift and leaks"), mayOperate() ? h("button", { type: "button", onclick: () => void reconcile() }, "Reconcile now") : null),
      h("div", { class: "column" },
        h("section", { class: "card" }, h("h2", {}, "Leaks"), h("p", { class: "quiet" }, "Instances at the provider that are no record's present one. A second one beside a recorded one is a leak: seen twice, it is removed, under an hourly cap. One that is unowned is never removed: if it is not wanted, end it at the provider."), leaks),
        h("section", { class: "card" }, h("h2", {}, "Drift"), h("p", { class: "quiet" }, "Records that were found to be wrong, by whom, and how they were repaired."), drift)));
    show();
    this.every(30000, show);
  }
}

/** What a look or a list found out, nobody had told us: there record and truth had come apart. */
const FOUND_OUT = new Set(["get", "list"]);

/** @param {Change} change */
function isDrift(change) {
  return change.type === "sandbox.mismatch_reported" || FOUND_OUT.has(change.cause);
}

/** @type {Record<string, string>} */
const WHOSE = { leak: "leak", unowned: "unowned", foreign: "not ours" };

/** @param {Leak[]} items */
function renderLeaks(items) {
  if (!items.length) return [h("p", {}, "No leak is known.")];
  const rows = items.map((leak) => [h("code", {}, leak.instanceId), WHOSE[leak.kind] + (leak.owner ? `, for ${leak.owner}` : ""), [leak.provider, leak.region].filter(Boolean).join(" · "), when(leak.firstSeenAt), when(leak.lastSeenAt), String(leak.sightings), leak.reason, leak.removedAt ? h("span", {}, "removed ", when(leak.removedAt), ` by ${leak.removedBy ?? "an older version"}`) : `costs money since ${new Date(leak.firstSeenAt).toLocaleString()}`]);
  const open = items.filter((leak) => !leak.removedAt);
  return [h("p", {}, amount(open.filter((leak) => leak.kind === "leak").length, "leak"), " of ours still running, ", amount(open.filter((leak) => leak.kind === "unowned").length, "unowned instance"), " to decide about."), table(["Instance", "Whose", "Provider", "First seen", "Last seen", "Seen", "Why", "Now"], rows, "Leaks")];
}

/** @param {Change[]} items */
function renderDrift(items) {
  if (!items.length) return [h("p", {}, "Ours and the provider's states agree.")];
  const rows = items.map((one) => [when(one.at), link(detailPath(one.project), one.project), (one.fromState ?? String(one.detail?.shown ?? "–")).toLowerCase(), (one.toState ?? String(one.detail?.found ?? "–")).toLowerCase(), one.reason, [one.cause, one.actor].filter(Boolean).join(", ")]);
  return [table(["When", "Sandbox", "Ours", "The provider's", "Why", "Found by"], rows, "Drift")];
}

customElements.define("fleet-drift", FleetDrift);
