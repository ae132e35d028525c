// What the pane shows, as pure functions: no clock, no network, no document.
// `reduce` takes what happened, `describe` says what to show. STATES equals the server's table.

/** @import {Action, Fault, Happening, Model, State, Status, View, Waking} from "./shapes.js" */

/** @type {Readonly<Record<State, {label: string, caption: string, badge: string, icon: string, actions: Action[], pollAfterMs: number|null}>>} */
export const STATES = {
  STARTING: {
    label: "Preparing sandbox…",
    caption: "Setting up your development environment…",
    badge: "blue",
    icon: "spinner",
    actions: ["refresh"],
    pollAfterMs: 5000,
  },
  RUNNING: {
    label: "Live preview ready",
    caption: "Sandboxes stay active for 1 hour with smart auto-pause.",
    badge: "green",
    icon: "play",
    actions: ["refresh", "copy_url", "open"],
    pollAfterMs: 30000,
  },
  PAUSED: {
    label: "Sandbox asleep",
    caption: "Auto-paused after 3 minutes of inactivity. Wake it to continue.",
    badge: "amber",
    icon: "moon",
    actions: ["wake", "refresh"],
    pollAfterMs: null,
  },
  KILLED: {
    label: "Sandbox not found",
    caption: "Sandbox was terminated. Wake to create a new one with your files.",
    badge: "red",
    icon: "error",
    actions: ["wake", "refresh"],
    pollAfterMs: null,
  },
  EXPIRED: {
    label: "Sandbox expired",
    caption: "Reached 1-hour lifetime limit. Wake to create a fresh sandbox.",
    badge: "orange",
    icon: "clock",
    actions: ["wake", "refresh"],
    pollAfterMs: null,
  },
  TERMINATED: {
    label: "Sandbox stopped",
    caption: "Sandbox was shut down. Wake to restart with your project files.",
    badge: "gray",
    icon: "stop",
    actions: ["wake", "refresh"],
    pollAfterMs: null,
  },
  UNKNOWN: {
    label: "Connection issue",
    caption: "Cannot verify sandbox status. Check your connection and try again.",
    badge: "yellow",
    icon: "warning",
    actions: ["retry", "wake"],
    pollAfterMs: 30000,
  },
};

export const WAKING = {
  label: "Waking sandbox...",
  caption: "Your files and your app are coming back.",
  badge: "blue",
  icon: "spinner",
  pollAfterMs: 2000,
};

/** @type {Readonly<Record<string, string>>} */
const BUTTONS = { wake: "Wake sandbox", retry: "Retry" };

/** @type {Model} */
export const BEGINNING = Object.freeze({
  status: null,
  waking: null,
  askedAt: null,
  failure: null,
  fault: null,
  live: false,
  log: [],
});

/**
 * Gives the next model; the same object when nothing changed, so that nothing is drawn again.
 * @param {Model} model
 * @param {Happening} happening
 * @returns {Model}
 */
export function reduce(model, happening) {
  switch (happening.type) {
    case "status":
      return takeStatus(model, happening.status);
    case "asked":
      return { ...model, askedAt: happening.at, failure: null };
    case "failed":
      return { ...model, askedAt: null, waking: null, failure: happening.failure };
    case "fault":
      return same(model.fault, happening.fault) ? model : { ...model, fault: happening.fault };
    case "live":
      return model.live === happening.live ? model : { ...model, live: happening.live };
    case "log":
      return same(model.log, happening.lines) ? model : { ...model, log: happening.lines };
  }
}

/**
 * Stream and poll race, and tabs repeat one another: an older version of a record never counts.
 * @param {Model} model
 * @param {Status} status
 * @returns {Model}
 */
function takeStatus(model, status) {
  const old = model.status;
  const reached = model.fault ? { ...model, fault: null } : model;
  if (old?.id === status.id && (status.version < (old?.version ?? 0) || same(old, status))) return reached;
  const next = { ...reached, status };
  if (status.waking) return { ...next, waking: status.waking, failure: null };
  if (status.status === "RUNNING") {
    return { ...next, askedAt: null, waking: null, failure: null, log: status.ready ? [] : model.log };
  }
  if (!old || status.version === old.version || status.status === "STARTING") return next;
  next.log = [];
  if (!model.waking) return next;
  // The wake is over and the sandbox does not run: that is its failure. It is told to whoever asked
  // here; a page that merely watched sees the state itself.
  const failure = { code: failureCode(status), message: status.reason || "The wake did not succeed." };
  return { ...next, askedAt: null, waking: null, failure: model.askedAt === null ? null : failure };
}

