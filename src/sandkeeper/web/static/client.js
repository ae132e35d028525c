// The fetch client: one method per route, one error class, expired tokens renewed once.
// The npm package `sandkeeper` (clients/typescript) is built on this very file.

/** @import {ClientOptions, State, Status, Token} from "./shapes.js" */

/** An error response of the server (problem+json). */
export class SandkeeperError extends Error {
  /** @param {number} status @param {{code?: string, detail?: unknown, title?: string, hint?: string, retryable?: boolean, error_type?: string}} problem @param {number|null} retryAfterMs */
  constructor(status, problem, retryAfterMs = null) {
    const detail = /** @type {any} */ (problem.detail);
    super((typeof detail === "string" ? detail : detail?.message) || problem.title || `The server answered ${status}.`);
    this.name = "SandkeeperError";
    this.status = status;
    this.code = problem.code || problem.error_type || `http_${status}`;
    this.hint = problem.hint || "";
    this.retryAfterMs = retryAfterMs;
    this.body = problem;
  }
}

export class Client {
  /** @param {ClientOptions} [options] */
  constructor({ base = "", token = null } = {}) {
    this.base = base.replace(/\/$/, "");
    /** @type {Token} */
    this.token = token;
    /** @type {Map<string, {tag: string, body: unknown}>} */
    this.cache = new Map();
  }

  /**
   * Send a request; retry once with a fresh token if the first has expired.
   * @param {string} method
   * @param {string} path
   * @param {{body?: unknown, content?: BodyInit, headers?: Record<string, string>, signal?: AbortSignal, keepalive?: boolean}} [options] `body` is sent as JSON, `content` as it is.
   * @returns {Promise<Response>}
   */
  async send(method, path, options = {}) {
    for (let attempt = 0; ; attempt++) {
      const token = typeof this.token === "function" ? await this.token(attempt > 0) : this.token;
      /** @type {Record<string, string>} */
      const headers = { Accept: "application/json", ...options.headers };
      if (token) headers.Authorization = `Bearer ${token}`;
      if (options.body) headers["Content-Type"] = "application/json";
      const response = await fetch(this.base + path, {
        method,
        headers,
        body: options.content ?? JSON.stringify(options.body),
        cache: "no-store",
        signal: options.signal,
        keepalive: options.keepalive,
      });
      if (response.status === 401 && attempt === 0 && typeof this.token === "function") continue;
      if (response.ok || response.status === 304) return response;
      throw await readProblem(response);
    }
  }

  /** @param {string} method @param {string} path @param {unknown} [body] @param {Record<string, string>} [headers] @returns {Promise<any>} */
  async json(method, path, body, headers) {
    const response = await this.send(method, path, { body, headers });
    return response.status === 204 ? null : response.json();
  }

  /** Read the status; a 304 response is answered from the cache. @param {string} project @returns {Promise<Status>} */
  async status(project) {
    const path = pathOf(project, "status");
    const known = this.cache.get(path);
    const response = await this.send("GET", path, { headers: known && { "If-None-Match": known.tag } });
    if (response.status === 304) return /** @type {Status} */ (known?.body);
    const body = await response.json();
    const tag = response.headers.get("ETag");
    if (tag) this.cache.set(path, { tag, body });
    return body;
  }

  /** Wake the sandbox from any state; resolves when it runs, or after 20 s. @param {string} project @returns {Promise<any>} */
  wake(project) {
    return this.json("POST", pathOf(project, "wake?wait=20"), undefined, { "Idempotency-Key": crypto.randomUUID?.() ?? String(Math.random()) });
  }

  /** Resume a paused sandbox before its user needs it, within the server's budget: for a landing page. A refusal is a result, not an error. @param {string} project @returns {Promise<{project: string, result: "started"|"under_way"|"awake"|"refused", reason: string}>} */
  warm(project) {
    return this.json("POST", pathOf(project, "warm"), {});
  }

  /** Check the state with the provider. @param {string} project @returns {Promise<Status>} */
  verify(project) {
    return this.json("POST", pathOf(project, "verify"), {});
  }

  /** @param {string} project @param {"pause"|"extend"} verb @param {unknown} [body] */
  act(project, verb, body = {}) {
    return this.json("POST", pathOf(project, verb), body);
  }

  /** Report user activity or a page view. @param {string} project @param {{kind?: "intent"|"work"|"passive", source?: string, pageView?: boolean}} body */
  activity(project, body) {
    return this.send("POST", pathOf(project, "activity"), { body, keepalive: true });
  }

  /** Report that the page showed a wrong state. @param {string} project @param {{shown: State, actual?: State, evidence?: string}} report */
  reportMismatch(project, report) {
    return this.send("POST", pathOf(project, "report-mismatch"), { body: report, keepalive: true });
  }

  /** Read the last lines of the app's log, or why there are none. @param {string} project @returns {Promise<{lines: string[], note: string}>} */
  log(project) {
    return this.json("GET", pathOf(project, "log?lines=20"));
  }
}

/** @param {string} project @param {string} rest */
export function pathOf(project, rest) {
  return `/api/sandboxes/${encodeURIComponent(project)}${rest ? `/${rest}` : ""}`;
}

/** @param {Response} response */
async function readProblem(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // A proxy's error page has no detail worth showing.
  }
  const seconds = Number(response.headers.get("Retry-After"));
  return new SandkeeperError(response.status, body, seconds * 1000 || null);
}
