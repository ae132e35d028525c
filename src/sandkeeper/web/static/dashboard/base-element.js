// The base class of the dashboard's elements, and helpers that render times, amounts and problems.

import { getFeed, h, icon, renderAge, renderSpan, SandkeeperError, toProblem, WORDS } from "../pane.js";
import { api } from "./api.js";
import { exact } from "./clock.js";

/** @import {Message, Status} from "../shapes.js" */
/** @import {Change} from "./api.js" */

const BATCH_MS = 200; // Shorter redraws more often in a burst; longer is felt as a delay.
const BATCH_CHANGES_MAX = 300; // Of more changes in one batch only the newest are handed over.
const REQUEST_MS = 1000;
const TOAST_MS = 8000;

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

  /** @param {() => void} cleanup Called when the element is removed. */
  also(cleanup) {
    this.#cleanups.push(cleanup);
  }

  /** @param {number} ms @param {() => unknown} act Called while the page is visible. */
  every(ms, act) {
    const timer = setInterval(() => document.hidden || act(), ms);
    this.#cleanups.push(() => clearInterval(timer));
  }

  /**
   * Subscribe to the fleet's stream. A burst is handed over in batches: the newest status of each
   * project, and the newest changes, the newest last.
   * @param {(batch: {statuses: Map<string, Status>, changes: Change[]}) => void} act
   * @param {(live: boolean) => void} [live]
   */
  followFleet(act, live = () => undefined) {
    /** @type {Map<string, Status>} */ let statuses = new Map();
    /** @type {Change[]} */ let changes = [];
    let timer = 0;
    const flush = () => {
      const batch = { statuses, changes };
      [statuses, changes, timer] = [new Map(), [], 0];
      act(batch);
    };
    /** @param {Message} message */
    const message = ({ event, data }) => {
      if (event === "change") {
        changes.push(/** @type {Change} */ (data));
        if (changes.length > BATCH_CHANGES_MAX) changes.shift();
      } else {
        const status = /** @type {Status} */ (data);
        if (event !== "status" || !status.project) return;
        if (status.version >= (statuses.get(status.project)?.version ?? 0)) statuses.set(status.project, status);
      }
      timer ||= window.setTimeout(flush, BATCH_MS);
    };
    const feed = getFeed(api, "/api/fleet/events");
    this.#cleanups.push(feed.subscribe({ message, live }), () => clearTimeout(timer));
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

/** @type {Map<string, () => unknown>} */
const requests = new Map();
let requestTimer = 0;
let requestedAt = 0;

/**
 * Make a request that an event made necessary: the page makes one a second, the last one of each name.
 * @param {string} name
 * @param {() => unknown} act
 */
export function askSoon(name, act) {
  requests.set(name, act);
  if (requestTimer) return;
  const next = () => {
    requestTimer = 0;
    const [first] = requests;
    if (!first) return;
    requests.delete(first[0]);
    requestedAt = Date.now();
    first[1]();
    if (requests.size) requestTimer = window.setTimeout(next, REQUEST_MS);
  };
  requestTimer = window.setTimeout(next, Math.max(0, requestedAt + REQUEST_MS - Date.now()));
}

/** Return null for what this server does not have. @template T @param {Promise<T>} answer @returns {Promise<T|null>} */
export async function orNull(answer) {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof SandkeeperError && [404, 405].includes(error.status)) return null;
    throw error;
  }
}

/** @param {string} title @param {...(Node|string)} content */
export function section(title, ...content) {
  return h("section", { class: "card" }, h("h2", {}, title), ...content);
}

/** @param {string} text */
export function nothing(text) {
  return h("p", { class: "quiet" }, text);
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
  return h("time", { datetime: at, title: `${exact(date)} (${date.toISOString()})` }, renderAge(Date.now() - date.getTime()));
}

/** Render the time since then. @param {string} at */
export function lasting(at) {
  return h("time", { datetime: at, title: exact(at), class: "lasting" }, renderSpan(Date.now() - Date.parse(at)));
}

/** Render the time until then. @param {string|null|undefined} at */
export function until(at) {
  if (!at) return h("span", { class: "quiet" }, "–");
  const left = Date.parse(at) - Date.now();
  return h("time", { datetime: at, title: exact(at), class: "until" }, left > 0 ? renderSpan(left) : "now");
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

/** Render a sandbox's state in the server's words. @param {Status} status */
export function stateOf({ badge, summary, pulses }) {
  const element = state(badge, summary.word, pulses);
  element.title = summary.sentence;
  return element;
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
 * Ask for confirmation before an action; one that destroys has a red button.
 * @param {string} question
 * @param {(Node|string)[]} details
 * @param {string} yes
 * @param {boolean} [destroys]
 * @returns {Promise<boolean>}
 */
export function confirmAction(question, details, yes, destroys = false) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-label": question, onclose: () => (dialog.remove(), resolve(dialog.returnValue === "yes")) },
      h("form", { method: "dialog" }, h("h2", {}, question), ...details,
        h("div", { class: "row" }, h("button", { value: "no", autofocus: destroys }, "Cancel"), h("button", { value: "yes", class: destroys ? "danger" : "primary", autofocus: !destroys }, yes))));
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

/** Say what came of an action; it goes away by itself. @param {string} text */
export function toast(text) {
  let place = document.querySelector(".toasts");
  if (!place) document.body.append((place = h("div", { class: "toasts", role: "status" })));
  const one = h("p", { class: "toast" }, text);
  place?.append(one);
  setTimeout(() => one.remove(), TOAST_MS);
}

/** Render a menu that closes when it is left, or by Escape. @param {string} label @param {...Node} items */
export function menu(label, ...items) {
  const summary = h("summary", { class: "button" }, label);
  const box = h("details", { class: "menu" }, summary, h("div", { class: "menu-items" }, ...items));
  box.addEventListener("focusout", (/** @type {FocusEvent} */ event) => {
    if (!box.contains(event.relatedTarget)) box.open = false;
  });
  box.addEventListener("click", (/** @type {Event} */ event) => {
    if (/** @type {Element} */ (event.target).closest(".menu-items button")) box.open = false;
  });
  box.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape") return;
    box.open = false;
    summary.focus();
  });
  return box;
}

/** @param {string} text @param {string} label */
export function copyButton(text, label) {
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    toast(`Copied ${text}`);
  };
  return h("button", { type: "button", class: "icon-button", title: label, "aria-label": label, onclick: () => void copy() }, icon("copy_url"));
}

/** Return whether the signed-in user may change things. */
export function mayOperate() {
  return ["operator", "editor"].includes(document.documentElement.dataset.role ?? "");
}
