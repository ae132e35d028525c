/** @import {ClientOptions, Model, Status, View} from "./shapes.js" */
/**
 * @typedef {object} Sandbox
 * @property {Status|null} status What the server said last; null until it said anything.
 * @property {View} view What to show: label, caption, badge, buttons, address of the frame.
 * @property {boolean} live Whether changes arrive by themselves.
 * @property {() => Promise<void>} wake Makes it run, whatever it was.
 * @property {() => Promise<void>} refresh Asks the provider what is true.
 * @property {() => Promise<void>} keepAwake Says that somebody still needs it.
 */
/**
 * @param {string} project
 * @param {ClientOptions & {stream?: "project"|"fleet"|"off"}} [options] `token` is read anew with
 *   every render, so a token that changes does not start over.
 * @returns {Sandbox}
 */
export function useSandbox(project: string, { base, token, stream }?: ClientOptions & {
    stream?: "project" | "fleet" | "off";
}): Sandbox;
export type Sandbox = {
    /**
     * What the server said last; null until it said anything.
     */
    status: Status | null;
    /**
     * What to show: label, caption, badge, buttons, address of the frame.
     */
    view: View;
    /**
     * Whether changes arrive by themselves.
     */
    live: boolean;
    /**
     * Makes it run, whatever it was.
     */
    wake: () => Promise<void>;
    /**
     * Asks the provider what is true.
     */
    refresh: () => Promise<void>;
    /**
     * Says that somebody still needs it.
     */
    keepAwake: () => Promise<void>;
};
import type { ClientOptions } from "./shapes.js";
import type { Status } from "./shapes.js";
import type { View } from "./shapes.js";
