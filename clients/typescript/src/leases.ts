// A lease keeps a sandbox running while its holder works; it is renewed until it is released.

import type { Connection } from "./connection.js";
import { SandkeeperError } from "./errors.js";
import type { LeaseInfo, SdkConnection } from "./types.js";

// The shortest interval between two renewals.
const RENEW_MIN_MS = 200;

/** What the constructor of the SDK's `Sandbox` takes. */
export interface SandboxOptions {
  sandboxId: string;
  sandboxDomain?: string;
  envdVersion: string;
  envdAccessToken?: string;
  apiUrl?: string;
  sandboxUrl?: string;
  domain?: string;
}

/** `Sandbox` of `e2b`, `@e2b/code-interpreter` or `@e2b/desktop`. */
export type SandboxClass<S> = new (options: SandboxOptions) => S;

/** A held lease, with what was leased: `info` is the answer to the request. */
export class Lease<T extends { lease: LeaseInfo; connection: SdkConnection }> implements AsyncDisposable {
  readonly #connection: Connection;
  readonly #leaseMs: number | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #released = false;
  /** Why the lease was lost while it was held, if it was. The next lease of the same sandbox is a new one. */
  lost: SandkeeperError | null = null;

  constructor(connection: Connection, readonly info: T, leaseMs?: number) {
    this.#connection = connection;
    this.#leaseMs = leaseMs;
    this.#renewIn(info.lease.renewAfterMs);
  }

  /**
   * Return the sandbox as an object of the E2B SDK, with the instance's token and without an account's key.
   *
   * Commands, files and ports work with it. The keeper does what needs the account: pause, kill, timeouts.
   */
  sandbox<S>(Sandbox: SandboxClass<S>): S {
    const { instanceId, domain, envdVersion, accessToken, apiUrl, sandboxUrl } = this.info.connection;
    return new Sandbox({
      sandboxId: instanceId,
      sandboxDomain: domain,
      envdVersion,
      envdAccessToken: accessToken ?? undefined,
      apiUrl,
      sandboxUrl: sandboxUrl ?? undefined,
      domain,
    });
  }

  /** Release it; an idle sandbox is paused later. A lease that cannot be released expires on its own. */
  async release(): Promise<void> {
    if (this.#released) return;
    this.#released = true;
    clearTimeout(this.#timer);
    try {
      await this.#connection.send("DELETE", `/api/leases/${this.info.lease.id}`);
    } catch (error) {
      if (!(error instanceof SandkeeperError)) throw error;
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  #renewIn(ms: number): void {
    this.#timer = setTimeout(() => void this.#renew(), Math.max(RENEW_MIN_MS, ms));
    // A lease is no reason to keep a process running.
    if (typeof this.#timer === "object") this.#timer.unref();
  }

  async #renew(): Promise<void> {
    let nextMs = RENEW_MIN_MS;
    try {
      const body = this.#leaseMs === undefined ? {} : { leaseMs: this.#leaseMs };
      const lease = await this.#connection.request<LeaseInfo>("POST", `/api/leases/${this.info.lease.id}`, { body });
      nextMs = lease.renewAfterMs;
    } catch (error) {
      if (!(error instanceof SandkeeperError)) throw error;
      if (error.code === "lease_not_found") {
        this.lost = error;
        return;
      }
      nextMs = this.info.lease.renewAfterMs;
    }
    if (!this.#released) this.#renewIn(nextMs);
  }
}
