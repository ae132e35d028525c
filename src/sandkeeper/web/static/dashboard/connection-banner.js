// <connection-banner>: says on every page that the server, or a provider, does not answer.

import { getFeed, h, SandkeeperError } from "../pane.js";
import { api } from "./api.js";
import { BaseElement, lasting, link, when } from "./base-element.js";
import { FLEET_WORDS } from "./words.js";

/** @import {HealthPart, Summary} from "./api.js" */

const RETRY_MS = 3000;

export class ConnectionBanner extends BaseElement {
  #heardAt = new Date().toISOString();
  #lost = false;
  #drawn = "";
  /** @type {HealthPart[]} */ #silent = [];

  begin() {
    this.setAttribute("role", "status");
    this.on(document, "fleet-summary", (event) => this.#hear(event.detail));
    this.on(document, "fleet-silent", (event) => this.#miss(event.detail));
    // A stream that ends is the first sign of a server that went away.
    const feed = getFeed(api, "/api/fleet/events");
    this.also(feed.subscribe({ message: () => (this.#heardAt = new Date().toISOString()), live: (live) => live || this.#ask() }));
    this.every(RETRY_MS, () => this.#lost && this.#ask());
  }

  #ask() {
    void /** @type {any} */ (document.querySelector("fleet-health"))?.refresh();
  }

  /** @param {Summary} summary */
  #hear({ health }) {
    this.#heardAt = new Date().toISOString();
    this.#lost = false;
    this.#silent = health.parts.filter((part) => part.state === "bad" && part.since && part.name.startsWith("provider:"));
    this.#draw();
  }

  /** @param {unknown} error */
  #miss(error) {
    // An answer, even a refusal, came from a server; one of these from what stands before it.
    if (error instanceof SandkeeperError && ![502, 503, 504].includes(error.status)) return;
    this.#lost = true;
    this.#draw();
  }

  #draw() {
    const drawn = JSON.stringify([this.#lost && this.#heardAt, this.#silent]);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    if (this.#lost) return void this.replaceChildren(h("div", { class: "banner", "data-badge": "yellow" }, h("span", { class: "dot" }), h("b", {}, FLEET_WORDS.connectionLost), " ", h("span", {}, "Last update ", when(this.#heardAt))));
    this.replaceChildren(...this.#silent.map((part) => h("div", { class: "banner", "data-badge": "red" }, h("span", { class: "dot" }), h("b", {}, part.title), " ", h("span", {}, part.finding, " (", lasting(part.since ?? ""), ")"), link("/health", "What to do"))));
    return undefined;
  }
}

customElements.define("connection-banner", ConnectionBanner);
