/** @param {string} project @param {string} rest */
export function pathOf(project: string, rest: string): string;
/** @import {ClientOptions, State, Status, Token} from "./shapes.js" */
/** What the server answered instead, in the words of its problem+json. */
export class ProblemError extends Error {
    /** @param {number} status @param {{code?: string, detail?: unknown, title?: string, hint?: string, retryable?: boolean, error_type?: string}} problem @param {number|null} retryAfterMs */
    constructor(status: number, problem: {
        code?: string;
        detail?: unknown;
        title?: string;
        hint?: string;
        retryable?: boolean;
        error_type?: string;
    }, retryAfterMs?: number | null);
    status: number;
    code: string;
    hint: string;
    retryAfterMs: number | null;
    body: {
        code?: string;
        detail?: unknown;
        title?: string;
        hint?: string;
        retryable?: boolean;
        error_type?: string;
    };
}
export class Client {
    /** @param {ClientOptions} [options] */
    constructor({ base, token }?: ClientOptions);
    base: string;
    /** @type {Token} */
    token: Token;
    /** @type {Map<string, {tag: string, body: unknown}>} */
    seen: Map<string, {
        tag: string;
        body: unknown;
    }>;
    /**
     * Sends one request, once more with a fresh token when the first has expired.
     * @param {string} method
     * @param {string} path
     * @param {{body?: unknown, headers?: Record<string, string>, signal?: AbortSignal, keepalive?: boolean}} [options]
     * @returns {Promise<Response>}
     */
    send(method: string, path: string, options?: {
        body?: unknown;
        headers?: Record<string, string>;
        signal?: AbortSignal;
        keepalive?: boolean;
    }): Promise<Response>;
    /** @param {string} method @param {string} path @param {unknown} [body] @param {Record<string, string>} [headers] @returns {Promise<any>} */
    json(method: string, path: string, body?: unknown, headers?: Record<string, string>): Promise<any>;
    /** Reads the status; a 304 costs no body. @param {string} project @returns {Promise<Status>} */
    status(project: string): Promise<Status>;
    /** Makes the sandbox run, whatever it was; answers when it does, or after a while. @param {string} project @returns {Promise<any>} */
    wake(project: string): Promise<any>;
    /** Resumes a sleeping sandbox ahead of its user, within the server's budget: for a landing page. Never throws for what is not done. @param {string} project @returns {Promise<{project: string, answer: "started"|"under_way"|"awake"|"refused", reason: string}>} */
    warm(project: string): Promise<{
        project: string;
        answer: "started" | "under_way" | "awake" | "refused";
        reason: string;
    }>;
    /** Asks the provider what is true. @param {string} project @returns {Promise<Status>} */
    verify(project: string): Promise<Status>;
    /** @param {string} project @param {"pause"|"extend"} verb @param {unknown} [body] */
    act(project: string, verb: "pause" | "extend", body?: unknown): Promise<any>;
    /** Tells that somebody did something, or merely looked. @param {string} project @param {{kind?: "intent"|"work"|"passive", source?: string, pageView?: boolean}} body */
    activity(project: string, body: {
        kind?: "intent" | "work" | "passive";
        source?: string;
        pageView?: boolean;
    }): Promise<Response>;
    /** Tells that what was shown has been proven wrong. @param {string} project @param {{shown: State, actual?: State, evidence?: string}} report */
    mismatch(project: string, report: {
        shown: State;
        actual?: State;
        evidence?: string;
    }): Promise<Response>;
    /** The app's last lines. @param {string} project @returns {Promise<string[]>} */
    log(project: string): Promise<string[]>;
}
import type { Token } from "./shapes.js";
import type { Status } from "./shapes.js";
import type { State } from "./shapes.js";
import type { ClientOptions } from "./shapes.js";
