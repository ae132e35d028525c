// Find a page or a sandbox by typing: `/`, Ctrl-K or Cmd-K.

import { h } from "../pane.js";
import { api } from "./api.js";
import { detailPath, link, stateOf } from "./base-element.js";
import { PAGES } from "./pages.js";

const TYPING_MS = 200;
const FOUND_MAX = 8;

export function openFinder() {
  const list = h("ul", { class: "found", "aria-label": "Found" });
  const input = h("input", { type: "search", autofocus: true, "aria-label": "Find a sandbox or a page", placeholder: "id, owner, metadata, or a page" });
  const dialog = h("dialog", { class: "finder", "aria-label": "Find", onclose: () => dialog.remove() }, input, list);
  let typing = 0;
  let asked = 0;
  const search = async () => {
    const text = input.value.trim();
    const number = ++asked;
    const isOperator = document.documentElement.dataset.role === "operator";
    const pages = PAGES.filter((page) => page.group && (isOperator || !page.onlyOperators) && page.title.toLowerCase().includes(text.toLowerCase()));
    const shown = pages.slice(0, FOUND_MAX).map((page) => h("li", {}, link(page.path, page.title), h("span", { class: "quiet" }, "page")));
    list.replaceChildren(...shown);
    if (!text) return;
    const query = new URLSearchParams({ search: text, limit: String(FOUND_MAX), fields: "compact" });
    const { items } = await api.list(query).catch(() => ({ items: [] }));
    if (number !== asked) return;
    list.replaceChildren(...items.map((status) => h("li", {}, link(detailPath(status.project ?? ""), status.project ?? ""), stateOf(status))), ...shown);
  };
  /** @param {number} step */
  const move = (step) => {
    const links = [...list.querySelectorAll("a")];
    const at = links.indexOf(/** @type {any} */ (document.activeElement));
    const next = at + step;
    if (next < 0) input.focus();
    else links[Math.min(next, links.length - 1)]?.focus();
  };
  const open = (/** @type {HTMLAnchorElement|null} */ anchor) => {
    if (!anchor) return;
    dialog.close();
    document.dispatchEvent(new CustomEvent("keeper-go", { detail: anchor.getAttribute("href") }));
  };
  input.addEventListener("input", () => (clearTimeout(typing), (typing = window.setTimeout(() => void search(), TYPING_MS))));
  dialog.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (step) move(step);
    else if (event.key === "Enter" && event.target === input) open(list.querySelector("a"));
    else return;
    event.preventDefault();
  });
  dialog.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const anchor = /** @type {Element} */ (event.target).closest("a");
    if (event.target === dialog) dialog.close();
    if (!anchor || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    open(anchor);
  });
  document.body.append(dialog);
  dialog.showModal();
  void search();
}
