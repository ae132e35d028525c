// What every part of the dashboard shares: a life that ends with its element, and plain words for
// time, amounts and faults.

import { BEGINNING, describe, faultOf, feedOf, h, renderAge, renderSpan } from "../pane.js";
import { api } from "./api.js";

/** @import {Message, Status} from "../shapes.js" */

/** An element whose timers and streams end with it. */
export class Part extends HTMLElement {
  /** @type {(() => void)[]} */ #ends = [];

  connectedCallback() {
    this.begin();
  }

  disconnectedCallback() {
    for (const end of this.#ends.splice(0)) end();
  }

  /** What the part does when it is shown. */
  begin() {}

  /** @param {number} ms @param {() => void} act Called while the page is seen. */
  every(ms, act) {
    const timer = setInterval(() => document.hidden || act(), ms);
    this.#ends.push(() => clearInterval(timer));
  }

  /** Follows the fleet's stream. @param {(message: Message) => void} message @param {(live: boolean) => void} [live] */
  follow(message, live = () => undefined) {
    const feed = feedOf(api, "/api/fleet/events");
    this.#ends.push(feed.subscribe({ message, live }));
    return feed;
  }

  /** @param {EventTarget} target @param {string} name @param {(event: any) => void} act */
  on(target, name, act) {
    target.addEventListener(name, act);
    this.#ends.push(() => target.removeEventListener(name, act));
  }

  /**
   * Loads something into a place: says that it loads, or what went wrong with a way to try again.
   * @template T
   * @param {HTMLElement} place
   * @param {() => Promise<T>} ask
   * @param {(answer: T) => (Node|string)[]} render
   */
  async load(place, ask, render) {
    if (!place.childElementCount) place.replaceChildren(h("p", { class: "quiet" }, "Loading…"));
    try {
      const answer = await ask();
      if (this.isConnected) place.replaceChildren(...render(answer));
    } catch (error) {
      if (!this.isConnected) return;
      place.replaceChildren(renderFault(error, () => (place.replaceChildren(), this.load(place, ask, render))));
    }
  }
}

/** @param {unknown} error @param {() => void} [again] */
export function renderFault(error, again) {
  const fault = faultOf(error);
  return h("div", { class: "fault", role: "alert" },
    h("p", {}, fault.message, fault.hint ? ` ${fault.hint}` : ""),
    again ? h("button", { type: "button", onclick: again }, "Retry") : null);
}

/** A moment as its age, exact on hover. @param {string|null|undefined} at */
export function when(at) {
  if (!at) return h("span", { class: "quiet" }, "–");
  const date = new Date(at);
  return h("time", { datetime: at, title: `${date.toLocaleString()} (${date.toISOString()})` }, renderAge(Date.now() - date.getTime()));
}

/** How long something has lasted. @param {string} at */
export function lasting(at) {
  return h("time", { datetime: at, title: new Date(at).toLocaleString(), class: "lasting" }, renderSpan(Date.now() - Date.parse(at)));
}

/** A moment to come. @param {string|null|undefined} at */
export function until(at) {
  if (!at) return h("span", { class: "quiet" }, "–");
  const left = Date.parse(at) - Date.now();
  return h("time", { datetime: at, title: new Date(at).toLocaleString(), class: "until" }, left > 0 ? renderSpan(left) : "now");
}

/** Moves the ages on a page without drawing it anew. @param {ParentNode} root */
export function tickTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = Date.parse(element.getAttribute("datetime") ?? "");
    const left = at - Date.now();
    const { classList } = element;
    const text = classList.contains("until") ? (left > 0 ? renderSpan(left) : "now") : classList.contains("lasting") ? renderSpan(-left) : renderAge(-left);
    if (element.textContent !== text) element.textContent = text;
  }
}

/** Dot and word, never colour alone. @param {string} badge @param {string} text @param {boolean} [pulsing] */
export function state(badge, text, pulsing = false) {
  return h("span", { class: "state", "data-badge": badge, "data-pulsing": pulsing }, h("span", { class: "dot" }), text);
}

/** What the pane would say of it: a sandbox whose app does not answer is not called ready. @param {Status} status */
export function stateOf(status) {
  const view = describe({ ...BEGINNING, status, waking: status.waking ?? null }, location.origin);
  return state(view.badge, view.label, view.pulsing);
}

/** @param {string[]} heads @param {(Node|string)[][]} rows @param {string} caption */
export function table(heads, rows, caption) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, ...heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((cell) => h("td", {}, cell)))))));
}

/** A link inside the dashboard. @param {string} href @param {...(Node|string)} content */
export function link(href, ...content) {
  return h("a", { href, "data-inside": true }, ...content);
}

/** A link to a preview; an address that is not of the web is shown and cannot be pressed. @param {string|null|undefined} url */
export function previewLink(url) {
  if (!url || !/^https?:\/\//.test(url)) return h("span", { class: "quiet" }, url ?? "–");
  return h("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, "Open preview");
}

/** @param {string} project */
export function detailPath(project) {
  return `/sandboxes/${encodeURIComponent(project)}`;
}

/** @param {number} count @param {string} noun */
export function amount(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : noun.endsWith("x") ? "es" : "s"}`;
}

/**
 * Asks before something that cannot be taken back.
 * @param {string} question
 * @param {(Node|string)[]} details
 * @param {string} yes
 * @returns {Promise<boolean>}
 */
export function ask(question, details, yes) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-label": question, onclose: () => (dialog.remove(), resolve(dialog.returnValue === "yes")) },
      h("form", { method: "dialog" }, h("h2", {}, question), ...details,
        h("div", { class: "row" }, h("button", { value: "no" }, "Cancel"), h("button", { value: "yes", class: "primary", autofocus: true }, yes))));
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** @param {string} title @param {(Node|string)[]} details */
export function tell(title, details) {
  const dialog = h("dialog", { "aria-label": title, onclose: () => dialog.remove() },
    h("form", { method: "dialog" }, h("h2", {}, title), ...details, h("div", { class: "row" }, h("button", { class: "primary", autofocus: true }, "Close"))));
  document.body.append(dialog);
  dialog.showModal();
}

/** Whether the one who is logged in may change things. */
export function mayOperate() {
  return document.documentElement.dataset.role === "operator";
}
