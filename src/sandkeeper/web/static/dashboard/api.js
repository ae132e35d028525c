// The dashboard's client: the pane's client plus the routes of the fleet.

import { Client, pathOf } from "../pane.js";

/** @import {Status} from "../shapes.js" */

/**
 * @typedef {{items: Status[], nextCursor: string|null}} SandboxPage
 * @typedef {{seq: number, at: string, type: string, project: string, version?: number, fromState: string|null, toState: string|null, cause: string, reason: string, actor: string, detail: Record<string, unknown>}} Change
 * @typedef {{name: string, sentence: string, unit: string, value: number|null, limit: number, ok: boolean, lastOkAt: string|null}} Threshold
 * @typedef {{name: string, title: string, state: "ok"|"bad"|"off", finding: string, meaning: string, action: string, since: string|null}} HealthPart
 * @typedef {{total: number, states: Record<string, number>, stale: number, overdue: number, health: {ok: boolean, parts: HealthPart[], items: Threshold[]}, asOf: string}} Summary
 * @typedef {{name: string, title: string, sentence: string, unit: string, series: {name: string, points: [string, number][]}[]}} Trend
 * @typedef {{deliveryId: string|null, eventId: string|null, type: string|null, instanceId: string|null, receivedAt: string, outcome: string, lagMs: number|null, detail: string|null}} Delivery
 * @typedef {{instanceId: string, provider: string, region: string|null, kind: string, owner: string|null, firstSeenAt: string, lastSeenAt: string, sightings: number, reason: string, pausedAt: string|null, removedAt: string|null, removedBy: string|null}} Leak
 * @typedef {{project: string, ok: boolean, status: string|null, code: string|null, detail: string|null}} BulkItem
 * @typedef {{action: string, dryRun: boolean, count: number, matched?: number, items: BulkItem[], nextCursor?: string|null}} BulkResult
 */

export class Api extends Client {
  /** The server's wording of each state, by name; empty before `loadStates`. @type {Record<string, {badge: string}>} */
  states = {};

  /** The word for each state that those who run sandboxes read. @type {Record<string, string>} */
  words = {};

  async loadStates() {
    ({ states: this.states, words: this.words } = await this.json("GET", "/api/presentation"));
  }

  /** @returns {Promise<{role: "operator"|"editor"|"viewer"|"client", name: string}>} */
  me() {
    return this.json("GET", "/api/me");
  }

  /** @param {{key: string}|{code: string}} credential */
  login(credential) {
    return this.json("POST", "/api/login", credential);
  }

  /** @returns {Promise<{provider: {name: string, path: string}|null}>} */
  signIn() {
    return this.json("GET", "/api/login");
  }

  /** Return the URL that opens a preview in this browser. @param {string} url @returns {Promise<{url: string}>} */
  enterPreview(url) {
    return this.json("POST", "/api/preview-visits", { url });
  }

  logout() {
    return this.json("POST", "/api/logout");
  }

  /** @param {URLSearchParams} query @returns {Promise<SandboxPage>} */
  list(query) {
    return this.json("GET", `/api/sandboxes?${query}`);
  }

  /** @returns {Promise<Summary>} */
  summary() {
    return this.json("GET", "/api/fleet/summary");
  }

  /** @param {number} hours @returns {Promise<{since: string, stepS: number, charts: Trend[]}>} */
  trends(hours) {
    return this.json("GET", `/api/fleet/trends?hours=${hours}`);
  }

  /** @param {URLSearchParams} query @returns {Promise<any>} */
  costs(query) {
    return this.json("GET", `/api/costs?${query}`);
  }

  /** @param {URLSearchParams} query @returns {Promise<any>} */
  simulate(query) {
    return this.json("GET", `/api/costs/simulation?${query}`);
  }

  /** @param {string} action @param {{projects: string[]}|{filter: Record<string, string|boolean>}} targets @param {boolean} dryRun @param {string|null} cursor @returns {Promise<BulkResult>} */
  bulk(action, targets, dryRun, cursor) {
    return this.json("POST", "/api/fleet/bulk", { action, ...targets, dryRun, ...(cursor ? { cursor } : {}) });
  }

  /** @param {string|null} cursor @returns {Promise<{items: Delivery[], nextCursor: string|null}>} */
  deliveries(cursor) {
    return this.json("GET", `/api/fleet/deliveries${cursor ? `?cursor=${encodeURIComponent(cursor)}` : ""}`);
  }

  /** @returns {Promise<{items: Leak[]}>} */
  leaks() {
    return this.json("GET", "/api/fleet/leaks");
  }

  /** @param {URLSearchParams} query @returns {Promise<{items: Change[], nextCursor: string|null}>} */
  changes(query) {
    return this.json("GET", `/api/fleet/history?${query}`);
  }

  /** @returns {Promise<any>} */
  reconcile() {
    return this.json("POST", "/api/fleet/reconcile", {});
  }

  /** Create a project's sandbox if it has none. @param {string} project @param {unknown} body @returns {Promise<Status>} */
  create(project, body) {
    return this.json("PUT", pathOf(project, ""), body);
  }

  /** @param {string} project @returns {Promise<any>} */
  explain(project) {
    return this.json("GET", pathOf(project, "explain"));
  }

  /** @param {string} project @param {string|null} cursor @returns {Promise<{items: Change[], nextCursor: string|null}>} */
  history(project, cursor) {
    return this.json("GET", pathOf(project, `history?limit=50${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`));
  }

  /** @param {string} project @param {number} lines @returns {Promise<{lines: string[], note: string}>} */
  wholeLog(project, lines) {
    return this.json("GET", pathOf(project, `log?lines=${lines}`));
  }

  /** @param {string} project @returns {Promise<any>} */
  files(project) {
    return this.json("GET", pathOf(project, "files"));
  }

  /** @param {string} project @returns {Promise<any>} */
  receipt(project) {
    return this.json("GET", pathOf(project, "wake"));
  }

  /** Return the sessions that use a sandbox, among the first 500. @param {string} project @returns {Promise<any[]>} */
  async sessions(project) {
    const { items } = await this.json("GET", "/api/sessions?limit=500");
    return items.filter((/** @type {any} */ one) => one.sandbox?.project === project);
  }

  /** Start a desktop session's live view and wait until it is ready. @param {string} session @returns {Promise<{running: boolean, url: string}>} */
  startStream(session) {
    return this.json("POST", `/api/sessions/${encodeURIComponent(session)}/stream`, {});
  }

  /** @param {string} session */
  stopStream(session) {
    return this.json("DELETE", `/api/sessions/${encodeURIComponent(session)}/stream`);
  }

  /** @param {string} project */
  kill(project) {
    return this.json("DELETE", pathOf(project, ""));
  }
}

// The same as the pane's, so that both read one stream.
const HOME = /(.+)\/static\/\w{12}\//.exec(import.meta.url)?.[1];

/** The dashboard's client; it authenticates with the login cookie. */
export const api = new Api({ base: HOME });
