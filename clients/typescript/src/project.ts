// One project's sandbox: its state and the actions on it.

import { encodeName, sleep, type Connection } from "./connection.js";
import { SandkeeperError, WakeTimedOutError } from "./errors.js";
import { Files } from "./files.js";
import { Lease, type SandboxClass } from "./leases.js";
import { readEvents, type StreamOptions } from "./streams.js";
import type { Activity, AppLog, Change, CreateSandbox, Explanation, Fork, LeaseInfo, Page, SdkConnection, Status, StreamEvent, Wake, WarmResult } from "./types.js";

// The interval between polls of a wake in progress.
const POLL_INTERVAL_MS = 200;

export type LeasedSandbox = { lease: LeaseInfo; sandbox: Status; connection: SdkConnection };

/** The sandbox of one owner: a project's id, or `job:…` and `session:…`. Creating this object sends no request. */
export class Project {
  readonly #connection: Connection;
  readonly #path: string;
  readonly files: Files;

  constructor(connection: Connection, readonly address: string) {
    this.#connection = connection;
    this.#path = `/api/sandboxes/${encodeName(address, "project")}`;
    this.files = new Files(connection, this.#path);
  }

  /** Create the project's sandbox, or return the existing one. */
  create(options: CreateSandbox = {}): Promise<Status> {
    return this.#connection.request("PUT", this.#path, { body: options, idempotent: true });
  }

  /** Create a new project from a version of this one; by default from its present files. */
  fork(project: string, options: { version?: number } = {}): Promise<Fork> {
    return this.#connection.request("POST", `${this.#path}/fork`, { body: { project, ...options }, idempotent: true });
  }

  /** Return the status. Does not wake the sandbox or reset its idle timer. */
  status(): Promise<Status> {
    return this.#connection.request("GET", `${this.#path}/status`);
  }

  /**
   * Start the sandbox from any state, with its files and app. Callers join one wake.
   *
   * The result's receipt lists what was kept, restored and lost. `onProgress` is called at every step.
   * Throw the error of a failed wake, and WakeTimedOutError if it is still in progress after `withinMs`.
   */
  async wake(options: { withinMs?: number; onProgress?: (wake: Wake) => void; signal?: AbortSignal } = {}): Promise<Wake> {
    const { withinMs = 300_000, onProgress, signal } = options;
    const deadline = Date.now() + withinMs;
    const send = { signal, retryErrors: false, query: { wait: 0 } };
    let wake = await this.#connection.request<Wake>("POST", `${this.#path}/wake`, send);
    let shown = "";
    for (;;) {
      const now = `${wake.status} ${wake.attempt} ${wake.step}`;
      if (now !== shown) onProgress?.(wake);
      shown = now;
      if (wake.status === "succeeded") return wake;
      if (wake.status === "failed") {
        throw new SandkeeperError(0, { code: wake.error?.code ?? "wake_failed", detail: wake.error?.message ?? "The wake failed.", hint: "Check the app's log, then wake it again." });
      }
      if (Date.now() >= deadline) throw new WakeTimedOutError(`The wake is still in progress after ${withinMs} ms.`);
      await sleep(POLL_INTERVAL_MS, signal);
      wake = await this.#connection.request<Wake>("GET", `${this.#path}/wake`, { signal });
    }
  }

  /** Resume a paused sandbox before its user needs it, if the budget allows. A refusal is a result, not an error. */
  warm(): Promise<WarmResult> {
    return this.#connection.request("POST", `${this.#path}/warm`);
  }

  /** Return the last lines of the app's log; none if the sandbox is not running. */
  log(lines = 100): Promise<AppLog> {
    return this.#connection.request("GET", `${this.#path}/log`, { query: { lines } });
  }

  /** Pause the sandbox; do nothing if it is paused. */
  pause(): Promise<Status> {
    return this.#connection.request("POST", `${this.#path}/pause`);
  }

  /** Kill the sandbox. Its record and kept files stay. */
  kill(): Promise<Status> {
    return this.#connection.request("DELETE", this.#path, { idempotent: true });
  }

  /** Check the state with the provider and return the updated status. */
  verify(): Promise<Status> {
    return this.#connection.request("POST", `${this.#path}/verify`);
  }

  /** Set the time to live, counted from now. */
  extend(byMs = 3_600_000): Promise<Status> {
    return this.#connection.request("POST", `${this.#path}/extend`, { body: { byMs } });
  }

  /** Report activity: user intent, running work, or a passive view. */
  touch(kind: "intent" | "work" | "passive" = "intent", source = "api"): Promise<Activity> {
    return this.#connection.request("POST", `${this.#path}/activity`, { body: { kind, source } });
  }

  /** Explain why it is awake or paused, what happens next and when, and what prevents it. */
  explain(): Promise<Explanation> {
    return this.#connection.request("GET", `${this.#path}/explain`);
  }

  /** Lease the sandbox until `release`, or the end of an `await using`; wake it if needed. */
  async hold(options: { holder?: string; leaseMs?: number } = {}): Promise<Lease<LeasedSandbox>> {
    const { holder = "client", leaseMs } = options;
    const info = await this.#connection.request<LeasedSandbox>("POST", `${this.#path}/leases`, { body: { holder, leaseMs } });
    return new Lease(this.#connection, info, leaseMs);
  }

  /** Lease the sandbox while `work` runs, as an object of the given SDK class; wake it if needed. */
  async lease<S, R>(Sandbox: SandboxClass<S>, work: (sandbox: S) => Promise<R> | R, options: { holder?: string; leaseMs?: number } = {}): Promise<R> {
    const lease = await this.hold(options);
    try {
      return await work(lease.sandbox(Sandbox));
    } finally {
      await lease.release();
    }
  }

  /** Return the history, newest first. */
  async history(limit = 100): Promise<Change[]> {
    return (await this.#connection.request<Page<Change>>("GET", `${this.#path}/history`, { query: { limit } })).items;
  }

  /** Yield the current status, then every change and the resulting status, without end; resume when interrupted. */
  events(options: StreamOptions = {}): AsyncGenerator<StreamEvent, void, undefined> {
    return readEvents(this.#connection, `${this.#path}/events`, options);
  }
}
