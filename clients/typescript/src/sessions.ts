// Sessions: a conversation's sandbox, leased while its agent works.

import { encodeName, type Connection } from "./connection.js";
import { Lease } from "./leases.js";
import type { AcquiredSession, AcquireSession, Page, Session } from "./types.js";

export class Sessions {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /**
   * Get the conversation's sandbox, running and healthy, with a lease that is renewed until `release`.
   *
   * The same user and task get the same sandbox with its files and processes. Without a task or
   * conversation id a new session is opened.
   */
  async acquire(userId: string, options: Omit<AcquireSession, "userId"> = {}): Promise<Lease<AcquiredSession>> {
    const info = await this.#connection.request<AcquiredSession>("POST", "/api/sessions/acquire", { body: { ...options, userId } });
    return new Lease(this.#connection, info, options.leaseMs ?? undefined);
  }

  /** Report that the session is still needed. Does not wake its sandbox. */
  touch(sessionId: string): Promise<Session> {
    return this.#connection.request("POST", `${pathOf(sessionId)}/touch`, { body: {} });
  }

  /** Transfer the sandbox with its files to another conversation of the same user. */
  transfer(sessionId: string, to: { taskId?: string; conversationId?: string }): Promise<Session> {
    return this.#connection.request("POST", `${pathOf(sessionId)}/transfer`, { body: to });
  }

  /** Close the session and kill its sandbox, unless another conversation shares it. */
  close(sessionId: string): Promise<void> {
    return this.#connection.request("DELETE", pathOf(sessionId));
  }

  /** Return an open session and its sandbox. */
  show(sessionId: string): Promise<Session> {
    return this.#connection.request("GET", pathOf(sessionId));
  }

  /** Yield all open sessions. */
  async *list(options: { kind?: Session["kind"]; userId?: string } = {}): AsyncGenerator<Session, void, undefined> {
    let cursor: string | null = null;
    do {
      const query = { kind: options.kind, user: options.userId, cursor };
      const page: Page<Session> = await this.#connection.request("GET", "/api/sessions", { query });
      yield* page.items;
      cursor = page.nextCursor;
    } while (cursor !== null);
  }
}

function pathOf(sessionId: string): string {
  return `/api/sessions/${encodeName(sessionId, "session")}`;
}
