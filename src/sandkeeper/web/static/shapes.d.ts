// The shapes that the modules share. Nothing of this is loaded at run time.

export type State =
  | "STARTING"
  | "RUNNING"
  | "PAUSED"
  | "KILLED"
  | "EXPIRED"
  | "TERMINATED"
  | "UNKNOWN";

export type Action = "wake" | "refresh" | "retry" | "open" | "copy_url" | "rebuild";

/** Why something did not work, in the words of the server's problem+json. */
export interface Fault {
  code: string;
  message: string;
  hint?: string;
}

/** A wake under way. */
export interface Waking {
  /** The step that runs now; those before it in `steps` are done. */
  step: string;
  steps: string[];
  startedAt: string | null;
  /** How long such a wake usually takes. */
  usualMs: number | null;
}

/** What a wake kept, restored and lost. `lost` names the first hundred. */
export interface Receipt {
  rung: "nothing" | "resume" | "reboot" | "recreate";
  kept: { memory: boolean; disk: boolean };
  restored: number;
  lost: string[];
  lostCount: number;
  tookMs: number;
  reason: string;
}

/** A sandbox, as `GET …/status` and the stream tell it. */
export interface Status {
  id?: string;
  status: State;
  version: number;
  sandboxUrl: string | null;
  ready: boolean;
  label: string;
  caption: string;
  badge?: string;
  actions: Action[];
  /** Null means that nothing is expected to change by itself. */
  pollAfterMs: number | null;
  asOf: string | null;
  stateSince?: string;
  lastActiveAt?: string | null;
  idleTimeoutMs?: number;
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

/** All that a pane knows. */
export interface Model {
  status: Status | null;
  waking: Waking | null;
  /** When this page asked for a wake that is not yet over, in epoch milliseconds. */
  askedAt: number | null;
  /** Why the last wake asked for here failed. */
  failure: Fault | null;
  /** Why the server cannot be asked. */
  fault: Fault | null;
  /** Whether changes arrive by themselves. */
  live: boolean;
  /** The app's last lines. */
  log: string[];
}

export type Happening =
  | { type: "status"; status: Status }
  | { type: "asked"; at: number }
  | { type: "failed"; failure: Fault }
  | { type: "fault"; fault: Fault }
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
  /** The address to show; null means: show the overlay. */
  frameUrl: string | null;
  /** The overlay's buttons; the first is the one to press. */
  offers: { action: Action; label: string }[];
  busy: boolean;
  /** What the toolbar offers. */
  tools: Action[];
  progress: Waking | null;
  /** Whether the overlay is an error. */
  alarming: boolean;
  log: string[];
  /** One line beside the state, for what is not the state itself. */
  notice: string;
}

export type Token = string | null | ((expired: boolean) => string | null | Promise<string | null>);

export interface ClientOptions {
  /** Where the server is; empty means the page's own origin. */
  base?: string;
  /** A client token, or a function that gives one. Without it the cookie of the login is used. */
  token?: Token;
}

/** A message of the stream. */
export interface Message {
  id: string;
  event: string;
  data: unknown;
}
