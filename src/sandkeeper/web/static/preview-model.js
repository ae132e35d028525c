// What the pane shows, as pure functions: no clock, no network, no document.
// `reduce` applies an event to the model, `describe` computes the view. The wording of each state
// comes with the server's status, and with `words.js` where there is none.

import { WORDS } from "./words.js";

/** @import {Action, ModelEvent, Problem, Model, Status, View, Waking} from "./shapes.js" */

/** @type {Model} */
export const INITIAL = Object.freeze({
  status: null,
  waking: null,
  requestedAt: null,
  failure: null,
  problem: null,
  live: false,
  log: [],
});

/**
 * Return the next model, or the same object when nothing changed, so that nothing is redrawn.
 * @param {Model} model
 * @param {ModelEvent} event
 * @returns {Model}
 */
export function reduce(model, event) {
  switch (event.type) {
    case "status":
      return applyStatus(model, event.status);
    case "wake-requested":
      return { ...model, requestedAt: event.at, failure: null };
    case "failed":
      return { ...model, requestedAt: null, waking: null, failure: event.failure };
    case "problem":
      return same(model.problem, event.problem) ? model : { ...model, problem: event.problem };
    case "live":
      return model.live === event.live ? model : { ...model, live: event.live };
    case "log":
      return same(model.log, event.lines) ? model : { ...model, log: event.lines };
  }
}

/**
 * Apply a status unless it is older than the current one: stream, polls and other tabs race.
 * @param {Model} model
 * @param {Status} status
 * @returns {Model}
 */
function applyStatus(model, status) {
  const old = model.status;
  const reached = model.problem ? { ...model, problem: null } : model;
  if (old?.id === status.id && (status.version < (old?.version ?? 0) || same(old, status))) return reached;
  const next = { ...reached, status };
  if (status.waking) return { ...next, waking: status.waking, failure: null };
  if (status.status === "RUNNING") {
    return { ...next, requestedAt: null, waking: null, failure: null, log: status.ready ? [] : model.log };
  }
  if (!old || status.version === old.version || status.status === "STARTING") return next;
  next.log = [];
  if (!model.waking) return next;
  // The wake ended and the sandbox does not run: the wake failed. Only the page that requested it
  // shows the failure; other pages show the state.
  const failure = { code: failureCode(status), message: status.reason || WORDS.page.wakeFailed };
  return { ...next, requestedAt: null, waking: null, failure: model.requestedAt === null ? null : failure };
}

/** @param {Status} status */
function failureCode(status) {
  return status.status === "UNKNOWN" ? "sandbox_unreachable" : "sandbox_expired";
}

/** @param {unknown} one @param {unknown} other */
function same(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** @param {string|null|undefined} state */
export function isEnded(state) {
  return state === "KILLED" || state === "EXPIRED" || state === "TERMINATED";
}

/** @param {Model} model */
export function isWaking(model) {
  return model.requestedAt !== null || model.waking !== null;
}

/**
 * Return the delay until the next poll; null when no change is expected without a user.
 * @param {Model} model
 */
export function pollAfterMs(model) {
  if (isWaking(model)) return WORDS.waking.pollAfterMs;
  if (!model.status) return model.problem ? 10000 : null;
  return model.problem ? (model.status.pollAfterMs ?? 30000) : model.status.pollAfterMs;
}

/**
 * Return the URL to frame, or null. A preview on the page's own origin is refused: its scripts could
 * access the page.
 * @param {Status|null} status
 * @param {string} pageOrigin
 */
export function frameUrl(status, pageOrigin) {
  if (status?.status !== "RUNNING" || !status.ready || !status.sandboxUrl) return null;
  let url;
  try {
    url = new URL(status.sandboxUrl);
  } catch {
    return null;
  }
  return /^https?:$/.test(url.protocol) && url.origin !== pageOrigin ? url.href : null;
}

/** @type {View} */
const BLANK = {
  state: null,
  badge: "gray",
  pulsing: false,
  label: WORDS.page.loading,
  caption: "",
  icon: "spinner",
  frameUrl: null,
  offers: [],
  busy: false,
  tools: [],
  progress: null,
  alarming: false,
  log: [],
  notice: "",
};

/**
 * Return what to show. A preview on `pageOrigin` is refused.
 * @param {Model} model
 * @param {string} pageOrigin
 * @returns {View}
 */
export function describe(model, pageOrigin) {
  const { status, failure, problem } = model;
  if (!status) return describeNothing(problem);
  const { status: state, badge, label, caption, icon, pulses, actions } = status;
  if (isWaking(model)) {
    const words = status.waking ? { label, caption, badge, icon } : WORDS.waking;
    return { ...BLANK, ...words, state, pulsing: true, busy: true, progress: model.waking };
  }
  const url = frameUrl(status, pageOrigin);
  /** @type {View} */
  const view = {
    ...BLANK,
    state,
    badge,
    pulsing: pulses,
    label,
    caption,
    icon,
    frameUrl: url,
    offers: actions.filter((action) => action in WORDS.actions).map((action) => offer(action)),
    tools: actions,
    alarming: icon === "warning" || icon === "error",
    log: model.log,
    notice: problem ? WORDS.page.reconnecting : "",
  };
  if (failure) {
    const offers = view.offers.length ? view.offers : [offer("retry")];
    return { ...view, icon: "warning", caption: `${failure.message} ${failure.hint ?? ""}`.trim(), offers, frameUrl: null, alarming: true };
  }
  return state === "RUNNING" && status.ready && status.sandboxUrl && !url ? describeRefused(view) : view;
}

/** @param {Action} action @param {string} [label] */
export function offer(action, label = WORDS.actions[action] ?? action) {
  return { action, label };
}

/** @param {Problem|null} problem @returns {View} */
function describeNothing(problem) {
  if (!problem) return BLANK;
  const view = { ...BLANK, icon: "warning", offers: [offer("retry")] };
  if (problem.code.endsWith("not_found")) return { ...view, label: WORDS.page.absent, caption: WORDS.page.absentCaption };
  return { ...view, badge: "yellow", label: WORDS.unreachable.label, caption: problem.message, alarming: true };
}

/** Show that the page itself refuses the preview, which no server can know. @param {View} view @returns {View} */
function describeRefused(view) {
  return { ...view, badge: "yellow", label: WORDS.page.refused, caption: WORDS.page.refusedCaption, icon: "warning", alarming: true };
}

/**
 * Return when the sandbox will be paused if unused, in epoch milliseconds, or null.
 * @param {Status|null} status
 */
export function sleepsAt(status) {
  return status?.status === "RUNNING" && status.sleepsAt ? Date.parse(status.sleepsAt) : null;
}

/**
 * Return whether a wake is overdue: after three times its usual time, or 30 s if that is unknown.
 * @param {Waking|null} waking
 * @param {number} elapsedMs
 */
export function isOverdue(waking, elapsedMs) {
  return elapsedMs > 3 * (waking?.usualMs || 10000);
}

/**
 * Format a duration: `42 s`, `4 m 10 s`, `2 h 5 m`, `3 d`.
 * @param {number} ms
 */
export function renderSpan(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return s % 60 && s < 600 ? `${Math.floor(s / 60)} m ${s % 60} s` : `${Math.floor(s / 60)} m`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} m`;
  return `${Math.floor(s / 86400)} d`;
}

/** @param {number} ms */
export function renderAge(ms) {
  return ms < 5000 ? "just now" : `${renderSpan(ms)} ago`;
}
