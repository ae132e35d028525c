/**
 * The feed of an address; one for all who ask in this page.
 * @param {Client} client
 * @param {string} path
 */
export function feedOf(client: Client, path: string): Feed;
export class Feed {
    /** @param {Client} client @param {string} path @param {string} name */
    constructor(client: Client, path: string, name: string);
    client: Client;
    path: string;
    name: string;
    turn: () => void;
    get live(): boolean;
    /** @param {Listener} listener @returns {() => void} */
    subscribe(listener: Listener): () => void;
    #private;
}
/** Cuts the text of an event stream into messages; comments are the server's pings. */
export class Parser {
    /** @param {(message: Message) => void} emit */
    constructor(emit: (message: Message) => void);
    emit: (message: Message) => void;
    /** @param {string} text */
    take(text: string): void;
    #private;
}
export type Listener = {
    message?: (message: Message) => void;
    live?: (live: boolean) => void;
};
import type { Client } from "./client.js";
import type { Message } from "./shapes.js";
