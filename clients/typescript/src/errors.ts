// Errors: the keeper's own, and a few of this client. All are `SandkeeperError`: decide by `code`, show `message` and `hint`.

import { SandkeeperError } from "./pane/client.js";

export { SandkeeperError };

/** No keeper answers, or not in time. */
export class KeeperUnreachableError extends SandkeeperError {
  /** @param repeat Whether the same request may be sent again: a keeper that is slow may still work on it. */
  constructor(message: string, readonly repeat: boolean, status = 0) {
    super(status, {
      code: "keeper_unreachable",
      detail: message,
      hint: "Start it with `sandkeeper up`, or check the URL.",
      retryable: true,
    });
    this.name = "KeeperUnreachableError";
  }
}

/** The wake or rebuild is still in progress. */
export class WakeTimedOutError extends SandkeeperError {
  constructor(message: string) {
    super(0, {
      code: "wake_timed_out",
      detail: message,
      hint: "Call it again to join what is in progress, or check the app's log.",
      retryable: true,
    });
    this.name = "WakeTimedOutError";
  }
}

/** An argument that no keeper would accept. */
export function invalidRequest(message: string): SandkeeperError {
  return new SandkeeperError(0, { code: "invalid_request", detail: message, hint: "Correct the argument." });
}

// Status codes that a proxy returns while the keeper behind it is down.
const PROXY_STATUSES = new Set([502, 503, 504]);

/** Return whether the same request may succeed soon. */
export function isRetryable(error: SandkeeperError): boolean {
  if (error instanceof KeeperUnreachableError) return error.repeat;
  const { code, retryable } = error.body;
  return retryable ?? (code === undefined && PROXY_STATUSES.has(error.status));
}
