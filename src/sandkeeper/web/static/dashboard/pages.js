// The table of pages. A page is one module that defines one element; it is loaded when it is opened.
// To add one: a line here, and its path in `web/pages.py`. A path that ends with "/" takes the rest
// of the address as the element's `name`. An element that has `restore()` stays when only the query
// of its address changes, and reads it again; any other is created again by each navigation.

/**
 * @typedef {{path: string, title: string, tag: string, load: () => Promise<unknown>, group?: "Fleet"|"Operate"|"Admin", onlyOperators?: boolean}} Page
 * Pages with a group are in the navigation, in this order.
 */

/** @type {Page[]} */
export const PAGES = [
  { path: "/", title: "Sandboxes", tag: "fleet-table", load: () => import("./fleet-table.js"), group: "Fleet" },
  { path: "/sandboxes/", title: "Sandbox", tag: "sandbox-detail", load: () => import("./sandbox-detail.js") },
  { path: "/sessions", title: "Sessions", tag: "sessions-page", load: () => import("./sessions-page.js"), group: "Fleet" },
  { path: "/pools", title: "Pools", tag: "pools-page", load: () => import("./pools-page.js"), group: "Fleet" },
  { path: "/jobs", title: "Jobs", tag: "job-list", load: () => import("./job-list.js"), group: "Fleet" },
  { path: "/jobs/", title: "Job", tag: "job-list", load: () => import("./job-list.js") },
  { path: "/charts", title: "Charts", tag: "fleet-charts", load: () => import("./fleet-charts.js"), group: "Operate" },
  { path: "/costs", title: "Costs", tag: "costs-page", load: () => import("./costs-page.js"), group: "Operate" },
  { path: "/audit", title: "Audit", tag: "audit-log", load: () => import("./audit-log.js"), group: "Operate" },
  { path: "/previews/enter", title: "Preview", tag: "preview-enter", load: () => import("./preview-enter.js") },
  { path: "/health", title: "Health", tag: "health-page", load: () => import("./health-page.js"), group: "Operate" },
  { path: "/webhooks", title: "Webhooks", tag: "webhook-inbox", load: () => import("./webhook-inbox.js"), group: "Operate" },
  { path: "/drift", title: "Drift and leaks", tag: "fleet-drift", load: () => import("./fleet-drift.js"), group: "Operate" },
  { path: "/keys", title: "Keys and tokens", tag: "keys-page", load: () => import("./keys-page.js"), group: "Admin", onlyOperators: true },
  { path: "/settings", title: "Switches and tasks", tag: "settings-page", load: () => import("./settings-page.js"), group: "Admin", onlyOperators: true },
];

/** Return the page at an address, and the name in it. @param {string} path @returns {{page: Page, name: string|null}|null} */
export function findPage(path) {
  for (const page of PAGES) {
    if (page.path === path) return { page, name: null };
    if (page.path !== "/" && page.path.endsWith("/") && path.startsWith(page.path) && path.length > page.path.length) {
      return { page, name: decodeURIComponent(path.slice(page.path.length)) };
    }
  }
  return null;
}
