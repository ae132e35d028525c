// The fetch client: one method per verb, errors as one class, tokens renewed once when they expire.

/** @import {ClientOptions, State, Status, Token} from "./shapes.js" */

/** What the server answered instead, in the words of its problem+json. */
export class ProblemError extends Error {
  /** @param {number} status @param {{code?: string, detail?: unknown, title?: string, hint?: string, retryable?: boolean, error_type?: string}} problem @param {number|null} retryAfterMs */
  constructor(status, problem, retryAfterMs = null) {
    super(typeof problem.detail === "string" ? problem.detail : problem.title || `The server answered ${status}.`);
    this.name = "ProblemError";
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
    this.seen = new Map();
  }

  /**
   * Sends one request, once more with a fresh token when the first has expired.
   * @param {string} method
   * @param {string} path
   * @param {{body?: unknown, headers?: Record<string, string>, signal?: AbortSignal, keepalive?: boolean}} [options]
   * @returns {Promise<Response>}
   */
  async send(method, path, options = {}) {
    for (let attempt = 0; ; attempt++) {
      const token = typeof this.token === "function" ? await this.token(attempt > 0) : this.token;
      /** @type {Record<string, string>} */
      const headers = { Accept: "application/json", ...options.headers };
      if (token) headers.Authorization = `Bearer ${token}`;
      if (options.body !== undefined) headers["Content-Type"] = "application/json";
      const response = await fetch(this.base + path, {
        method,
        headers,
        body: options.body === undefined ? null : JSON.stringify(options.body),
        cache: "no-store",
        credentials: this.base ? "omit" : "same-origin",
        signal: options.signal ?? null,
        keepalive: options.keepalive ?? false,
      });
      if (response.status === 401 && attempt === 0 && typeof this.token === "function") continue;
      if (response.ok || response.status === 304) return response;
      throw await problemOf(response);
    }
  }

  /** @param {string} method @param {string} path @param {unknown} [body] @param {Record<string, string>} [headers] @returns {Promise<any>} */
  async json(method, path, body, headers) {
    const response = await this.send(method, path, { body, headers });
    return response.status === 204 ? null : response.json();
  }

  /** Reads the status; a 304 costs no body. @param {string} project @returns {Promise<Status>} */
  async status(project) {
    const path = pathOf(project, "status");
    const known = this.seen.get(path);
    const response = await this.send("GET", path, { headers: known ? { "If-None-Match": known.tag } : {} });
    if (response.status === 304 && known) return /** @type {Status} */ (known.body);
    const body = await response.json();
    const tag = response.headers.get("ETag");
    if (tag) this.seen.set(path, { tag, body });
    return body;
  }

  /** Makes the sandbox run, whatever it was; answers when it does, or after a while. @param {string} project @returns {Promise<any>} */
  wake(project) {
    return this.json("POST", pathOf(project, "wake?wait=20"), undefined, { "Idempotency-Key": crypto.randomUUID?.() ?? String(Math.random()) });
  }

  /** Resumes a sleeping sandbox ahead of its user, within the server's budget: for a landing page. Never throws for what is not done. @param {string} project @returns {Promise<{project: string, answer: "started"|"under_way"|"awake"|"refused", reason: string}>} */
  warm(project) {
    return this.json("POST", pathOf(project, "warm"), {});
  }

  /** Asks the provider what is true. @param {string} project @returns {Promise<Status>} */
  verify(project) {
    return this.json("POST", pathOf(project, "verify"), {});
  }

  /** @param {string} project @param {"pause"|"extend"} verb @param {unknown} [body] */
  act(project, verb, body = {}) {
    return this.json("POST", pathOf(project, verb), body);
  }

  /** Tells that somebody did something, or merely looked. @param {string} project @param {{kind?: "intent"|"work"|"passive", source?: string, pageView?: boolean}} body */
  activity(project, body) {
    return this.send("POST", pathOf(project, "activity"), { body, keepalive: true });
  }

  /** Tells that what was shown has been proven wrong. @param {string} project @param {{shown: State, actual?: State, evidence?: string}} report */
  mismatch(project, report) {
    return this.send("POST", pathOf(project, "mismatch"), { body: report, keepalive: true });
  }

  /** The app's last lines. @param {string} project @returns {Promise<string[]>} */
  async log(project) {
    return (await this.json("GET", pathOf(project, "log?lines=20"))).lines;
  }
}

/** @param {string} project @param {string} rest */
export function pathOf(project, rest) {
  return `/api/sandboxes/${encodeURIComponent(project)}${rest ? `/${rest}` : ""}`;
}

/** @param {Response} response */
async function problemOf(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // A proxy's page in between says nothing that a person could use.
  }
  const seconds = Number(response.headers.get("Retry-After"));
  return new ProblemError(response.status, body, seconds > 0 ? seconds * 1000 : null);
}
