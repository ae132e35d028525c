// Requests with retries, and event streams that resume.

import { invalidRequest, isRetryable, KeeperUnreachableError, SandkeeperError } from "./errors.js";
import { Client } from "./pane/client.js";
import type { Message, Token } from "./pane/shapes.js";
import { Parser } from "./pane/stream.js";

const BACKOFF_MS = [100, 400, 1600, 5000];
// The keeper pings every stream each 15 s by default: one that is silent this long is dead.
const SILENCE_MAX_MS = 60_000;
// A wake or a cold acquire responds only when it is done.
const RESPONSE_TIMEOUT_MS = 180_000;

/** How often and how long a request is retried. `attemptsMax: 1` disables retries. */
export interface RetryPolicy {
  attemptsMax?: number;
  /** The longest waiting time of one call: higher hides an outage, lower gives up on a restart. */
  waitMaxMs?: number;
}

export type Query = Record<string, string | number | boolean | readonly string[] | null | undefined>;

export interface RequestOptions {
  body?: unknown;
  content?: BodyInit;
  query?: Query;
  /** Add an idempotency key, the same in every attempt. */
  idempotent?: boolean;
  /** When false, an error response is final even if it is marked as retryable. */
  retryErrors?: boolean;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** 0 waits without a limit, for a large download. */
  timeoutMs?: number;
}

export class Connection {
  readonly #client: Client;
  readonly #attemptsMax: number;
  readonly #waitMaxMs: number;

  constructor(readonly url: string, key: Token, retry: RetryPolicy = {}) {
    if (!/^https?:\/\//.test(url)) throw invalidRequest(`The URL ${JSON.stringify(url)} must begin with http:// or https://.`);
    this.#client = new Client({ base: url, token: key });
    this.#attemptsMax = Math.max(1, retry.attemptsMax ?? 4);
    this.#waitMaxMs = retry.waitMaxMs ?? 30_000;
  }

  /** Send a request and return its JSON. */
  async request<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
    const response = await this.send(method, path, options);
    return (response.status === 204 ? undefined : await response.json()) as T;
  }

  /** Return a successful response. Throw the keeper's error, or KeeperUnreachableError. */
  async send(method: string, path: string, options: RequestOptions = {}): Promise<Response> {
    const headers = { ...options.headers, ...(options.idempotent ? { "Idempotency-Key": crypto.randomUUID() } : {}) };
    const deadline = Date.now() + this.#waitMaxMs;
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.#try(method, path, { ...options, headers });
      } catch (error) {
        if (!(error instanceof SandkeeperError)) throw error;
        const waitMs = delayOf(error, attempt);
        const isAnswer = !(error instanceof KeeperUnreachableError);
        const isFinal = attempt + 1 >= this.#attemptsMax || !isRetryable(error) || (isAnswer && options.retryErrors === false);
        if (isFinal || Date.now() + waitMs > deadline) throw error;
        await sleep(waitMs, options.signal);
      }
    }
  }

  async #try(method: string, path: string, options: RequestOptions): Promise<Response> {
    const { query, signal, timeoutMs = RESPONSE_TIMEOUT_MS, body, content, headers } = options;
    const limit = timeoutMs > 0 ? AbortSignal.timeout(timeoutMs) : null;
    const signals = [signal, limit].filter((one): one is AbortSignal => one instanceof AbortSignal);
    try {
      return await this.#client.send(method, path + encodeQuery(query), { body, content, headers, signal: AbortSignal.any(signals) });
    } catch (error) {
      if (error instanceof SandkeeperError || signal?.aborted) throw error;
      if (limit?.aborted) throw new KeeperUnreachableError(`${this.url} did not respond in time.`, false);
      throw new KeeperUnreachableError(`No keeper responds at ${this.url} (${reasonOf(error)}).`, true);
    }
  }

  /**
   * Yield the messages of an endless stream, and resume it where it was interrupted.
   *
   * Throw the keeper's error if it refuses the stream, and KeeperUnreachableError when the retries are used up.
   */
  async *stream(path: string, options: { query?: Query; after?: number; signal?: AbortSignal } = {}): AsyncGenerator<Message, void, undefined> {
    let last = options.after === undefined ? "" : String(options.after);
    for (let failures = 0; ; ) {
      let failure: SandkeeperError;
      try {
        const headers = { Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) };
        for await (const message of this.#read(path, headers, options)) {
          failures = 0;
          if (message.id) last = message.id;
          yield message;
        }
        failure = new KeeperUnreachableError("The stream ended.", true);
      } catch (error) {
        if (options.signal?.aborted) return;
        failure = error instanceof SandkeeperError ? error : new KeeperUnreachableError(`The stream was interrupted (${reasonOf(error)}).`, true);
      }
      failures += 1;
      if (failures >= this.#attemptsMax || !isRetryable(failure)) throw failure;
      try {
        await sleep(delayOf(failure, failures - 1), options.signal);
      } catch {
        return;
      }
    }
  }

  async *#read(path: string, headers: Record<string, string>, options: { query?: Query; signal?: AbortSignal }): AsyncGenerator<Message> {
    const connection = new AbortController();
    const disconnect = () => connection.abort();
    options.signal?.addEventListener("abort", disconnect, { once: true });
    let timer = setTimeout(disconnect, SILENCE_MAX_MS);
    try {
      if (options.signal?.aborted) return;
      const response = await this.#client.send("GET", path + encodeQuery(options.query), { headers, signal: connection.signal });
      if (!response.body) return;
      const waiting: Message[] = [];
      const parser = new Parser((message) => waiting.push(message));
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(disconnect, SILENCE_MAX_MS);
        parser.push(value);
        yield* waiting.splice(0);
      }
    } finally {
      clearTimeout(timer);
      options.signal?.removeEventListener("abort", disconnect);
      connection.abort();
    }
  }
}

/** Wait; throw the signal's reason when it is aborted first. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = () => (clearTimeout(timer), reject(signal?.reason));
    const timer = setTimeout(() => (signal?.removeEventListener("abort", stop), resolve()), ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Encode a name as one part of a path. A slash would end it, so such a name is an error. */
export function encodeName(name: string, what: string): string {
  if (!name || name.includes("/")) throw invalidRequest(`The id of a ${what} must not be empty or contain a slash.`);
  return encodeURIComponent(name);
}

function encodeQuery(query: Query = {}): string {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) parts.append(name, String(one));
  }
  return parts.size ? `?${parts}` : "";
}

/** Return the delay that the keeper named, or an exponential backoff with jitter. */
function delayOf(error: SandkeeperError, attempt: number): number {
  return error.retryAfterMs ?? (BACKOFF_MS[attempt] ?? 5000) * (0.75 + Math.random() / 2);
}

function reasonOf(error: unknown): string {
  const cause = error instanceof Error ? (error.cause ?? error) : error;
  return cause instanceof Error ? cause.message || cause.name : String(cause);
}
