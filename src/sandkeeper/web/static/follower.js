// Follows one sandbox: keeps the model true by stream or poll, and carries a person's wishes out.
// The pane and the React hook are two faces of it.

import { feedOf } from "./stream.js";
import { pathOf, ProblemError } from "./client.js";
import { BEGINNING, describe, isWaking, offer, pollAfterMs, reduce, STATES } from "./machine.js";

/** @import {Client} from "./client.js" */
/** @import {Fault, Happening, Message, Model, Status, View} from "./shapes.js" */

const TOUCH_MS = 20000; // A busy pointer tells once in a while that somebody works here.
const LOG_MS = 4000;

export class Follower {
  /** @type {Set<() => void>} */ #listeners = new Set();
  /** @type {ReturnType<typeof setTimeout>|undefined} */ #timer;
  /** @type {(() => void)|null} */ #leave = null;
  #touchedAt = 0;
  #loggedAt = 0;
  #seen = () => this.#turn();

  /** @param {Client} client @param {string} project @param {{stream?: "project"|"fleet"|"off"}} [options] */
  constructor(client, project, { stream = "project" } = {}) {
    this.client = client;
    this.project = project;
    this.stream = stream;
    /** @type {Model} */
    this.model = BEGINNING;
  }

  /** @param {() => void} listener Called after every change of the model. */
  subscribe(listener) {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  start() {
    if (this.#leave) return;
    const feed = this.stream === "off" ? null : feedOf(this.client, this.feedPath());
    const leave = feed?.subscribe({
      message: (message) => this.#hear(message),
      live: (live) => this.#setLive(live),
    });
    this.#leave = leave ?? (() => undefined);
    document.addEventListener("visibilitychange", this.#seen);
    this.#quietly(() => this.viewed());
    if (!document.hidden) void this.refresh();
  }

  stop() {
    this.#leave?.();
    this.#leave = null;
    document.removeEventListener("visibilitychange", this.#seen);
    clearTimeout(this.#timer);
  }

  /** @param {Happening} happening */
  take(happening) {
    const next = reduce(this.model, happening);
    const changed = next !== this.model;
    this.model = next;
    if (changed) for (const listener of [...this.#listeners]) listener();
    if (this.#leave) this.#schedule();
  }

  /** Reads the status once more; never wakes anything. */
  async refresh() {
    try {
      this.take({ type: "status", status: await this.read() });
    } catch (error) {
      this.take({ type: "fault", fault: faultOf(error) });
    }
  }

  /** Asks the provider itself: the user's Refresh and Retry. */
  async verify() {
    const shown = this.model.status;
    try {
      const status = await this.prove();
      this.take({ type: "status", status });
      if (shown && status.status !== shown.status) this.reportMismatch(shown, status, "a refresh by the user");
    } catch (error) {
      if (error instanceof ProblemError && error.status !== 401) await this.refresh();
      else this.take({ type: "fault", fault: faultOf(error) });
    }
  }

  /** Asks for a wake; asking again while one is under way does nothing. */
  async wake() {
    if (isWaking(this.model)) return;
    const shown = this.model.status;
    this.take({ type: "asked", at: Date.now() });
    try {
      let answer;
      do answer = await this.askToWake();
      while (answer?.status === "running" && isWaking(this.model));
      // It ran before it was asked for: what the person saw was wrong.
      if (answer?.rung === "nothing" && shown && shown.status !== "RUNNING") this.reportMismatch(shown, null, "a wake that was not needed");
    } catch (error) {
      // A cut line says nothing about the wake: the status will.
      if (error instanceof ProblemError) return this.take({ type: "failed", failure: faultOf(error) });
    }
    return this.refresh();
  }

  /** Gives up waiting for a wake that takes too long, and asks again. */
  async wakeAgain() {
    this.take({ type: "failed", failure: { code: "overdue", message: "" } });
    await this.wake();
  }

  /** Keeps the sandbox awake: a person says that they still need it. */
  keepAwake() {
    this.#touchedAt = Date.now();
    return this.#quietly(async () => {
      await this.client.activity(this.project, { source: "keep-awake" });
      if (!this.model.live) setTimeout(() => void this.refresh(), 1500);
    });
  }

  /** Tells that a person does something here; cheap to call often. @param {string} source */
  touch(source) {
    if (this.model.status?.status !== "RUNNING" || Date.now() - this.#touchedAt < TOUCH_MS) return;
    this.#touchedAt = Date.now();
    void this.#quietly(() => this.client.activity(this.project, { source }));
  }

  /** @param {Status} shown @param {Status|null} actual @param {string} evidence */
  reportMismatch(shown, actual, evidence) {
    const report = { shown: shown.status, evidence, ...(actual ? { actual: actual.status } : {}) };
    void this.#quietly(() => this.client.mismatch(this.project, report));
  }

  describe() {
    return describe(this.model, location.origin);
  }

  /** The way out of a wake that takes too long. @returns {View["offers"]} */
  lateOffers() {
    return [offer("retry")];
  }

  feedPath() {
    return this.stream === "fleet" ? "/api/fleet/events" : pathOf(this.project, "events");
  }

  read() {
    return this.client.status(this.project);
  }

  prove() {
    return this.client.verify(this.project);
  }

  /** @returns {Promise<any>} */
  askToWake() {
    return this.client.wake(this.project);
  }

  async viewed() {
    await this.client.activity(this.project, { kind: "passive", source: "pane", pageView: true });
  }

  readLog() {
    return this.client.log(this.project);
  }

  /** @param {Message} message */
  #hear(message) {
    const status = /** @type {Status} */ (message.data);
    if (!status || typeof status.version !== "number" || typeof status.label !== "string") return;
    if (status.project === undefined || status.project === this.project) this.take({ type: "status", status });
  }

  /** @param {boolean} live */
  #setLive(live) {
    const before = this.model.live;
    this.take({ type: "live", live });
    // What happened while nobody listened is asked for once. A sandbox's own stream opens with its
    // status; the fleet's does not.
    if (before !== live && (!live || this.stream === "fleet") && !document.hidden) void this.refresh();
  }

  #turn() {
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
      void this.#quietly(async () => this.take({ type: "log", lines: await this.readLog() }));
    }
    const polling = model.live && !model.fault ? null : pollAfterMs(model);
    const after = Math.min(polling ?? Infinity, unready ? LOG_MS : Infinity);
    if (after === Infinity) return;
    this.#timer = setTimeout(() => (polling === null ? this.#schedule() : void this.refresh()), after);
  }

  /** Does what nobody waits for: its failure is no news to the person. @param {() => Promise<unknown>} act */
  async #quietly(act) {
    try {
      await act();
    } catch {
      // The next status read tells whether the server is there.
    }
  }
}

/** @param {unknown} error @returns {Fault} */
export function faultOf(error) {
  if (error instanceof ProblemError) return { code: error.code, message: error.message, hint: error.hint };
  return { code: "unreachable", message: STATES.UNKNOWN.caption };
}
