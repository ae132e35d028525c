/** @param {unknown} error @returns {Fault} */
export function faultOf(error: unknown): Fault;
export class Follower {
    /** @param {Client} client @param {string} project @param {{stream?: "project"|"fleet"|"off"}} [options] */
    constructor(client: Client, project: string, { stream }?: {
        stream?: "project" | "fleet" | "off";
    });
    client: Client;
    project: string;
    stream: "project" | "fleet" | "off";
    /** @type {Model} */
    model: Model;
    /** @param {() => void} listener Called after every change of the model. */
    subscribe(listener: () => void): () => undefined;
    start(): void;
    stop(): void;
    /** @param {Happening} happening */
    take(happening: Happening): void;
    /** Reads the status once more; never wakes anything. */
    refresh(): Promise<void>;
    /** Asks the provider itself: the user's Refresh and Retry. */
    verify(): Promise<void>;
    /** Asks for a wake; asking again while one is under way does nothing. */
    wake(): Promise<void>;
    /** Gives up waiting for a wake that takes too long, and asks again. */
    wakeAgain(): Promise<void>;
    /** Keeps the sandbox awake: a person says that they still need it. */
    keepAwake(): Promise<void>;
    /** Tells that a person does something here; cheap to call often. @param {string} source */
    touch(source: string): void;
    /** @param {Status} shown @param {Status|null} actual @param {string} evidence */
    reportMismatch(shown: Status, actual: Status | null, evidence: string): void;
    describe(): View;
    /** The way out of a wake that takes too long. @returns {View["offers"]} */
    lateOffers(): View["offers"];
    feedPath(): string;
    read(): Promise<Status>;
    prove(): Promise<Status>;
    /** @returns {Promise<any>} */
    askToWake(): Promise<any>;
    viewed(): Promise<void>;
    readLog(): Promise<string[]>;
    #private;
}
import type { Fault } from "./shapes.js";
import type { Client } from "./client.js";
import type { Model } from "./shapes.js";
import type { Happening } from "./shapes.js";
import type { Status } from "./shapes.js";
import type { View } from "./shapes.js";
