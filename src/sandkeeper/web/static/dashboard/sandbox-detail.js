// <sandbox-detail name="…">: one sandbox: preview, explanation, timeline, files, sessions.

import { h, SandkeeperError, renderSpan } from "../pane.js";
import { api } from "./api.js";
import { amount, BaseElement, confirmAction, lasting, mayOperate, renderProblem, showDialog, stateOf, table, until, when } from "./base-element.js";
import { FLEET_WORDS } from "./words.js";

/** @import {Message, Status} from "../shapes.js" */
/** @import {Change} from "./api.js" */

const REFRESH_MS = 30000;

export class SandboxDetail extends BaseElement {
  #why = h("div");
  #facts = h("div");
  #timeline = h("ol", { class: "timeline" });
  #older = h("button", { type: "button", hidden: true }, "Older");
  #files = h("div");
  #sessions = h("div");
  #live = h("div");
  #log = h("div");
  #receipt = h("div");
  /** @type {string|null} */ #cursor = null;
  #timer = 0;
  #state = "";

  get name() {
    return this.getAttribute("name") ?? "";
  }

  begin() {
    const preview = h("sandbox-preview", { project: this.name, stream: "fleet" });
    this.replaceChildren(
      h("div", { class: "heading" }, h("h1", {}, this.name), mayOperate() ? this.#actions() : null),
      h("div", { class: "columns" },
        h("div", { class: "column" }, preview, section("Log", this.#log), section("Files", this.#files), section("Timeline", this.#timeline, this.#older)),
        h("div", { class: "column" }, section("Why", this.#why), section("Facts", this.#facts), section("Last wake", this.#receipt), section("Sessions", this.#sessions, this.#live))));
    this.#older.addEventListener("click", () => void this.#more());
    // The stream only sends new changes; read again what changed before it opened.
    this.follow((message) => this.#onMessage(message), (live) => live && this.#catchUp());
    this.every(REFRESH_MS, () => void this.#explain());
    this.#loadAll();
  }

  #loadAll() {
    this.#catchUp();
    void this.#more();
    this.#reloadForState("");
  }

  #catchUp() {
    void this.#explain();
    void this.load(this.#facts, () => api.status(this.name), renderFacts);
  }

  /** Reload what depends on the state. @param {string} state */
  #reloadForState(state) {
    this.#state = state;
    void this.load(this.#log, () => api.log(this.name), (log) => [log.lines.length ? h("pre", { tabindex: 0 }, log.lines.join("\n")) : nothing(log.note)]);
    void this.load(this.#files, () => orNull(api.files(this.name)), renderFiles);
    void this.load(this.#receipt, () => orNull(api.receipt(this.name)), renderReceipt);
    void this.load(this.#sessions, () => orNull(api.sessions(this.name)), (items) => renderSessions(items, (one) => this.#watch(one)));
    // The live view ends with the sandbox.
    if (state && state !== "RUNNING") this.#live.replaceChildren();
  }

  #explain() {
    return this.load(this.#why, () => api.explain(this.name), renderWhy);
  }

  async #more() {
    try {
      const page = await api.history(this.name, this.#cursor);
      this.#timeline.append(...page.items.map(renderChange));
      this.#cursor = page.nextCursor;
      this.#older.hidden = !page.nextCursor;
    } catch (error) {
      this.#timeline.append(h("li", {}, renderProblem(error)));
    }
  }

  /** @param {Message} message */
  #onMessage({ event, data }) {
    if (/** @type {any} */ (data).project !== this.name) return;
    if (event === "change") this.#timeline.prepend(renderChange(/** @type {Change} */ (data)));
    if (event !== "status") return;
    if (/** @type {Status} */ (data).status !== this.#state) this.#reloadForState(/** @type {Status} */ (data).status);
    this.#facts.replaceChildren(...renderFacts(/** @type {Status} */ (data)));
    // Explain once per burst of changes.
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => void this.#explain(), 300);
  }

  /** Return the button that opens a desktop's live view, which has the sandbox's origin. @param {any} session */
  #watch(session) {
    const stop = async () => {
      this.#live.replaceChildren();
      await api.stopStream(session.id);
    };
    const start = async () => {
      const { url } = await api.startStream(session.id);
      // The lite viewer needs no browser storage, which is often blocked for third-party frames.
      const src = url.replace("/vnc.html?", "/vnc_lite.html?scale=true&");
      this.#live.replaceChildren(
        h("button", { type: "button", onclick: () => void attempt("Stop", stop) }, "Stop live view"),
        h("iframe", { class: "live", src, title: `Live view of ${session.key}`, sandbox: "allow-scripts allow-same-origin", referrerpolicy: "no-referrer" }));
    };
    return h("button", { type: "button", onclick: () => void attempt("Live view", start) }, "Live view");
  }

  #actions() {
    /** @param {string} label @param {() => Promise<unknown>} act */
    const button = (label, act) => h("button", { type: "button", onclick: () => void attempt(label, act) }, label);
    const kill = async () => {
      const details = [h("p", {}, "The sandbox is killed at the provider. Its record and kept files stay, and a wake creates a new sandbox.")];
      if (await confirmAction(`Kill ${this.name}?`, details, "Kill")) await api.kill(this.name);
    };
    return h("div", { class: "row" },
      button("Pause", () => api.act(this.name, "pause")),
      button("Wake", () => api.wake(this.name)),
      button("Verify", () => api.verify(this.name)),
      button("Extend 1 h", () => api.act(this.name, "extend", { byMs: 3600000 })),
      button("Kill", kill));
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

/** Return null for what this server does not have. @template T @param {Promise<T>} answer @returns {Promise<T|null>} */
async function orNull(answer) {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof SandkeeperError && [404, 405].includes(error.status)) return null;
    throw error;
  }
}

/** @param {string} title @param {...Node} content */
function section(title, ...content) {
  return h("section", { class: "card" }, h("h2", {}, title), ...content);
}

/** @param {string} text */
function nothing(text) {
  return h("p", { class: "quiet" }, text);
}

/** @param {any} why */
function renderWhy(why) {
  const ignored = why.ignoredPassiveCount ?? 0;
  return [
    h("p", {}, h("b", {}, why.status.toLowerCase()), " for ", lasting(why.since), why.why ? `: ${why.why}` : "", why.actor ? ` (${why.actor})` : ""),
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
    ["State", stateOf(status)], ["Version", `v${s.version}`], ["Generation", String(s.generation ?? "–")],
    ["Instance", s.instanceId ?? "–"], ["Provider", [s.provider, s.region].filter(Boolean).join(" · ") || "–"], ["Template", s.template ?? "–"],
    ["Sleeps in", until(s.sleepsAt)], ["Expires in", until(s.expiresAt)], ["Idle limit", s.idleTimeoutMs ? renderSpan(s.idleTimeoutMs) : "–"],
    ["Last active", when(s.lastActiveClass && s.lastActiveAt)], ["Verified", when(s.lastVerifiedAt)], ["Failures", String(s.verificationFailures ?? 0)],
    ["Killed", s.killedAt ? h("span", {}, when(s.killedAt), ` ${s.killedReason ?? ""}`) : "–"], ["Created", when(s.createdAt)],
  ];
  for (const [name, value] of Object.entries(s.metadata ?? {})) facts.push([name, String(value)]);
  return [h("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))];
}

/** @param {Change} change */
export function renderChange(change) {
  const detail = /** @type {any} */ (change.detail ?? {});
  const moved = change.fromState && change.toState ? `${change.fromState.toLowerCase()} → ${change.toState.toLowerCase()}` : change.type.replace(/^sandbox\./, "").replaceAll("_", " ");
  const lag = detail.lagS !== undefined && detail.lagS !== null ? ` (+${Number(detail.lagS).toFixed(1)} s)` : "";
  return h("li", {}, when(change.at), h("span", {}, h("b", {}, moved), change.reason ? ` ${change.reason}` : "", lag, h("span", { class: "quiet" }, ` ${[...new Set([change.cause, change.actor])].filter(Boolean).join(", ")}`)));
}

/** @param {any} answer */
function renderFiles(answer) {
  if (!answer?.version) return [nothing(FLEET_WORDS.noFiles)];
  const [latest] = answer.versions;
  const rows = answer.items.map((/** @type {any} */ file) => [file.path, size(file.size), h("code", { title: file.sha256 ?? "" }, (file.sha256 ?? file.target ?? file.kind).slice(0, 12))]);
  return [
    h("p", { class: "quiet" }, `${amount(answer.files, "file")}, ${size(answer.bytes)}, version ${answer.version}`, latest ? h("span", {}, ", confirmed ", when(latest.seenAt)) : ""),
    table(["Path", "Size", "Hash"], rows, "Kept files"),
    answer.nextCursor ? h("p", { class: "quiet" }, "The list is longer: ", h("code", {}, `sandkeeper files ls`), " shows all.") : "",
  ];
}

/** @param {number} bytes */
function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  return bytes < 1048576 ? `${(bytes / 1024).toFixed(1)} KB` : `${(bytes / 1048576).toFixed(1)} MB`;
}

/** @param {any} wake */
function renderReceipt(wake) {
  if (!wake || (wake.method === "nothing" && wake.status === "succeeded")) return [nothing(FLEET_WORDS.notWoken)];
  const receipt = wake.receipt;
  const kept = receipt ? ["memory", "disk"].filter((part) => receipt.kept[part]).join(" and ") : "";
  const summary = [
    wake.status, wake.method && wake.method !== "nothing" && `by ${wake.method}`, kept && `${kept} kept`, receipt?.restored && `${amount(receipt.restored, "file")} restored`,
    receipt?.appKept && "app kept running", receipt?.filesNote, receipt?.lostCount && `${amount(receipt.lostCount, "file")} lost: ${receipt.lost.join(", ")}`, receipt?.reason, wake.error?.message,
  ].filter(Boolean).join(" · ");
  const rows = wake.steps.map((/** @type {any} */ step) => [step.name.replaceAll("_", " "), step.outcome, step.tookMs === null ? "–" : `${(step.tookMs / 1000).toFixed(2)} s`, step.detail]);
  return [h("p", {}, when(wake.startedAt), ` ${summary}`), rows.length ? table(["Step", "Outcome", "Took", ""], rows, "Steps of the last wake") : ""];
}

/** @param {any[]|null} items @param {(session: any) => Node} watch */
function renderSessions(items, watch) {
  if (!items?.length) return [nothing(FLEET_WORDS.noSession)];
  const view = (/** @type {any} */ one) => (one.kind === "desktop" && one.sandbox.status === "RUNNING" && mayOperate() ? watch(one) : "");
  return [table(["Session", "Kind", "Last used", ""], items.map((one) => [one.key, one.kind, when(one.lastUsedAt), view(one)]), "Sessions")];
}

customElements.define("sandbox-detail", SandboxDetail);
