/**
 * Asks what a rebuild costs, asks the person, and rebuilds. Gives whether it was done.
 * @param {JobClient} jobs
 * @param {string} id
 * @param {ShadowRoot|HTMLElement} root
 * @param {() => void} [begun]
 */
export function rebuildJob(jobs: JobClient, id: string, root: ShadowRoot | HTMLElement, begun?: () => void): Promise<boolean>;
/**
 * A job's view is the sandbox's in other words: paused offers Resume, whatever has ended Rebuild.
 * @param {Model} model
 * @param {string} pageOrigin
 * @returns {View}
 */
export function describeJob(model: Model, pageOrigin: string): View;
/** @param {ShadowRoot|HTMLElement} root @param {string} question @returns {Promise<boolean>} */
export function confirm(root: ShadowRoot | HTMLElement, question: string): Promise<boolean>;
export namespace JOB_WORDS {
    let asleep: string;
    let resume: string;
    let resuming: string;
    let failed: string;
    let expired: string;
    let unreachable: string;
    let rebuild: string;
    let confirm: string;
}
/**
 * @typedef {object} Job
 * @property {string} job_id
 * @property {string} status
 * @property {string} [stage_label]
 * @property {boolean} sandbox_paused
 * @property {string|null} [sandbox_state]
 * @property {string|null} [pause_note]
 * @property {string|null} [preview_url]
 * @property {string|null} [sandbox_expires_at]
 * @property {string|null} [build_version]
 * @property {string|null} [debug_id]
 * @property {string|null} [error_message]
 */
/** The routes of jobs. */
export class JobClient {
    /** @param {Client} client */
    constructor(client: Client);
    client: Client;
    /** @param {string} id @returns {Promise<Job>} */
    get(id: string): Promise<Job>;
    /** @param {string} id @returns {Promise<{preview_url: string, sandbox_id: string}>} */
    resume(id: string): Promise<{
        preview_url: string;
        sandbox_id: string;
    }>;
    /** @param {string} id @param {string} [confirmation] */
    rebuild(id: string, confirmation?: string): Promise<any>;
    /** @returns {Promise<{jobs: Job[]}>} */
    list(): Promise<{
        jobs: Job[];
    }>;
}
export class JobFollower extends Follower {
    id: string;
    jobs: JobClient;
    /** Resuming answers when the preview is there, or says why it is not. */
    askToWake(): Promise<{
        preview_url: string;
        sandbox_id: string;
    }>;
    /**
     * Rebuilds after the person has agreed to the cost.
     * @param {ShadowRoot|HTMLElement} root Where the question is asked.
     */
    rebuild(root: ShadowRoot | HTMLElement): Promise<void>;
}
export type Job = {
    job_id: string;
    status: string;
    stage_label?: string | undefined;
    sandbox_paused: boolean;
    sandbox_state?: string | null | undefined;
    pause_note?: string | null | undefined;
    preview_url?: string | null | undefined;
    sandbox_expires_at?: string | null | undefined;
    build_version?: string | null | undefined;
    debug_id?: string | null | undefined;
    error_message?: string | null | undefined;
};
import type { Model } from "./shapes.js";
import type { View } from "./shapes.js";
import type { Client } from "./client.js";
import { Follower } from "./pane.js";
