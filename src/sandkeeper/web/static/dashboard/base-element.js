// The base class of the dashboard's elements, and helpers that render times, amounts and problems.

import { describe, getFeed, h, INITIAL, renderAge, renderSpan, toProblem, WORDS } from "../pane.js";
import { api } from "./api.js";

/** @import {Message, Status} from "../shapes.js" */

/** An element whose timers, listeners and streams end when it is removed. */
export class BaseElement extends HTMLElement {
  /** @type {(() => void)[]} */ #cleanups = [];

  connectedCallback() {
    this.begin();
  }

  disconnectedCallback() {
    for (const cleanup of this.#cleanups.splice(0)) cleanup();
  }

  /** Called when the element is added to the page. */
  begin() {}

  /** @param {number} ms @param {() => void} act Called while the page is visible. */
  every(ms, act) {
    const timer = setInterval(() => document.hidden || act(), ms);
    this.#cleanups.push(() => clearInterval(timer));
  }

  /** Subscribe to the fleet's stream. @param {(message: Message) => void} message @param {(live: boolean) => void} [live] */
  follow(message, live = () => undefined) {
    const feed = getFeed(api, "/api/fleet/events");
    this.#cleanups.push(feed.subscribe({ message, live }));
    return feed;
  }

  /** @param {EventTarget} target @param {string} name @param {(event: any) => void} act */
  on(target, name, act) {
    target.addEventListener(name, act);
    this.#cleanups.push(() => target.removeEventListener(name, act));
  }

  /**
   * Load data into an element: show that it is loading, then the result or the problem with Retry.
   * @template T
   * @param {HTMLElement} place
   * @param {() => Promise<T>} ask
   * @param {(answer: T) => (Node|string)[]} render
   */
  async load(place, ask, render) {
    if (!place.childElementCount) place.replaceChildren(h("p", { class: "quiet" }, WORDS.page.loading));
    try {
      const answer = await ask();
      if (this.isConnected) place.replaceChildren(...render(answer));
    } catch (error) {
      if (!this.isConnected) return;
      place.replaceChildren(renderProblem(error, () => (place.replaceChildren(), this.load(place, ask, render))));
    }
  }
}

/** @param {unknown} error @param {() => void} [again] */
export function renderProblem(error, again) {
  const problem = toProblem(error);
  return h("div", { class: "problem", role: "alert" },
    h("p", {}, problem.message, problem.hint ? ` ${problem.hint}` : ""),
    again ? h("button", { type: "button", onclick: again }, "Retry") : null);
}

/** Render a time as its age, exact on hover. @param {string|null|undefined} at */
export function when(at) {
  if (!at) return h("span", { class: "quiet" }, "–");
  const date = new Date(at);
  return h("time", { datetime: at, title: `${date.toLocaleString()} (${date.toISOString()})` }, renderAge(Date.now() - date.getTime()));
}

/** Render the time since then. @param {string} at */
export function lasting(at) {
  return h("time", { datetime: at, title: new Date(at).toLocaleString(), class: "lasting" }, renderSpan(Date.now() - Date.parse(at)));
}

/** Render the time until then. @param {string|null|undefined} at */
export function until(at) {
  if (!at) return h("span", { class: "quiet" }, "–");
  const left = Date.parse(at) - Date.now();
  return h("time", { datetime: at, title: new Date(at).toLocaleString(), class: "until" }, left > 0 ? renderSpan(left) : "now");
}

/** Update the times on a page without redrawing it. @param {ParentNode} root */
export function tickTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = Date.parse(element.getAttribute("datetime") ?? "");
    const left = at - Date.now();
    const { classList } = element;
    const text = classList.contains("until") ? (left > 0 ? renderSpan(left) : "now") : classList.contains("lasting") ? renderSpan(-left) : renderAge(-left);
    if (element.textContent !== text) element.textContent = text;
  }
}

/** Render a state as dot and text, never by colour alone. @param {string} badge @param {string} text @param {boolean} [pulsing] */
export function state(badge, text, pulsing = false) {
  return h("span", { class: "state", "data-badge": badge, "data-pulsing": pulsing }, h("span", { class: "dot" }), text);
}

/** Render a sandbox's state with the pane's texts: one whose app does not respond is not shown as ready. @param {Status} status */
export function stateOf(status) {
  const view = describe({ ...INITIAL, status, waking: status.waking ?? null }, location.origin);
  return state(view.badge, view.label, view.pulsing);
}

/** @param {string[]} heads @param {(Node|string)[][]} rows @param {string} caption */
export function table(heads, rows, caption) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, ...heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((cell) => h("td", {}, cell)))))));
}

/** Render a link inside the dashboard. @param {string} href @param {...(Node|string)} content */
export function link(href, ...content) {
  return h("a", { href, "data-inside": true }, ...content);
}

/** Render a link to a preview; a URL that is not http(s) is shown as text. @param {string|null|undefined} url */
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
 * Ask for confirmation before an irreversible action.
 * @param {string} question
 * @param {(Node|string)[]} details
 * @param {string} yes
 * @returns {Promise<boolean>}
 */
export function confirmAction(question, details, yes) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-label": question, onclose: () => (dialog.remove(), resolve(dialog.returnValue === "yes")) },
      h("form", { method: "dialog" }, h("h2", {}, question), ...details,
        h("div", { class: "row" }, h("button", { value: "no" }, "Cancel"), h("button", { value: "yes", class: "primary", autofocus: true }, yes))));
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** @param {string} title @param {(Node|string)[]} details */
export function showDialog(title, details) {
  const dialog = h("dialog", { "aria-label": title, onclose: () => dialog.remove() },
    h("form", { method: "dialog" }, h("h2", {}, title), ...details, h("div", { class: "row" }, h("button", { class: "primary", autofocus: true }, "Close"))));
  document.body.append(dialog);
  dialog.showModal();
}

/** Return whether the signed-in user may change things. */
export function mayOperate() {
  return ["operator", "editor"].includes(document.documentElement.dataset.role ?? "");
}
