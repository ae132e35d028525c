// <terminal-tab>: a shell in the sandbox. It connects again by itself after a lost connection, and
// then shows the same shell.

import { h, pathOf } from "../pane.js";
import { api } from "./api.js";
import { mayOperate, nothing } from "./base-element.js";
import { SandboxTab } from "./sandbox-tab.js";
import { translateStyles } from "./terminal-styles.js";
import { FLEET_WORDS } from "./words.js";

const RETRY_MIN_MS = 500;
const RETRY_MAX_MS = 10000;
const INPUT_MAX = 16384; // One message carries this much of a paste.
const BUFFERED_MAX = 65536; // The rest of a paste waits until the connection took what was sent.
const WAIT_MS = 20;

export class TerminalTab extends SandboxTab {
  #note = h("span", { class: "quiet", role: "status" });
  #again = h("button", { type: "button", hidden: true, onclick: () => this.#restart() });
  #screen = h("div", { class: "screen" });
  /** @type {any} */ #terminal = null;
  /** @type {WebSocket|null} */ #socket = null;
  /** @type {number|null} */ #pid = null;
  /** @type {Uint8Array[]} */ #input = [];
  #wait = RETRY_MIN_MS;
  #isOver = false;

  begin() {
    if (!mayOperate()) return void this.replaceChildren(nothing(FLEET_WORDS.noTerminal));
    // The shell is opened by a press: opening it wakes the sandbox and counts as its use.
    const open = h("button", { type: "button", class: "primary", onclick: () => (open.remove(), void this.#open()) }, "Open terminal");
    this.replaceChildren(h("section", { class: "card terminal" }, h("div", { class: "row" }, open, this.#again, this.#note), this.#screen));
    this.also(() => this.#close());
    return undefined;
  }

  async #open() {
    const sheet = h("link", { rel: "stylesheet", href: new URL("../vendor/xterm.css", import.meta.url).href });
    document.head.append(sheet);
    this.also(() => sheet.remove());
    const [{ Terminal }, { FitAddon }] = await Promise.all([import("../vendor/xterm.mjs"), import("../vendor/xterm-fit.mjs")]);
    if (!this.isConnected) return;
    this.also(translateStyles());
    const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
    const theme = isDark ? { background: "#15171a", foreground: "#e9eaec", cursor: "#e9eaec" } : { background: "#ffffff", foreground: "#1b1d21", cursor: "#1b1d21", selectionBackground: "#2456d644" };
    const terminal = (this.#terminal = new Terminal({ fontFamily: "ui-monospace, SF Mono, Menlo, monospace", fontSize: 13, scrollback: 5000, screenReaderMode: true, theme, minimumContrastRatio: 4.5 }));
    const fit = new FitAddon();
    terminal.loadAddon(fit);
    terminal.open(this.#screen);
    fit.fit();
    const watcher = new ResizeObserver(() => fit.fit());
    watcher.observe(this.#screen);
    this.also(() => (watcher.disconnect(), terminal.dispose()));
    const encoder = new TextEncoder();
    terminal.onData((/** @type {string} */ text) => this.#send(encoder.encode(text)));
    terminal.onBinary((/** @type {string} */ text) => this.#send(Uint8Array.from(text, (one) => one.charCodeAt(0))));
    terminal.onResize((/** @type {{cols: number, rows: number}} */ size) => this.#say(size));
    terminal.focus();
    this.#connect();
  }

  #connect() {
    const { cols, rows } = this.#terminal;
    const query = new URLSearchParams({ cols, rows, ...(this.#pid ? { pid: String(this.#pid) } : {}) });
    const socket = (this.#socket = new WebSocket(`${api.base}${pathOf(this.project, "terminal")}?${query}`.replace(/^http/, "ws")));
    socket.binaryType = "arraybuffer";
    this.#note.textContent = FLEET_WORDS.connecting;
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.#hear(JSON.parse(data)) : this.#terminal?.write(new Uint8Array(data)));
    socket.onclose = () => this.#lose(socket);
  }

  /** @param {{pid?: number, exit?: number, waking?: boolean, error?: {message: string, hint: string}}} message */
  #hear({ pid, exit, waking, error }) {
    if (waking) this.#note.textContent = FLEET_WORDS.wakingForTerminal;
    if (pid) {
      if (this.#pid && this.#pid !== pid) this.#terminal.reset();
      [this.#pid, this.#wait] = [pid, RETRY_MIN_MS];
      this.#note.textContent = "";
      this.#say({ cols: this.#terminal.cols, rows: this.#terminal.rows });
      void this.#drain();
    }
    if (exit !== undefined) this.#finish(`Exit ${exit}`, "New terminal");
    if (error) this.#finish(`${error.message} ${error.hint}`, "Try again");
  }

  /** @param {string} note @param {string} label */
  #finish(note, label) {
    [this.#isOver, this.#pid, this.#input] = [true, null, []];
    this.#note.textContent = note;
    this.#again.textContent = label;
    this.#again.hidden = false;
  }

  #restart() {
    this.#isOver = false;
    this.#again.hidden = true;
    this.#terminal.reset();
    this.#connect();
    this.#terminal.focus();
  }

  /** @param {WebSocket} socket */
  #lose(socket) {
    if (this.#socket !== socket || this.#isOver) return;
    this.#note.textContent = FLEET_WORDS.connectionLost;
    setTimeout(() => this.isConnected && this.#socket === socket && this.#connect(), this.#wait);
    this.#wait = Math.min(this.#wait * 2, RETRY_MAX_MS);
  }

  /** @param {object} message */
  #say(message) {
    if (this.#socket?.readyState === WebSocket.OPEN && this.#pid) this.#socket.send(JSON.stringify(message));
  }

  /** @param {Uint8Array} bytes */
  #send(bytes) {
    if (this.#isOver) return;
    const isFirst = !this.#input.length;
    for (let at = 0; at < bytes.length; at += INPUT_MAX) this.#input.push(bytes.subarray(at, at + INPUT_MAX));
    if (isFirst) void this.#drain();
  }

  async #drain() {
    const socket = this.#socket;
    while (this.#input.length && socket && socket === this.#socket && socket.readyState === WebSocket.OPEN && this.#pid) {
      if (socket.bufferedAmount < BUFFERED_MAX) socket.send(/** @type {any} */ (this.#input.shift()));
      else await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
    }
  }

  #close() {
    this.#isOver = true;
    this.#socket?.close();
    this.#socket = null;
  }
}

customElements.define("terminal-tab", TerminalTab);
