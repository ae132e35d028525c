// Jobs: builds with their own sandbox, paused until their preview is opened.
// Use `keeper.project("job:…")` for everything else of a job's sandbox, such as its files.

import { encodeName, sleep, type Connection } from "./connection.js";
import { invalidRequest, WakeTimedOutError } from "./errors.js";
import type { CreateJob, Job, JobSnapshot, Rebuild, ResumedJob, UpdateJob } from "./types.js";

// The longest time in seconds that one request waits for the keeper, well below the response timeout.
const WAIT_MAX_S = 60;
// The interval between polls of a rebuild in progress.
const POLL_INTERVAL_MS = 500;
const IN_PROGRESS = new Set(["confirmed", "charged"]);

export class Jobs {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /** Create a job with its own sandbox; return an existing job unchanged. Without an id it gets a new one. */
  create(options: CreateJob = {}): Promise<Job> {
    return this.#connection.request("POST", "/api/jobs", { body: options, idempotent: true });
  }

  /** Return the job with the state of its sandbox. */
  show(jobId: string): Promise<Job> {
    return this.#connection.request("GET", pathOf(jobId));
  }

  /** Yield all jobs, newest first. */
  async *list(): AsyncGenerator<Job, void, undefined> {
    let cursor: string | null = null;
    do {
      const page: { jobs: Job[]; next_cursor: string | null } = await this.#connection.request("GET", "/api/dashboard", { query: { cursor } });
      yield* page.jobs;
      cursor = page.next_cursor;
    } while (cursor !== null);
  }

  /** Update the job's stage, version or failure. */
  change(jobId: string, change: UpdateJob): Promise<Job> {
    return this.#connection.request("PATCH", pathOf(jobId), { body: change });
  }

  /** Mark the build as done: capture its files and pause its sandbox. */
  markReady(jobId: string, change: UpdateJob = {}): Promise<Job> {
    return this.#connection.request("POST", `${pathOf(jobId)}/ready`, { body: change });
  }

  /** Capture the files and pause the sandbox; do nothing if it is paused. */
  snapshot(jobId: string): Promise<JobSnapshot> {
    return this.#connection.request("POST", `${pathOf(jobId)}/snapshot`);
  }

  /** Resume the paused preview and return its URL. A lost sandbox is not recreated: only a rebuild helps then. */
  resume(jobId: string): Promise<ResumedJob> {
    return this.#connection.request("POST", `${pathOf(jobId)}/resume`, { query: { wait: WAIT_MAX_S }, retryErrors: false });
  }

  /** Return the cost of a rebuild, and the `confirmation` that `rebuild` needs. */
  askRebuild(jobId: string): Promise<Rebuild> {
    return this.#connection.request("POST", `${pathOf(jobId)}/rebuild`, { body: {} });
  }

  /**
   * Rebuild the job from its kept files, which uses the confirmed credit.
   *
   * A confirmation is good for one rebuild, however often it is sent, so an interrupted caller can send it again.
   */
  async rebuild(jobId: string, confirmation: string, options: { withinMs?: number } = {}): Promise<Rebuild> {
    if (!confirmation) throw invalidRequest("A rebuild needs the confirmation from `askRebuild`.");
    const { withinMs = 300_000 } = options;
    const deadline = Date.now() + withinMs;
    for (;;) {
      const wait = Math.min(Math.max(0, deadline - Date.now()) / 1000, WAIT_MAX_S);
      const rebuilt = await this.#connection.request<Rebuild>("POST", `${pathOf(jobId)}/rebuild`, { body: { confirmation }, query: { wait } });
      if (!IN_PROGRESS.has(rebuilt.rebuild_status ?? "")) return rebuilt;
      if (Date.now() >= deadline) throw new WakeTimedOutError(`The rebuild is still in progress after ${withinMs} ms.`);
      await sleep(POLL_INTERVAL_MS);
    }
  }
}

function pathOf(jobId: string): string {
  return `/api/jobs/${encodeName(jobId, "job")}`;
}
