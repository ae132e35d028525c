// <job-list>: the jobs as cards, or one job with its preview. A paused job is still ready: its card
// offers the preview and does not mention sandboxes.

import { Client, h, isEnded, SandkeeperError } from "../pane.js";
import { captionOfEnd, JobClient, rebuildJob } from "../job.js";
import { JOB_WORDS } from "../job-words.js";
import { api } from "./api.js";
import { BaseElement, link, previewLink, renderProblem, state, until } from "./base-element.js";
import { FLEET_WORDS } from "./words.js";

/** @import {Job} from "../job.js" */

const REFRESH_MS = 15000;
/** @type {Record<string, string>} */
const BADGES = { ready: "green", failed: "red" };
const jobs = new JobClient(/** @type {Client} */ (api));

export class JobList extends BaseElement {
  /** @type {Map<string, {drawn: string, card: HTMLElement}>} */ #cards = new Map();
  #place = h("div", { class: "jobs" });

  begin() {
    const id = this.getAttribute("name");
    if (id) return this.#one(id);
    this.replaceChildren(h("div", { class: "heading" }, h("h1", {}, "Jobs")), this.#place);
    void this.#refresh();
    this.every(REFRESH_MS, () => void this.#refresh());
    return undefined;
  }

  /** @param {string} id */
  #one(id) {
    const facts = h("div");
    this.replaceChildren(h("div", { class: "heading" }, h("h1", {}, id)), facts, h("sandbox-preview", { job: id, stream: "fleet" }));
    void this.load(facts, () => jobs.get(id), (job) => [state(BADGES[job.status.toLowerCase()] ?? "blue", labelOf(job)), " ", h("span", { class: "quiet" }, [job.build_version, job.debug_id].filter(Boolean).join(" · "))]);
  }

  async #refresh() {
    try {
      const { jobs: found } = await jobs.list();
      if (!found.length) return void this.#place.replaceChildren(h("p", { class: "quiet" }, "No jobs yet. ", h("code", {}, "POST /api/jobs"), " creates one."));
      const names = new Set(found.map((job) => job.job_id));
      for (const name of [...this.#cards.keys()]) if (!names.has(name)) this.#cards.delete(name);
      for (const job of found) this.#put(job);
      const cards = found.map((job) => this.#cards.get(job.job_id)?.card);
      if (cards.some((card, i) => this.#place.children[i] !== card)) this.#place.replaceChildren(...cards);
    } catch (error) {
      this.#place.replaceChildren(renderProblem(error, () => void this.#refresh()));
    }
    return undefined;
  }

  /** Redraw only a changed card. @param {Job} job */
  #put(job) {
    const drawn = JSON.stringify(job);
    const known = this.#cards.get(job.job_id);
    if (known?.drawn === drawn) return;
    const card = new JobCard(job, () => void this.#refresh()).element;
    known?.card.replaceWith(card);
    this.#cards.set(job.job_id, { drawn, card });
  }
}

/** One job. */
class JobCard {
  /** @param {Job} job @param {() => void} changed */
  constructor(job, changed) {
    this.job = job;
    this.changed = changed;
    this.body = h("div", { class: "body" });
    this.element = h("article", { class: "card job", "data-job": job.job_id, "aria-label": job.job_id },
      h("h2", {}, link(`/jobs/${encodeURIComponent(job.job_id)}`, job.job_id)),
      state(BADGES[job.status.toLowerCase()] ?? "blue", labelOf(job)), this.body);
    this.#drawState();
  }

  #drawState() {
    const { job } = this;
    const ready = job.status.toLowerCase() === "ready";
    if (ready && job.sandbox_paused) return this.#showText(JOB_WORDS.pausedTitle, this.#button(JOB_WORDS.resume, () => this.#resume()));
    if (ready && isEnded(job.sandbox_state ?? "KILLED")) return this.#showText(captionOfEnd(job.sandbox_state), this.#rebuildButton());
    if (ready) return this.body.replaceChildren(previewLink(job.preview_url), job.sandbox_expires_at ? h("span", { class: "quiet" }, " expires in ", until(job.sandbox_expires_at)) : "", job.pause_note ? h("p", { class: "quiet" }, `${FLEET_WORDS.notPaused}: ${job.pause_note}`) : "");
    return this.#showText(job.error_message ?? job.stage_label ?? "");
  }

  async #resume() {
    this.#showText(JOB_WORDS.resuming);
    this.element.setAttribute("aria-busy", "true");
    try {
      const { preview_url: url } = await jobs.resume(this.job.job_id);
      this.body.replaceChildren(previewLink(url));
      this.changed();
    } catch (error) {
      const body = error instanceof SandkeeperError ? /** @type {any} */ (error.body) : {};
      const kind = body.error_type ?? body.detail?.error_type ?? /** @type {any} */ (error).code;
      const isDown = kind !== "sandbox_expired" && ["provider_unavailable", "provider_rate_limited"].includes(body.cause);
      const text = isDown ? JOB_WORDS.providerDown : kind === "sandbox_expired" ? JOB_WORDS.expired : JOB_WORDS.unreachable;
      const message = h("div", { role: "alert" }, h("b", {}, JOB_WORDS.failedTitle), h("p", {}, text));
      // A rebuild costs a credit and cannot help while the provider is away.
      this.body.replaceChildren(message, isDown ? this.#button(JOB_WORDS.resume, () => this.#resume()) : this.#rebuildButton());
    }
    this.element.removeAttribute("aria-busy");
  }

  #rebuildButton() {
    return this.#button(JOB_WORDS.rebuild, async () => {
      try {
        if (await rebuildJob(jobs, this.job.job_id, document.body, () => this.#showText(JOB_WORDS.resuming))) this.changed();
      } catch (error) {
        this.body.replaceChildren(renderProblem(error), this.#rebuildButton());
      }
    });
  }

  /** @param {string} label @param {() => Promise<void>} act */
  #button(label, act) {
    return h("button", { type: "button", class: "primary", onclick: () => void act() }, label);
  }

  /** @param {string} text @param {...Node} more */
  #showText(text, ...more) {
    this.body.replaceChildren(h("p", {}, text), ...more);
  }
}

/** @param {Job} job */
function labelOf(job) {
  const name = job.status.toLowerCase();
  return name === "ready" || name === "failed" ? name[0]?.toUpperCase() + name.slice(1) : (job.stage_label ?? job.status);
}

customElements.define("job-list", JobList);