/** @param {Status} status */
function failureCode(status) {
  return status.status === "UNKNOWN" ? "sandbox_unreachable" : "sandbox_expired";
}

/** @param {unknown} one @param {unknown} other */
function same(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** @param {Model} model */
export function isWaking(model) {
  return model.askedAt !== null || model.waking !== null;
}

/**
 * How long to wait until the next poll; null means that nothing is expected to change by itself.
 * @param {Model} model
 */
export function pollAfterMs(model) {
  if (isWaking(model)) return WAKING.pollAfterMs;
  if (!model.status) return model.fault ? 10000 : null;
  return model.fault ? (model.status.pollAfterMs ?? 30000) : model.status.pollAfterMs;
}

/**
 * The address to show, or null. A preview of the page's own origin is refused: inside the frame it
 * could reach into the page.
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
  label: "Loading…",
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
 * Says what to show. A preview of `pageOrigin` is refused.
 * @param {Model} model
 * @param {string} pageOrigin
 * @returns {View}
 */
export function describe(model, pageOrigin) {
  const { status, failure, fault } = model;
  if (!status) return describeNothing(fault);
  const { status: state, badge, label, caption, actions } = status;
  const row = STATES[state] ?? STATES.UNKNOWN;
  if (isWaking(model)) return { ...BLANK, ...WAKING, state, pulsing: true, busy: true, progress: model.waking };
  const url = frameUrl(status, pageOrigin);
  /** @type {View} */
  const view = {
    ...BLANK,
    state,
    badge: badge ?? row.badge,
    pulsing: state === "STARTING",
    label,
    caption,
    icon: row.icon,
    frameUrl: url,
    offers: actions.filter((action) => action in BUTTONS).map((action) => offer(action)),
    tools: actions,
    alarming: state === "UNKNOWN",
    log: model.log,
    notice: fault ? "Reconnecting…" : "",
  };
  if (failure) {
    const offers = view.offers.length ? view.offers : [offer("retry")];
    return { ...view, icon: "warning", caption: `${failure.message} ${failure.hint ?? ""}`.trim(), offers, frameUrl: null, alarming: true };
  }
  return state === "RUNNING" && !url ? describeNotReady(view, status) : view;
}

/** @param {Action} action @param {string} [label] */
export function offer(action, label = BUTTONS[action] ?? action) {
  return { action, label };
}

/** @param {Fault|null} fault @returns {View} */
function describeNothing(fault) {
  if (!fault) return BLANK;
  const view = { ...BLANK, icon: "warning", offers: [offer("retry")] };
  if (fault.code.endsWith("not_found")) return { ...view, label: "No sandbox yet", caption: "Nobody made one." };
  return { ...view, badge: "yellow", label: STATES.UNKNOWN.label, caption: fault.message, alarming: true };
}

/** @param {View} view @param {Status} status @returns {View} */
function describeNotReady(view, status) {
  if (status.ready && status.sandboxUrl) {
    const caption = "The preview has the same origin as this page. Serve it from another host name.";
    return { ...view, label: "Preview refused", caption, icon: "warning", alarming: true };
  }
  if (!status.sandboxUrl && (status.ready || status.port === null)) {
    return { ...view, label: "Running", caption: "It has no preview: no port was named." };
  }
  const caption = "The sandbox runs; its app does not answer yet.";
  return { ...view, badge: "blue", pulsing: true, label: "Starting the app…", caption, icon: "spinner", offers: [offer("retry")] };
}

/**
 * When the sandbox goes to sleep by itself, in epoch milliseconds, or null.
 * @param {Status|null} status
 */
export function sleepsAt(status) {
  return status?.status === "RUNNING" && status.sleepsAt ? Date.parse(status.sleepsAt) : null;
}

/**
 * A wake is overdue after three times its usual time; without experience after 30 s.
 * @param {Waking|null} waking
 * @param {number} elapsedMs
 */
export function isOverdue(waking, elapsedMs) {
  return elapsedMs > 3 * (waking?.usualMs || 10000);
}

/**
 * `just now`, `42 s`, `4 m 10 s`, `2 h 5 m`, `3 d`.
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
