// The state of one sandbox in the browser: kept current by stream or poll, changed by user actions.
// The pane and the React hook both render it.

import { getFeed } from "./stream.js";
import { pathOf, SandkeeperError } from "./client.js";
import { describe, INITIAL, isWaking, offer, pollAfterMs, reduce } from "./preview-model.js";
import { WORDS } from "./words.js";

/** @import {Client} from "./client.js" */
/** @import {Message, Model, ModelEvent, Problem, Status, View} from "./shapes.js" */

const TOUCH_MS = 20000; // At most one activity report in this time, however busy the pointer is.
const LOG_MS = 4000;

export class SandboxStore {
  /** @type {Set<() => void>} */ #listeners = new Set();
  /** @type {ReturnType<typeof setTimeout>|undefined} */ #timer;
  /** @type {(() => void)|null} */ #leave = null;
  #touchedAt = 0;
  #loggedAt = 0;
  #visibilityListener = () => this.#onVisibilityChange();

  /** @param {Client} client @param {string} project @param {{stream?: "project"|"fleet"|"off"}} [options] */
  constructor(client, project, { stream = "project" } = {}) {
    this.client = client;
    this.project = project;
    this.stream = stream;
    /** @type {Model} */
    this.model = INITIAL;
  }

  /** @param {() => void} listener Called after every change of the model. */
  subscribe(listener) {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  start() {
    if (this.#leave) return;
    const feed = this.stream === "off" ? null : getFeed(this.client, this.feedPath());
    const leave = feed?.subscribe({
      message: (message) => this.#onMessage(message),
      live: (live) => this.#setLive(live),
    });
    this.#leave = leave ?? (() => undefined);
    document.addEventListener("visibilitychange", this.#visibilityListener);
    this.#ignoreErrors(() => this.reportPageView());
    if (!document.hidden) void this.refresh();
  }

  stop() {
    this.#leave?.();
    this.#leave = null;
    document.removeEventListener("visibilitychange", this.#visibilityListener);
    clearTimeout(this.#timer);
  }

  /** @param {ModelEvent} event */
  dispatch(event) {
    const next = reduce(this.model, event);
    const changed = next !== this.model;
    this.model = next;
    if (changed) for (const listener of [...this.#listeners]) listener();
    if (this.#leave) this.#schedule();
  }

  /** Read the status again; never wakes the sandbox. */
  async refresh() {
    try {
      this.dispatch({ type: "status", status: await this.fetchStatus() });
    } catch (error) {
      this.dispatch({ type: "problem", problem: toProblem(error) });
    }
  }

  /** Check with the provider: the user's Refresh and Retry. */
  async verify() {
    const shown = this.model.status;
    try {
      const status = await this.fetchVerified();
      this.dispatch({ type: "status", status });
      if (shown && status.status !== shown.status) this.reportMismatch(shown, status, "a refresh by the user");
    } catch (error) {
      if (error instanceof SandkeeperError && error.status !== 401) await this.refresh();
      else this.dispatch({ type: "problem", problem: toProblem(error) });
    }
  }

  /** Request a wake; does nothing while one is in progress. */
  async wake() {
    if (isWaking(this.model)) return;
    const shown = this.model.status;
    this.dispatch({ type: "wake-requested", at: Date.now() });
    try {
      let answer;
      do answer = await this.requestWake();
      while (answer?.status === "running" && isWaking(this.model));
      // It was already running, so the page showed a wrong state.
      if (answer?.method === "nothing" && shown && shown.status !== "RUNNING") this.reportMismatch(shown, null, "a wake that was not needed");
    } catch (error) {
      // A lost connection says nothing about the wake; the next status does.
      if (error instanceof SandkeeperError) return this.dispatch({ type: "failed", failure: toProblem(error) });
    }
    return this.refresh();
  }

  /** Stop waiting for an overdue wake and request another. */
  async wakeAgain() {
    this.dispatch({ type: "failed", failure: { code: "overdue", message: "" } });
    await this.wake();
  }

  /** Report activity on the user's request, which resets the idle timer. */
  keepAwake() {
    this.#touchedAt = Date.now();
    return this.#ignoreErrors(async () => {
      await this.client.activity(this.project, { source: "keep-awake" });
      if (!this.model.live) setTimeout(() => void this.refresh(), 1500);
    });
  }

  /** Report user activity, at most once per TOUCH_MS. @param {string} source */
  touch(source) {
    if (this.model.status?.status !== "RUNNING" || Date.now() - this.#touchedAt < TOUCH_MS) return;
    this.#touchedAt = Date.now();
    void this.#ignoreErrors(() => this.client.activity(this.project, { source }));
  }

  /** @param {Status} shown @param {Status|null} actual @param {string} evidence */
  reportMismatch(shown, actual, evidence) {
    const report = { shown: shown.status, evidence, ...(actual ? { actual: actual.status } : {}) };
    void this.#ignoreErrors(() => this.client.reportMismatch(this.project, report));
  }

  describe() {
    return describe(this.model, location.origin);
  }

  /** Return the buttons for an overdue wake. @returns {View["offers"]} */
  lateOffers() {
    return [offer("retry")];
  }

  feedPath() {
    return this.stream === "fleet" ? "/api/fleet/events" : pathOf(this.project, "events");
  }

  fetchStatus() {
    return this.client.status(this.project);
  }

  fetchVerified() {
    return this.client.verify(this.project);
  }

  /** @returns {Promise<any>} */
  requestWake() {
    return this.client.wake(this.project);
  }

  async reportPageView() {
    await this.client.activity(this.project, { kind: "passive", source: "pane", pageView: true });
  }

  async fetchLog() {
    return (await this.client.log(this.project)).lines;
  }

  /** @param {Message} message */
  #onMessage(message) {
    const status = /** @type {Status} */ (message.data);
    if (!status || typeof status.version !== "number" || typeof status.label !== "string") return;
    if (status.project === undefined || status.project === this.project) this.dispatch({ type: "status", status });
  }

  /** @param {boolean} live */
  #setLive(live) {
    const before = this.model.live;
    this.dispatch({ type: "live", live });
    // Read once what was missed while the stream was down. A sandbox's own stream starts with its
    // status; the fleet's does not.
    if (before !== live && (!live || this.stream === "fleet") && !document.hidden) void this.refresh();
  }

  #onVisibilityChange() {
    if (document.hidden) clearTimeout(this.#timer);
    else void this.refresh();
  }

  #schedule() {
    clearTimeout(this.#timer);
    if (document.hidden) return;
    const { model } = this;
    const unready = model.status?.status === "RUNNING" && !model.status.ready && model.status.port !== null && !isWaking(model);
    if (unready && Date.now() - this.#loggedAt >= LOG_MS) {
      this.#loggedAt = Date.now();
      void this.#ignoreErrors(async () => this.dispatch({ type: "log", lines: await this.fetchLog() }));
    }
    const polling = model.live && !model.problem ? null : pollAfterMs(model);
    const after = Math.min(polling ?? Infinity, unready ? LOG_MS : Infinity);
    if (after === Infinity) return;
    this.#timer = setTimeout(() => (polling === null ? this.#schedule() : void this.refresh()), after);
  }

  /** Run a background request whose failure the user need not see. @param {() => Promise<unknown>} act */
  async #ignoreErrors(act) {
    try {
      await act();
    } catch {
      // The next status read shows whether the server is reachable.
    }
  }
}

/** @param {unknown} error @returns {Problem} */
export function toProblem(error) {
  if (error instanceof SandkeeperError) return { code: error.code, message: error.message, hint: error.hint };
  return { code: "unreachable", message: WORDS.unreachable.caption };
}
