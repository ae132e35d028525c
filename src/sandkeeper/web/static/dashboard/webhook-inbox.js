// <webhook-inbox>: webhook deliveries from the provider and their outcomes.

import { h } from "../pane.js";
import { api } from "./api.js";
import { BaseElement, link, renderProblem, state, when } from "./base-element.js";
import { figure } from "./health-page.js";

/** @import {Delivery} from "./api.js" */

const REFRESH_MS = 15000;
/** @type {Record<string, string>} */
const BADGES = { changed: "green", confirmed: "green", duplicate: "gray", older: "gray", ended: "gray", ignored: "gray", unknown: "amber", foreign: "amber" };
const HEADS = ["Received", "Type", "Outcome", "Instance", "Lag", "Delivery"];

export class WebhookInbox extends BaseElement {
  #body = h("tbody");
  #older = h("button", { type: "button", hidden: true, onclick: () => void this.#show(this.#cursor) }, "Older");
  #place = h("div");
  /** @type {string|null} */ #cursor = null;
  #paged = false;

  begin() {
    this.replaceChildren(h("div", { class: "heading" }, h("h1", {}, "Webhook inbox")), this.#place, this.#older);
    void this.#show(null);
    // The first page refreshes; older pages stay as they are.
    this.every(REFRESH_MS, () => this.#paged || void this.#show(null));
  }

  /** @param {string|null} cursor */
  async #show(cursor) {
    try {
      const page = await api.deliveries(cursor);
      this.#paged = cursor !== null;
      if (!cursor) this.#body.replaceChildren();
      this.#body.append(...page.items.map(renderDelivery));
      this.#cursor = page.nextCursor;
      this.#older.hidden = !page.nextCursor;
      const empty = h("p", { class: "quiet" }, "No delivery yet. ", h("code", {}, "sandkeeper webhook register URL"), " subscribes to the provider's events; without it Sandkeeper polls them.");
      this.#place.replaceChildren(this.#body.childElementCount
        ? h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Deliveries" }, h("table", {}, h("caption", { class: "unseen" }, "Deliveries"), h("thead", {}, h("tr", {}, ...HEADS.map((head) => h("th", { scope: "col" }, head)))), this.#body))
        : empty);
    } catch (error) {
      this.#place.replaceChildren(renderProblem(error, () => void this.#show(cursor)));
    }
  }
}

/** @param {Delivery} one */
function renderDelivery(one) {
  const cells = [
    when(one.receivedAt), one.type ?? "–", state(BADGES[one.outcome] ?? "red", one.outcome.replaceAll("_", " ")),
    one.instanceId ? link(`/?search=${encodeURIComponent(one.instanceId)}`, one.instanceId) : "–",
    one.lagMs === null ? "–" : figure(one.lagMs, "ms"), h("code", { title: one.detail ?? "" }, (one.deliveryId ?? one.eventId ?? "–").slice(0, 12)),
  ];
  return h("tr", {}, ...cells.map((cell) => h("td", {}, cell)));
}

customElements.define("webhook-inbox", WebhookInbox);
