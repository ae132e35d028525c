// The client of a keeper, for servers and scripts. A browser uses `sandkeeper/react` or `sandkeeper/element` with a client token.

import { Connection, encodeName, type RetryPolicy } from "./connection.js";
import { Jobs } from "./jobs.js";
import type { SandboxClass } from "./leases.js";
import { Project } from "./project.js";
import { Sessions } from "./sessions.js";
import { readEvents, type StreamOptions } from "./streams.js";
import type { AcquireSession, ClientToken, FleetSummary, Page, Readiness, State, Status, StreamEvent } from "./types.js";

export interface SandkeeperOptions {
  /** The keeper's URL. Default: the variable `SANDKEEPER_URL`, or the local keeper. */
  url?: string;
  /** A key, or a function that returns one. Default: the variable `SANDKEEPER_OPERATOR_KEY`. */
  key?: string | ((expired: boolean) => string | Promise<string>);
  retry?: RetryPolicy;
}

export class Sandkeeper {
  readonly #connection: Connection;
  readonly sessions: Sessions;
  readonly jobs: Jobs;

  constructor(options: SandkeeperOptions = {}) {
    const env = typeof process === "undefined" ? {} : process.env;
    const url = options.url ?? env.SANDKEEPER_URL ?? "http://127.0.0.1:7420";
    this.#connection = new Connection(url, options.key ?? env.SANDKEEPER_OPERATOR_KEY ?? null, options.retry);
    this.sessions = new Sessions(this.#connection);
    this.jobs = new Jobs(this.#connection);
  }

  /** The keeper's URL. */
  get url(): string {
    return this.#connection.url;
  }

  /** Return a project's sandbox. Sends no request. */
  project(address: string): Project {
    return new Project(this.#connection, address);
  }

  /**
   * Lease a conversation's sandbox while `work` runs, as an object of the given SDK class, running and healthy.
   *
   * The same user and task get the same sandbox with its files; the keeper manages its lifecycle.
   */
  async lease<S, R>(
    Sandbox: SandboxClass<S>,
    who: { userId: string } & Omit<AcquireSession, "userId">,
    work: (sandbox: S) => Promise<R> | R,
  ): Promise<R> {
    const { userId, ...options } = who;
    const lease = await this.sessions.acquire(userId, options);
    try {
      return await work(lease.sandbox(Sandbox));
    } finally {
      await lease.release();
    }
  }

  /** Yield all matching sandboxes, reading page by page. */
  async *list(options: { states?: State[]; search?: string; region?: string; tenant?: string; sort?: string } = {}): AsyncGenerator<Status, void, undefined> {
    const { states = [], search, region, tenant, sort } = options;
    let cursor: string | null = null;
    do {
      const query = { state: states.join(","), search, region, tenant, sort, cursor };
      const page: Page<Status> = await this.#connection.request("GET", "/api/sandboxes", { query });
      yield* page.items;
      cursor = page.nextCursor;
    } while (cursor !== null);
  }

  /** Yield live changes of the fleet, or of the named projects, without end; resume when interrupted. */
  events(options: StreamOptions & { projects?: string[] } = {}): AsyncGenerator<StreamEvent, void, undefined> {
    return readEvents(this.#connection, "/api/fleet/events", { ...options, query: { project: options.projects } });
  }

  /** Return the fleet's counts and health. */
  summary(): Promise<FleetSummary> {
    return this.#connection.request("GET", "/api/fleet/summary");
  }

  /** Return whether the keeper is ready, and the state of its background tasks. */
  readiness(): Promise<Readiness> {
    return this.#connection.request("GET", "/readyz");
  }

  /** Issue a short-lived token for a browser, good for this project only. */
  issueClientToken(project: string, options: { ttlS?: number } = {}): Promise<ClientToken> {
    return this.#connection.request("POST", "/api/client-tokens", { body: { project, ttlS: options.ttlS } });
  }

  /** Revoke a client token by its id; it stops working within two seconds. */
  revokeClientToken(tokenId: string): Promise<void> {
    return this.#connection.request("DELETE", `/api/client-tokens/${encodeName(tokenId, "token")}`);
  }
}
