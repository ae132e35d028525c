// A job's preview: the same machine, fed from the job's routes, with a rebuild that asks first.

import { describe, faultOf, Follower, h, isWaking, offer, ProblemError, STATES } from "./pane.js";

/** @import {Client} from "./client.js" */
/** @import {Model, Status, View} from "./shapes.js" */

/** The words of a job's preview: its owner sees a preview, not a sandbox. Equal to the server's. */
export const JOB_WORDS = {
  asleep: "Your preview is sleeping.",
  resume: "Resume preview",
  resuming: "Resuming preview...",
  failed: "Resume failed",
  expired: "The sandbox has expired and can't be recovered.",
  unreachable: "The sandbox couldn't be reached. It may be corrupted.",
  rebuild: "Rebuild",
  confirm: "This will use 1 build credit. Continue?",
};

/**
 * @typedef {object} Job
 * @property {string} job_id
 * @property {string} status
 * @property {string} [stage_label]
 * @property {boolean} sandbox_paused
 * @property {string|null} [preview_url]
 * @property {string|null} [sandbox_expires_at]
 * @property {string|null} [build_version]
 * @property {string|null} [debug_id]
 * @property {string|null} [error_message]
 * @property {number} [version]
 * @property {string} [sandbox_state]
 * @property {boolean} [ready]
 */

/** The routes of jobs. */
export class JobClient {
  /** @param {Client} client */
  constructor(client) {
    this.client = client;
  }

  /** @param {string} id @returns {Promise<Job>} */
  get(id) {
    return this.client.json("GET", jobPath(id));
  }

  /** @param {string} id @returns {Promise<{preview_url: string, sandbox_id: string}>} */
  resume(id) {
    return this.client.json("POST", jobPath(id, "/resume"), {});
  }

  /** @param {string} id @param {string} [confirmation] */
  rebuild(id, confirmation) {
    return this.client.json("POST", jobPath(id, "/rebuild"), confirmation ? { confirmation } : {});
  }

  /** @returns {Promise<{jobs: Job[]}>} */
  async list() {
    const answer = await this.client.json("GET", "/api/dashboard");
    return { jobs: answer.jobs ?? answer.items ?? [] };
  }
}

/** @param {string} id @param {string} [rest] */
function jobPath(id, rest = "") {
  return `/api/jobs/${encodeURIComponent(id)}${rest}`;
}

export class JobFollower extends Follower {
  #version = 0;

  /** @param {Client} client @param {string} id */
  constructor(client, id) {
    super(client, id, { stream: "off" });
    this.jobs = new JobClient(client);
  }

  describe() {
    return describeJob(this.model, location.origin);
  }

  /** @returns {View["offers"]} */
  lateOffers() {
    return [offer("retry"), offer("rebuild", JOB_WORDS.rebuild)];
  }

  /** @returns {Promise<Status>} */
  async read() {
    return this.#statusOf(await this.jobs.get(this.project));
  }

  prove() {
    return this.read();
  }

  /** Resuming answers when the preview is there, or says why it is not. */
  async askToWake() {
    try {
      await this.jobs.resume(this.project);
    } catch (error) {
      throw error instanceof ProblemError ? withErrorType(error) : error;
    }
    return this.read();
  }

  async viewed() {
    // A job's card is looked at through the job's own routes, which count by themselves.
  }

  /** @returns {Promise<string[]>} */
  async readLog() {
    return [];
  }

  /**
   * Rebuilds after the person has agreed to the cost.
   * @param {ShadowRoot|HTMLElement} root Where the question is asked.
   */
  async rebuild(root) {
    try {
      const first = await this.jobs.rebuild(this.project);
      if (!(await confirm(root, JOB_WORDS.confirm))) return;
      this.take({ type: "asked", at: Date.now() });
      await this.jobs.rebuild(this.project, first?.confirmation ?? first?.confirmation_token ?? "");
      await this.refresh();
    } catch (error) {
      this.take({ type: "failed", failure: faultOf(error) });
    }
  }

  /** @param {Job} job @returns {Status} */
  #statusOf(job) {
    const status = stateOf(job);
    const row = STATES[status];
    return {
      status,
      version: job.version ?? ++this.#version,
      sandboxUrl: job.preview_url ?? null,
      ready: job.ready ?? Boolean(job.preview_url),
      label: status === "STARTING" ? (job.stage_label ?? row.label) : row.label,
      caption: job.error_message ?? row.caption,
      badge: row.badge,
      actions: row.actions,
      pollAfterMs: row.pollAfterMs,
      asOf: null,
      expiresAt: job.sandbox_expires_at ?? null,
    };
  }
}

/**
 * A job's view is the sandbox's in other words: paused offers Resume, whatever has ended Rebuild.
 * @param {Model} model
 * @param {string} pageOrigin
 * @returns {View}
 */
export function describeJob(model, pageOrigin) {
  const view = describe(model, pageOrigin);
  if (!model.status) return view;
  if (isWaking(model)) return { ...view, label: JOB_WORDS.resuming, caption: "" };
  const rebuild = [offer("rebuild", JOB_WORDS.rebuild)];
  if (model.failure) {
    const caption = model.failure.code === "sandbox_expired" ? JOB_WORDS.expired : JOB_WORDS.unreachable;
    return { ...view, badge: "red", label: JOB_WORDS.failed, caption, offers: rebuild };
  }
  if (view.state === "PAUSED") {
    return { ...view, label: JOB_WORDS.asleep, caption: "", offers: [offer("wake", JOB_WORDS.resume)] };
  }
  const ended = view.state === "KILLED" || view.state === "EXPIRED" || view.state === "TERMINATED";
  return ended ? { ...view, caption: JOB_WORDS.expired, offers: rebuild } : view;
}

/** @param {Job} job @returns {import("./shapes.js").State} */
export function stateOf(job) {
  const told = /** @type {import("./shapes.js").State|undefined} */ (job.sandbox_state?.toUpperCase());
  if (told && told in STATES) return told;
  if (job.sandbox_paused) return "PAUSED";
  if (job.status.toLowerCase() !== "ready") return "STARTING";
  const ended = job.sandbox_expires_at && Date.parse(job.sandbox_expires_at) < Date.now();
  return ended || !job.preview_url ? "EXPIRED" : "RUNNING";
}

/** @param {ProblemError} error */
function withErrorType(error) {
  const body = /** @type {any} */ (error.body);
  const kind = body.error_type ?? body.detail?.error_type;
  if (kind) error.code = kind;
  return error;
}

/** @param {ShadowRoot|HTMLElement} root @param {string} question @returns {Promise<boolean>} */
export function confirm(root, question) {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog",
      { "aria-label": question, onclose: () => (dialog.remove(), resolve(dialog.returnValue === "yes")) },
      h("form", { method: "dialog" }, h("p", {}, question), h("div", { class: "row" },
        h("button", { class: "second", value: "no" }, "Cancel"),
        h("button", { class: "primary", value: "yes", autofocus: true }, "Continue"))),
    );
    root.append(dialog);
    dialog.showModal();
  });
}
