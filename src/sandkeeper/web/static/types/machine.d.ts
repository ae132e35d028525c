/**
 * Gives the next model; the same object when nothing changed, so that nothing is drawn again.
 * @param {Model} model
 * @param {Happening} happening
 * @returns {Model}
 */
export function reduce(model: Model, happening: Happening): Model;
/** @param {Model} model */
export function isWaking(model: Model): boolean;
/**
 * How long to wait until the next poll; null means that nothing is expected to change by itself.
 * @param {Model} model
 */
export function pollAfterMs(model: Model): number | null;
/**
 * The address to show, or null. A preview of the page's own origin is refused: inside the frame it
 * could reach into the page.
 * @param {Status|null} status
 * @param {string} pageOrigin
 */
export function frameUrl(status: Status | null, pageOrigin: string): string | null;
/**
 * Says what to show. A preview of `pageOrigin` is refused.
 * @param {Model} model
 * @param {string} pageOrigin
 * @returns {View}
 */
export function describe(model: Model, pageOrigin: string): View;
/** @param {Action} action @param {string} [label] */
export function offer(action: Action, label?: string): {
    action: Action;
    label: string;
};
/**
 * When the sandbox goes to sleep by itself, in epoch milliseconds, or null.
 * @param {Status|null} status
 */
export function sleepsAt(status: Status | null): number | null;
/**
 * A wake is overdue after three times its usual time; without experience after 30 s.
 * @param {Waking|null} waking
 * @param {number} elapsedMs
 */
export function isOverdue(waking: Waking | null, elapsedMs: number): boolean;
/**
 * `just now`, `42 s`, `4 m 10 s`, `2 h 5 m`, `3 d`.
 * @param {number} ms
 */
export function renderSpan(ms: number): string;
/** @param {number} ms */
export function renderAge(ms: number): string;
/** @import {Action, Fault, Happening, Model, State, Status, View, Waking} from "./shapes.js" */
/** @type {Readonly<Record<State, {label: string, caption: string, badge: string, icon: string, actions: Action[], pollAfterMs: number|null}>>} */
export const STATES: Readonly<Record<State, {
    label: string;
    caption: string;
    badge: string;
    icon: string;
    actions: Action[];
    pollAfterMs: number | null;
}>>;
export namespace WAKING {
    let label: string;
    let caption: string;
    let badge: string;
    let icon: string;
    let pollAfterMs: number;
}
/** @type {Model} */
export const BEGINNING: Model;
import type { Model } from "./shapes.js";
import type { Happening } from "./shapes.js";
import type { Status } from "./shapes.js";
import type { View } from "./shapes.js";
import type { Action } from "./shapes.js";
import type { Waking } from "./shapes.js";
import type { State } from "./shapes.js";
