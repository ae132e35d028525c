// <preview-tab>: the preview or a desktop's live view, why it is as it is, its facts and sessions.

import { h, renderSpan } from "../pane.js";
import { api } from "./api.js";
import { amount, askSoon, lasting, mayOperate, nothing, orNull, renderProblem, section, showDialog, stateOf, table, until, when } from "./base-element.js";
import { SandboxTab } from "./sandbox-tab.js";
import { FLEET_WORDS } from "./words.js";

/** @import {Status} from "../shapes.js" */

const REFRESH_MS = 30000;
const SLOW_MS = 500;

export class PreviewTab extends SandboxTab {
  #why = h("div");
  #facts = h("div");
  #sessions = h("div");
  #live = h("div", { hidden: true });
  #preview = h("div");

  begin() {
    this.#preview.append(h("sandbox-preview", { project: this.project, stream: "fleet" }));
    this.#drawFacts();
    void this.#show();
    this.every(REFRESH_MS, () => void this.#explain());
  }

  /** Show all parts together, so that none moves when the next one comes; a slow one comes later. */
  async #show() {
    const wait = new Promise((resolve) => setTimeout(resolve, SLOW_MS));
    await Promise.race([Promise.all([this.#explain(), this.#loadSessions()]), wait]);
    this.replaceChildren(h("div", { class: "columns" },
      h("div", { class: "column" }, this.#live, this.#preview),
      h("div", { class: "column" }, section("Why", this.#why), section("Facts", this.#facts), section("Sessions", this.#sessions))));
  }

  /** @param {Status} before */
  statusChanged(before) {
    this.#drawFacts();
    askSoon(`explain ${this.project}`, () => this.isConnected && this.#explain());
    if (before.status === this.status.status) return;
    askSoon(`sessions ${this.project}`, () => this.isConnected && this.#loadSessions());
    // The live view ends with the sandbox.
    if (this.status.status !== "RUNNING") this.#hideLive();
  }

  #drawFacts() {
    this.#facts.replaceChildren(...renderFacts(this.status));
  }

  #explain() {
    return this.load(this.#why, () => api.explain(this.project), renderWhy);
  }

  #loadSessions() {
    return this.load(this.#sessions, () => orNull(api.sessions(this.project)), (items) => renderSessions(items, (one) => this.#watch(one)));
  }

  #hideLive() {
    this.#live.replaceChildren();
    this.#live.hidden = true;
    this.#preview.hidden = false;
  }

  /** Return the button that opens a desktop's live view, which has the sandbox's origin. @param {any} session */
  #watch(session) {
    const stop = async () => {
      this.#hideLive();
      await api.stopStream(session.id);
    };
    const start = async () => {
      const { url } = await api.startStream(session.id);
      // The lite viewer needs no browser storage, which is often blocked for third-party frames.
      const src = url.replace("/vnc.html?", "/vnc_lite.html?scale=true&");
      this.#live.replaceChildren(
        h("button", { type: "button", onclick: () => void attempt("Stop", stop) }, "Stop live view"),
        h("iframe", { class: "live", src, title: `Live view of ${session.key}`, sandbox: "allow-scripts allow-same-origin", referrerpolicy: "no-referrer" }));
      this.#live.hidden = false;
      this.#preview.hidden = true;
    };
    return h("button", { type: "button", onclick: () => void attempt("Live view", start) }, "Live view");
  }
}

/** @param {string} label @param {() => Promise<unknown>} act */
async function attempt(label, act) {
  try {
    await act();
  } catch (error) {
    showDialog(`${label} failed`, [renderProblem(error)]);
  }
}

/** @param {any} why */
function renderWhy(why) {
  const ignored = why.ignoredPassiveCount ?? 0;
  return [
    h("p", {}, h("b", {}, api.words[why.status] ?? why.status), " for ", lasting(why.since), why.why ? `: ${why.why}` : "", why.actor ? ` (${why.actor})` : ""),
    h("p", {}, "Last activity: ", why.lastActiveClass ? h("span", {}, when(why.lastActiveAt), ` (${[why.lastActiveClass, why.lastActiveSource].filter(Boolean).join(", ")})`) : "none yet"),
    h("p", {}, ignored ? h("span", {}, `${amount(ignored, "passive read")} ignored, the last `, when(why.ignoredPassiveAt)) : "No reads since."),
    why.work ? h("p", {}, "Running inside: ", why.work) : "",
    why.files ? h("p", {}, "Its files are ", why.files) : "",
    why.lastFailure ? h("p", { class: "warn" }, "The last attempt failed ", when(why.lastFailureAt), `: ${why.lastFailure}`) : "",
    h("p", {}, "Next: ", why.nextRule || "nothing scheduled", why.nextAt ? " in " : "", why.nextAt ? until(why.nextAt) : ""),
    h("p", {}, "Idle limit: ", why.idleTimeoutWhy),
    why.idlePauses ? h("p", {}, `Paused when idle ${amount(why.idlePauses, "time")}, ${why.earlyPauses} too early (woken within a minute); ${renderSpan(why.idleTailMs)} of idle running time before those pauses`) : "",
    why.preventedBy?.length ? h("p", {}, "Prevented by: ", why.preventedBy.join("; ")) : "",
  ];
}

/** @param {Status} status */
function renderFacts(status) {
  const s = /** @type {any} */ (status);
  /** @type {[string, Node|string][]} */
  const facts = [
    ["State", stateOf(status)], ["Template", s.template ?? "–"], ["Provider", [s.provider, s.region].filter(Boolean).join(" · ") || "–"],
    ["Tenant", s.tenant ?? "–"], ["Instance", s.instanceId ?? "–"], ["Generation", String(s.generation ?? "–")], ["Version", `v${s.version}`],
    ["Sleeps in", until(s.sleepsAt)], ["Expires in", until(s.expiresAt)], ["Idle limit", s.idleTimeoutMs ? renderSpan(s.idleTimeoutMs) : "–"],
    ["Last active", when(s.lastActiveClass && s.lastActiveAt)], ["Verified", when(s.lastVerifiedAt)], ["Failures", String(s.verificationFailures ?? 0)],
    ["Killed", s.killedAt ? h("span", {}, when(s.killedAt), ` ${s.killedReason ?? ""}`) : "–"], ["Created", when(s.createdAt)],
  ];
  for (const [name, value] of Object.entries(s.metadata ?? {})) facts.push([name, String(value)]);
  return [h("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))];
}

/** @param {any[]|null} items @param {(session: any) => Node} watch */
function renderSessions(items, watch) {
  if (!items?.length) return [nothing(FLEET_WORDS.noSession)];
  const view = (/** @type {any} */ one) => (one.kind === "desktop" && one.sandbox.status === "RUNNING" && mayOperate() ? watch(one) : "");
  return [table(["Session", "Kind", "Last used", ""], items.map((one) => [one.key, one.kind, when(one.lastUsedAt), view(one)]), "Sessions")];
}

customElements.define("preview-tab", PreviewTab);
