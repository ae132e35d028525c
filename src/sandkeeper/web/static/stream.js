// One event stream for all tabs of a browser: the tab that holds the lock reads it and broadcasts.
//
// It uses fetch instead of EventSource: fetch sends the token in a header, so no URL contains a
// secret, and it sees the response status, so a refusal is known immediately.

/** @import {Client} from "./client.js" */
/** @import {Message} from "./shapes.js" */

const SILENT_MS = 50000; // The server pings every 15 s; three missing pings mean a dead connection.
const RETRY_MIN_MS = 1000;
const RETRY_MAX_MS = 30000;

/** @typedef {{message?: (message: Message) => void, live?: (live: boolean) => void}} Listener */

/** @type {Map<string, Feed>} */
const feeds = new Map();

/**
 * Return the page's one feed of a path.
 * @param {Client} client
 * @param {string} path
 */
export function getFeed(client, path) {
  const name = `sandkeeper ${client.base}${path}`;
  let feed = feeds.get(name);
  if (!feed) feeds.set(name, (feed = new Feed(client, path, name)));
  return feed;
}

export class Feed {
  /** @type {Set<Listener>} */ #listeners = new Set();
  /** @type {AbortController|null} */ #run = null;
  /** @type {BroadcastChannel|null} */ #channel = null;
  #leading = false;
  #live = false;
  #lastId = "";

  /** @param {Client} client @param {string} path @param {string} name */
  constructor(client, path, name) {
    this.client = client;
    this.path = path;
    this.name = name;
    this.onVisibilityChange = () => this.#startOrStop();
  }

  get live() {
    return this.#live;
  }

  /** Whether it will soon be live, unless the server refuses. */
  get connecting() {
    return this.#run !== null && !this.#live;
  }

  /** @param {Listener} listener @returns {() => void} */
  subscribe(listener) {
    if (!this.#listeners.size) document.addEventListener("visibilitychange", this.onVisibilityChange);
    this.#listeners.add(listener);
    this.#startOrStop();
    return () => {
      this.#listeners.delete(listener);
      if (!this.#listeners.size) document.removeEventListener("visibilitychange", this.onVisibilityChange);
      this.#startOrStop();
    };
  }

  /** A hidden tab neither reads nor leads, so many hidden tabs cost nothing. */
  #startOrStop() {
    const wanted = this.#listeners.size > 0 && !document.hidden;
    if (wanted && !this.#run) this.#start();
    if (!wanted && this.#run) {
      this.#run.abort();
      this.#run = null;
      this.#channel?.close();
      this.#channel = null;
      this.#setLive(false);
    }
  }

  #start() {
    // Six open streams block an HTTP/1.1 origin silently. Without locks (no secure context) one
    // stream per browser cannot be guaranteed, so such a page polls.
    if (!navigator.locks || !window.BroadcastChannel) return;
    const run = (this.#run = new AbortController());
    const { signal } = run;
    this.#channel = new BroadcastChannel(this.name);
    this.#channel.onmessage = ({ data }) => this.#onMessage(data);
    this.#channel.postMessage({ hello: true });
    const lead = () => {
      if (signal.aborted) return undefined;
      this.#leading = true;
      return this.#lead(signal).finally(() => {
        if (this.#run === run || !this.#run) this.#leading = false;
      });
    };
    navigator.locks.request(this.name, { signal }, lead).catch(() => undefined);
  }

  /** @param {{hello?: true, live?: boolean, message?: Message}} data */
  #onMessage(data) {
    if (data.hello && this.#leading) this.#channel?.postMessage({ live: this.#live });
    if (data.live !== undefined && !this.#leading) this.#setLive(data.live);
    if (data.message) this.#deliver(data.message);
  }

  /** @param {boolean} live */
  #setLive(live) {
    if (this.#live === live) return;
    this.#live = live;
    for (const listener of [...this.#listeners]) listener.live?.(live);
  }

  /** @param {Message} message */
  #deliver(message) {
    if (message.id) this.#lastId = message.id;
    for (const listener of [...this.#listeners]) listener.message?.(message);
  }

  /** @param {AbortSignal} signal */
  async #lead(signal) {
    let wait = RETRY_MIN_MS;
    while (!signal.aborted) {
      const began = Date.now();
      let retryAfterMs = 0;
      try {
        await this.#read(signal);
      } catch (error) {
        retryAfterMs = /** @type {any} */ (error)?.retryAfterMs ?? 0;
      }
      if (signal.aborted) return;
      this.#setLive(false);
      this.#channel?.postMessage({ live: false });
      if (Date.now() - began > 60000) wait = RETRY_MIN_MS;
      await pause(Math.max(wait, Math.min(retryAfterMs, 60000)), signal);
      wait = Math.min(wait * 2, RETRY_MAX_MS);
    }
  }

  /** Read until the connection ends or is silent too long. @param {AbortSignal} signal */
  async #read(signal) {
    const connection = new AbortController();
    const disconnect = () => connection.abort();
    signal.addEventListener("abort", disconnect);
    let timer = setTimeout(disconnect, SILENT_MS);
    try {
      /** @type {Record<string, string>} */
      const headers = { Accept: "text/event-stream" };
      if (this.#lastId) headers["Last-Event-ID"] = this.#lastId;
      const response = await this.client.send("GET", this.path, { headers, signal: connection.signal });
      if (!response.body) return;
      this.#setLive(true);
      this.#channel?.postMessage({ live: true });
      const parser = new Parser((message) => {
        this.#channel?.postMessage({ message });
        this.#deliver(message);
      });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(disconnect, SILENT_MS);
        parser.push(value);
      }
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", disconnect);
      connection.abort();
    }
  }
}

/** Parse an event stream into messages; comment lines are the server's pings. */
export class Parser {
  #rest = "";
  /** @type {string[]} */ #data = [];
  #event = "";
  #id = "";

  /** @param {(message: Message) => void} emit */
  constructor(emit) {
    this.emit = emit;
  }

  /** @param {string} text */
  push(text) {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() ?? "";
    for (const line of lines) this.#line(line);
  }

  /** @param {string} line */
  #line(line) {
    if (line === "") return this.#end();
    const [, field, value = ""] = /^([^:]*):? ?(.*)$/.exec(line) ?? [];
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#event = value;
    else if (field === "id") this.#id = value;
    return undefined;
  }

  #end() {
    const text = this.#data.join("\n");
    const event = this.#event || "message";
    this.#data = [];
    this.#event = "";
    if (!text) return;
    try {
      this.emit({ id: this.#id, event, data: JSON.parse(text) });
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
    }
  }
}

/** @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
