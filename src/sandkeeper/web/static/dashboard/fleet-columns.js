// The columns of the fleet: the user chooses which, and the address holds the choice.

import { h } from "../pane.js";
import { detailPath, lasting, link, previewLink, stateOf, until, when } from "./base-element.js";

/** @import {Status} from "../shapes.js" */

/** @type {{id: string, title: string, sort?: string, shown?: boolean, cell: (status: Status) => Node|string}[]} */
export const COLUMNS = [
  { id: "project", title: "Sandbox", sort: "owner", shown: true, cell: ({ project = "" }) => link(detailPath(project), project) },
  { id: "state", title: "State", sort: "state", shown: true, cell: stateOf },
  { id: "now", title: "Now", shown: true, cell: ({ summary, reason }) => h("span", { class: "why", title: reason ?? "" }, summary.sentence) },
  { id: "sleeps", title: "Sleeps in", sort: "check", shown: true, cell: ({ sleepsAt }) => until(sleepsAt) },
  { id: "active", title: "Last active", sort: "active", shown: true, cell: (one) => when(one.lastActiveClass && one.lastActiveAt) },
  { id: "uptime", title: "Uptime", cell: (one) => (one.status === "RUNNING" && one.stateSince ? lasting(one.stateSince) : "–") },
  { id: "created", title: "Created", sort: "created", cell: (one) => when(/** @type {any} */ (one).createdAt) },
  { id: "template", title: "Template", cell: (one) => /** @type {any} */ (one).template ?? "–" },
  { id: "tenant", title: "Tenant", cell: (one) => /** @type {any} */ (one).tenant ?? "–" },
  { id: "region", title: "Region", cell: (one) => [/** @type {any} */ (one).provider, /** @type {any} */ (one).region].filter(Boolean).join(" · ") || "–" },
  { id: "reason", title: "Reason", cell: ({ reason }) => h("span", { class: "why", title: reason ?? "" }, reason ?? "–") },
  { id: "preview", title: "Preview", cell: ({ sandboxUrl }) => previewLink(sandboxUrl) },
];

const DEFAULT = COLUMNS.filter((column) => column.shown).map(({ id }) => id);

/** Return the chosen columns. @param {URLSearchParams} query */
export function chosenColumns(query) {
  const wanted = query.get("columns")?.split(".") ?? DEFAULT;
  return COLUMNS.filter(({ id }) => id === "project" || wanted.includes(id));
}

/** Return the choice for the address; null is the usual one. @param {string[]} ids */
export function renderChoice(ids) {
  const wanted = COLUMNS.filter(({ id }) => ids.includes(id)).map(({ id }) => id);
  return wanted.join() === DEFAULT.join() ? null : wanted.join(".");
}
