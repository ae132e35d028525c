// Types shared by the modules; not loaded at run time.

export type State =
  | "STARTING"
  | "RUNNING"
  | "PAUSED"
  | "KILLED"
  | "EXPIRED"
  | "TERMINATED"
  | "UNKNOWN";

export type Action = "wake" | "refresh" | "retry" | "open" | "copy_url" | "rebuild" | "restart";

/** Why a request failed, as in the server's problem+json. */
export interface Problem {
  code: string;
  message: string;
  hint?: string;
}

/** A wake in progress. */
export interface Waking {
  /** The current step; earlier entries of `steps` are done. */
  step: string;
  steps: string[];
  startedAt: string | null;
  /** The usual duration of such a wake. */
  usualMs: number | null;
  /** The place in line while it waits for a slot, and how long that takes if it was measured. */
  position: number | null;
  waitMs: number | null;
}

/** What a wake kept, restored and lost. `lost` lists at most 100 paths. */
export interface Receipt {
  method: "nothing" | "resume" | "reboot" | "recreate";
  kept: { memory: boolean; disk: boolean };
  restored: number;
  /** The app answered after a resume and was left alone. */
  appKept?: boolean;
  /** The files of a resumed sandbox are still being compared, beside its use. */
  filesPending?: boolean;
  /** How old the files of a new instance may be, if they are not the newest. */
  filesNote?: string | null;
  lost: string[];
  lostCount: number;
  tookMs: number;
  reason: string;
}

/** What is true now, for those who run sandboxes, and what they can do; the usual one is first. */
export interface Summary {
  word: string;
  sentence: string;
  since: string;
  operations: ("wake" | "restart" | "pause" | "extend" | "verify" | "kill")[];
}

/** A sandbox, as sent by `GET …/status` and the stream. */
export interface Status {
  id?: string;
  status: State;
  summary: Summary;
  version: number;
  sandboxUrl: string | null;
  ready: boolean;
  app: string | null;
  cause: string;
  providerDownSince: string | null;
  label: string;
  caption: string;
  badge: string;
  icon: string;
  pulses: boolean;
  actions: Action[];
  /** Null when no change is expected without a user. */
  pollAfterMs: number | null;
  asOf: string | null;
  stateSince?: string;
  /** The last act, or since when it could have been one; then there is no class. */
  lastActiveAt?: string | null;
  lastActiveClass?: string | null;
  idleTimeoutMs?: number | null;
  sleepsAt?: string | null;
  expiresAt?: string | null;
  recreated?: boolean;
  reason?: string | null;
  waking?: Waking | null;
  recreationReason?: string | null;
  port?: number | null;
  receipt?: Receipt | null;
  project?: string;
}

/** The state of a pane. */
export interface Model {
  status: Status | null;
  waking: Waking | null;
  /** When this page requested the wake in progress, in epoch milliseconds. */
  requestedAt: number | null;
  /** Why the last wake that this page requested failed. */
  failure: Problem | null;
  /** Why the last request to the server failed. */
  problem: Problem | null;
  /** Whether the stream is connected. */
  live: boolean;
  /** The last lines of the app's log. */
  log: string[];
}

export type ModelEvent =
  | { type: "status"; status: Status }
  | { type: "wake-requested"; at: number }
  | { type: "failed"; failure: Problem }
  | { type: "problem"; problem: Problem }
  | { type: "live"; live: boolean }
  | { type: "log"; lines: string[] };

/** What to show. */
export interface View {
  state: State | null;
  badge: string;
  pulsing: boolean;
  label: string;
  caption: string;
  icon: string;
  /** The URL to frame; null shows the overlay instead. */
  frameUrl: string | null;
  /** The overlay's buttons; the first is the primary one. */
  offers: { action: Action; label: string }[];
  busy: boolean;
  /** The toolbar's buttons. */
  tools: Action[];
  progress: Waking | null;
  /** Whether the overlay is an error. */
  alarming: boolean;
  log: string[];
  /** A short note beside the state, such as “Reconnecting…”. */
  notice: string;
}

export type Token = string | null | ((expired: boolean) => string | null | Promise<string | null>);

export interface ClientOptions {
  /** The server's URL; empty means the page's own origin. */
  base?: string;
  /** A client token, or a function that returns one. Without it the login cookie is used. */
  token?: Token;
}

/** A message of the stream. */
export interface Message {
  id: string;
  event: string;
  data: unknown;
}
