// A job's preview: the same model and store over the job's routes, plus a rebuild with confirmation.

import { describe, h, isEnded, isWaking, offer, SandkeeperError, SandboxStore, toProblem } from "./pane.js";
import { JOB_WORDS } from "./job-words.js";

/** @import {Client} from "./client.js" */
/** @import {Model, View} from "./shapes.js" */

/**
 * @typedef {object} Job
 * @property {string} job_id
 * @property {string} status
 * @property {string} [stage_label]
 * @property {boolean} sandbox_paused
 * @property {string|null} [sandbox_state]
 * @property {string|null} [pause_note]
 * @property {string|null} [preview_url]
 * @property {string|null} [sandbox_expires_at]
 * @property {string|null} [build_version]
 * @property {string|null} [debug_id]
 * @property {string|null} [error_message]
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

export class JobStore extends SandboxStore {
  /** @param {Client} client @param {string} id @param {{stream?: "project"|"fleet"|"off"}} [options] */
  constructor(client, id, options) {
    super(client, `job:${id}`, options);
    this.id = id;
    this.jobs = new JobClient(client);
  }

  describe() {
    return describeJob(this.model, location.origin);
  }

  /** @returns {View["offers"]} */
  lateOffers() {
    return [offer("retry"), offer("rebuild", JOB_WORDS.rebuild)];
  }

  /** Resume the preview; resolves when it is ready. */
  async requestWake() {
    try {
      return await this.jobs.resume(this.id);
    } catch (error) {
      throw error instanceof SandkeeperError ? withErrorType(error) : error;
    }
  }

  /**
   * Rebuild after the user has confirmed the cost.
   * @param {ShadowRoot|HTMLElement} root Where the dialog is added.
   */
  async rebuild(root) {
    try {
      if (!(await rebuildJob(this.jobs, this.id, root, () => this.dispatch({ type: "wake-requested", at: Date.now() })))) return;
      await this.refresh();
    } catch (error) {
      this.dispatch({ type: "failed", failure: toProblem(error) });
    }
  }
}

/**
 * Get the cost, ask the user to confirm it, and rebuild. Return whether the rebuild was started.
 * @param {JobClient} jobs
 * @param {string} id
 * @param {ShadowRoot|HTMLElement} root
 * @param {() => void} [onStart]
 */
export async function rebuildJob(jobs, id, root, onStart = () => undefined) {
  const first = await jobs.rebuild(id);
  if (!(await confirm(root, first?.message || JOB_WORDS.confirmRebuild))) return false;
  onStart();
  await jobs.rebuild(id, first?.confirmation ?? "");
  return true;
}

/**
 * Return the sandbox's view with a job's texts: Resume when paused, Rebuild when ended.
 * @param {Model} model
 * @param {string} pageOrigin
 * @returns {View}
 */
export function describeJob(model, pageOrigin) {
  const view = describe(model, pageOrigin);
  if (!model.status) return view;
  if (isWaking(model)) return { ...view, label: JOB_WORDS.resuming, caption: "" };
  const rebuild = [offer("rebuild", JOB_WORDS.rebuild)];
  if (model.status.providerDownSince || model.failure?.code === "provider_down") {
    const caption = model.status.providerDownSince ? view.caption : JOB_WORDS.providerDown;
    return { ...view, badge: "yellow", caption, offers: [offer("retry")], frameUrl: null };
  }
  if (model.failure) {
    const caption = model.failure.code === "sandbox_expired" ? captionOfEnd(view.state) : JOB_WORDS.unreachable;
    return { ...view, badge: "red", label: JOB_WORDS.failedTitle, caption, offers: rebuild };
  }
  if (view.state === "PAUSED") {
    return { ...view, label: JOB_WORDS.pausedTitle, caption: "", offers: [offer("wake", JOB_WORDS.resume)] };
  }
  return isEnded(view.state) ? { ...view, caption: captionOfEnd(view.state), offers: rebuild } : view;
}

/** @param {string|null|undefined} state The state of a sandbox that has ended. */
export function captionOfEnd(state) {
  return state === "KILLED" ? JOB_WORDS.killed : JOB_WORDS.expired;
}

/** @param {SandkeeperError} error */
function withErrorType(error) {
  const body = /** @type {any} */ (error.body);
  const kind = body.error_type ?? body.detail?.error_type;
  if (kind) error.code = ["provider_unavailable", "provider_rate_limited"].includes(body.cause) ? "provider_down" : kind;
  return error;
}

const DIALOG_STYLE = new CSSStyleSheet();
DIALOG_STYLE.replaceSync(`
dialog { padding: 20px; border: 1px solid var(--sk-line); border-radius: var(--sk-radius); color: inherit; background: var(--sk-bg); }
dialog form { display: grid; gap: 16px; }
`);

/** @param {ShadowRoot|HTMLElement} root @param {string} question @returns {Promise<boolean>} */
export function confirm(root, question) {
  if (root instanceof ShadowRoot && !root.adoptedStyleSheets.includes(DIALOG_STYLE)) root.adoptedStyleSheets.push(DIALOG_STYLE);
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
