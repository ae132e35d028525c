// <sandbox-preview project="…">: the state of one sandbox, and its preview when there is one.
// Attributes: project, or job; base; token; stream (project, fleet, off); theme (light, dark).
// The property `token` may also be a function that returns a token. Events: sandbox-change.

import { Client } from "./client.js";
import { h, icon, updateAttribute, setVisible, updateText } from "./dom.js";
import { SandboxStore } from "./sandbox-store.js";
import { isOverdue, isWaking, renderAge, renderSpan, sleepsAt } from "./preview-model.js";
import { STYLE } from "./preview-style.js";
import { WORDS } from "./words.js";

/** @import {Action, Status, Token, View} from "./shapes.js" */

const LOAD_MS = 10000; // A frame whose navigation fails fires no event, so only a timeout detects it.
const AGAIN_MAX_MS = 30000;
// Without `base`: the server that this file came from, or the page's own origin if it was bundled.
const HOME = /(.+)\/static\/\w{12}\//.exec(import.meta.url)?.[1];
const FRAME_RIGHTS = "allow-scripts allow-same-origin allow-forms allow-popups allow-modals";

export class SandboxPreview extends HTMLElement {
  static observedAttributes = ["project", "job", "base", "token", "stream"];

  /** @type {SandboxStore|null} */ #store = null;
  /** @type {Token} */ #token = null;
  /** @type {any} */ #parts;
  /** @type {View|null} */ #view = null;
  /** @type {HTMLIFrameElement|null} */ #frame = null;
  /** @type {ReturnType<typeof setTimeout>|undefined} */ #watchdog;
  /** @type {ReturnType<typeof setInterval>|undefined} */ #clock;
  /** @type {ReturnType<typeof setTimeout>|undefined} */
  #later;
  #frameUrl = "";
  #broken = false;
  #again = 1000;
  #port = 0;
  #round = 0;
  #blurred = () => this.#frame && this.shadowRoot?.activeElement === this.#frame && this.#store?.touch("preview");

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [STYLE];
    this.#build(root);
  }

  get token() {
    return this.#token ?? this.getAttribute("token");
  }

  set token(token) {
    this.#token = token;
    if (this.#store) this.#store.client.token = token;
    if (this.#store?.model.problem) void this.#store.refresh();
  }

  /** The last status from the server. */
  get status() {
    return this.#store?.model.status ?? null;
  }

  connectedCallback() {
    void this.#follow();
    window.addEventListener("blur", this.#blurred);
    this.#clock = setInterval(() => this.#tick(), 1000);
  }

  disconnectedCallback() {
    this.#round++;
    this.#store?.stop();
    this.#store = null;
    this.#drop();
    clearInterval(this.#clock);
    this.#clock = undefined;
    window.removeEventListener("blur", this.#blurred);
  }

  /** @param {string} name @param {string|null} old @param {string|null} value */
  attributeChangedCallback(name, old, value) {
    // A browser reports the attributes of an upgraded element before it connects it.
    if (this.#clock === undefined || old === value) return;
    if (name === "token") this.token = this.#token;
    else void this.#follow();
  }

  /** Wake the sandbox. */
  wake() {
    return this.#store?.wake();
  }

  /** Check the state with the provider and reload the preview. */
  async refresh() {
    const { stage, refresh } = this.#parts;
    if (stage.ariaBusy) return;
    stage.ariaBusy = refresh.ariaBusy = "true";
    await this.#store?.verify();
    stage.ariaBusy = refresh.ariaBusy = null;
    if (this.#frame) this.#load();
  }

  async #follow() {
    this.#store?.stop();
    this.#drop();
    const round = ++this.#round;
    const job = this.getAttribute("job");
    const name = job ?? this.getAttribute("project");
    if (!name) return;
    const client = new Client({ base: this.getAttribute("base") ?? HOME, token: this.token });
    const stream = /** @type {any} */ (this.getAttribute("stream") ?? "project");
    // Only pages that show jobs load their texts and dialog.
    const Kind = job === null ? SandboxStore : (await import("./job.js")).JobStore;
    if (round !== this.#round || !this.isConnected) return;
    const store = (this.#store = new Kind(client, name, { stream }));
    // A burst of changes is drawn once a frame.
    store.subscribe(() => (this.#later ??= setTimeout(() => this.#draw(), 16)));
    this.#draw();
    store.start();
  }

  /** @param {ShadowRoot} root */
  #build(root) {
    const touch = () => this.#store?.touch("pane");
    /** @param {string} name @param {string} label @param {() => void} act */
    const tool = (name, label, act) => h("button", { class: "tool", type: "button", title: label, "aria-label": label, hidden: true, onclick: act }, icon(name));
    /** @type {any} */
    const parts = (this.#parts = {
      label: h("span", { class: "label", part: "label" }),
      caption: h("span", { class: "caption", part: "caption" }),
      age: h("time", { class: "age" }),
      recreated: h("button", { class: "chip", type: "button", part: "recreated", hidden: true, "aria-expanded": "false", onclick: () => this.#toggleReceipt() }),
      notice: h("span", { class: "notice" }),
      sleep: h("time", { class: "sleep", hidden: true }),
      port: h("input", { class: "port", type: "number", min: 1, max: 65535, "aria-label": "Port", onchange: (/** @type {any} */ e) => this.#choosePort(Number(e.target.value)) }),
      awake: tool("awake", "Keep awake", () => void this.#store?.keepAwake()),
      refresh: tool("refresh", "Refresh", () => void this.refresh()),
      copy_url: tool("copy_url", "Copy URL", () => void this.#copy()),
      open: h("a", { class: "tool", target: "_blank", rel: "noopener noreferrer", title: "Open", "aria-label": "Open", hidden: true }, icon("open")),
      receipt: h("div", { class: "receipt", part: "receipt", hidden: true }),
      icon: h("span"),
      title: h("h2", { part: "title" }),
      text: h("p", { part: "text" }),
      progress: h("div"),
      elapsed: h("time"),
      log: h("pre", { part: "log", tabindex: 0, "aria-label": "Last lines of the app's log", hidden: true }),
      actions: h("div", { class: "row" }),
    });
    parts.state = h("span", { class: "state", role: "status", "aria-live": "polite" }, h("span", { class: "dot" }), parts.label);
    const tools = h("span", { class: "tools" }, parts.sleep, parts.awake, parts.port, parts.refresh, parts.copy_url, parts.open);
    parts.bar = h("div", { class: "bar", part: "toolbar", onpointerdown: touch, onkeydown: touch }, parts.state, parts.caption, parts.recreated, parts.age, parts.notice, tools);
    parts.card = h("div", { class: "card", part: "card" }, parts.icon, parts.title, parts.text, parts.progress, parts.elapsed, parts.log, parts.actions);
    parts.overlay = h("div", { class: "overlay", part: "overlay" }, parts.card);
    parts.stage = h("div", { class: "stage", tabindex: -1 }, parts.overlay);
    root.append(parts.bar, parts.receipt, parts.stage);
  }

  #draw() {
    this.#later = undefined;
    const store = this.#store;
    if (!store) return;
    const { model } = store;
    const before = this.#view;
    const view = (this.#view = this.#describe(store));
    const p = this.#parts;
    for (const element of [p.bar, p.overlay]) {
      updateAttribute(element, "data-badge", view.badge);
      updateAttribute(element, "data-pulsing", view.pulsing ? "" : null);
    }
    updateAttribute(this, "data-state", view.state ?? "NONE");
    updateAttribute(this, "aria-busy", view.busy ? "true" : null);
    updateText(p.label, view.label);
    updateText(p.caption, view.caption);
    updateAttribute(p.caption, "title", view.caption || null);
    updateText(p.notice, view.notice);
    setVisible(p.refresh, view.tools.includes("refresh"));
    setVisible(p.copy_url, view.tools.includes("copy_url") && view.frameUrl);
    setVisible(p.open, view.tools.includes("open") && view.frameUrl);
    setVisible(p.awake, view.frameUrl && !this.hasAttribute("job"));
    const { recreated, receipt } = model.status ?? {};
    const hasReceipt = recreated || receipt?.restored || receipt?.lost.length;
    updateText(p.recreated, recreated ? WORDS.page.recreated : WORDS.page.restored);
    setVisible(p.recreated, hasReceipt);
    if (!hasReceipt) setVisible(p.receipt, false);
    this.#drawOverlay(view, before);
    this.#drawFrame(view.frameUrl);
    this.#tick();
    if (model.status && before?.state !== view.state) {
      this.dispatchEvent(new CustomEvent("sandbox-change", { detail: model.status, bubbles: true, composed: true }));
    }
  }

  /** Return the store's view, unless only this page knows that the preview does not load. @param {SandboxStore} store @returns {View} */
  #describe(store) {
    const view = store.describe();
    if (!this.#broken || !view.frameUrl) return view;
    return { ...view, badge: "yellow", label: WORDS.page.broken, caption: WORDS.page.brokenCaption };
  }

  /** @param {View} view @param {View|null} before */
  #drawOverlay(view, before) {
    const p = this.#parts;
    const inside = p.overlay.contains(this.shadowRoot?.activeElement ?? null);
    setVisible(p.overlay, !view.frameUrl);
    updateAttribute(p.overlay, "role", view.alarming ? "alert" : "group");
    updateAttribute(p.overlay, "aria-label", view.label);
    if (before?.icon !== view.icon) p.icon.replaceWith((p.icon = icon(view.icon)));
    updateText(p.title, view.label);
    updateText(p.text, view.caption);
    setVisible(p.text, view.caption);
    const log = view.frameUrl ? "" : view.log.join("\n");
    updateText(p.log, log);
    setVisible(p.log, log);
    this.#drawProgress(view);
    const offers = JSON.stringify([view.offers, view.busy && this.#overdue()]);
    if (p.offers !== offers) {
      p.offers = offers;
      p.actions.replaceChildren(...this.#offer(view));
    }
    // Move the focus only if it was here, never out of another field.
    if (inside && !p.overlay.contains(this.shadowRoot?.activeElement ?? null)) {
      (p.actions.querySelector("button") ?? p.stage).focus();
    }
  }

  /** @param {View} view */
  #offer(view) {
    const late = view.busy && this.#overdue();
    const offers = (late && this.#store?.lateOffers()) || view.offers;
    const buttons = offers.map(({ action, label }, i) => h("button", { class: i ? "second" : "primary", part: "action", type: "button", "data-action": action, onclick: () => this.#perform(action) }, label));
    return late ? [h("p", {}, WORDS.page.late), ...buttons] : buttons;
  }

  /** @param {View} view */
  #drawProgress(view) {
    const { progress } = this.#parts;
    const waking = view.progress;
    setVisible(progress, view.busy);
    const key = JSON.stringify(waking?.steps && [waking.step, waking.steps]);
    if (!view.busy || this.#parts.steps === key) return;
    this.#parts.steps = key;
    const steps = waking?.steps ?? [];
    const at = steps.indexOf(waking?.step ?? "");
    const items = steps.map((step, i) => h("li", { "data-now": i === at }, step.replaceAll("_", " ") + (i < at ? " ✓" : i === at ? " …" : "")));
    const bar = h("progress", { "aria-label": view.label, max: steps.length || 1, ...(at < 0 ? {} : { value: at + 0.5 }) });
    progress.replaceChildren(bar, h("ol", {}, ...items));
  }

  #elapsed() {
    const model = this.#store?.model;
    const began = model?.requestedAt ?? (model?.waking?.startedAt ? Date.parse(model.waking.startedAt) : Date.now());
    return Date.now() - began;
  }

  #overdue() {
    return isOverdue(this.#store?.model.waking ?? null, this.#elapsed());
  }

  /** Update the clocks only. */
  #tick() {
    const model = this.#store?.model;
    if (!model || document.hidden) return;
    const p = this.#parts;
    const { status } = model;
    const now = Date.now();
    updateText(p.age, status?.asOf && !isWaking(model) ? `${WORDS.page.asOf} ${renderAge(now - Date.parse(status.asOf))}` : "");
    updateAttribute(p.age, "title", status?.asOf ?? null);
    const sleeps = isWaking(model) ? null : sleepsAt(status);
    setVisible(p.sleep, sleeps !== null);
    if (sleeps !== null) updateText(p.sleep, sleeps > now ? `${WORDS.page.sleepsIn} ${renderSpan(sleeps - now)}` : WORDS.page.aboutToSleep);
    setVisible(p.elapsed, this.#view?.busy);
    if (!this.#view?.busy) return;
    const usual = model.waking?.usualMs;
    updateText(p.elapsed, `${(this.#elapsed() / 1000).toFixed(1)} s${usual ? ` of about ${renderSpan(usual)}` : ""}`);
    this.#drawOverlay(this.#view, this.#view);
  }

  /** @param {Action} action */
  #perform(action) {
    const store = this.#store;
    if (!store) return;
    if (action === "rebuild") void /** @type {any} */ (store).rebuild(this.shadowRoot);
    else if (action === "wake" || action === "restart") void store.wake();
    else if (isWaking(store.model)) void store.wakeAgain();
    else if (store.model.failure && action === "retry") void store.wake();
    else void this.refresh();
  }

  /** @param {string|null} url */
  #drawFrame(url) {
    if (!url) return this.#drop();
    const { port } = this.#parts;
    const own = /^(https?:\/\/)(\d+)(-.*)$/.exec(url);
    setVisible(port, own);
    const wanted = own && this.#port ? `${own[1]}${this.#port}${own[3]}` : url;
    if (own && document.activeElement !== this) port.value = this.#port || own[2];
    updateAttribute(this.#parts.open, "href", wanted);
    // Compare with the URL assigned last: the frame may have navigated since.
    if (this.#frame && this.#frameUrl === wanted) return undefined;
    this.#frameUrl = wanted;
    if (!this.#frame) {
      const frame = h("iframe", { part: "frame", title: "Preview", sandbox: FRAME_RIGHTS, referrerpolicy: "no-referrer", onload: () => this.#loaded() });
      this.#frame = frame;
      this.#parts.stage.prepend(frame);
    }
    return this.#load();
  }

  #load() {
    if (!this.#frame) return;
    clearTimeout(this.#watchdog);
    this.#watchdog = setTimeout(() => this.#unloaded(), LOAD_MS);
    this.#frame.src = this.#frameUrl;
  }

  #loaded() {
    clearTimeout(this.#watchdog);
    this.#again = 1000;
    this.#setBroken(false);
  }

  /** @param {boolean} broken */
  #setBroken(broken) {
    if (this.#broken === broken) return;
    this.#broken = broken;
    this.#draw();
  }

  /** The preview was shown as ready and did not load: report it, verify, and retry. */
  #unloaded() {
    const store = this.#store;
    if (!store || !this.#frame || document.hidden) return;
    if (this.#again === 1000 && store.model.status) {
      store.reportMismatch(store.model.status, null, "the preview did not load");
      void store.verify();
    }
    this.#setBroken(true);
    this.#watchdog = setTimeout(() => this.#load(), this.#again);
    this.#again = Math.min(this.#again * 2, AGAIN_MAX_MS);
  }

  #drop() {
    clearTimeout(this.#watchdog);
    this.#frame?.remove();
    this.#frame = null;
    this.#frameUrl = "";
    this.#broken = false;
    this.#port = 0;
    setVisible(this.#parts.port, false);
  }

  /** @param {number} port */
  #choosePort(port) {
    this.#port = port >= 1 && port <= 65535 ? port : 0;
    this.#drawFrame(this.#view?.frameUrl ?? null);
  }

  async #copy() {
    const { label } = this.#parts;
    await navigator.clipboard?.writeText(this.#frameUrl).catch(() => undefined);
    updateText(label, "URL copied");
    setTimeout(() => updateText(label, this.#view?.label ?? ""), 1500);
  }

  #toggleReceipt() {
    const { receipt, recreated } = this.#parts;
    const open = receipt.hidden;
    updateText(receipt, renderReceipt(this.status));
    setVisible(receipt, open);
    updateAttribute(recreated, "aria-expanded", String(open));
  }
}

/** @param {Status|null} status */
function renderReceipt(status) {
  const receipt = status?.receipt;
  return [
    status?.recreated && WORDS.page.recreatedCaption,
    status?.recreationReason && `Why: ${status.recreationReason}.`,
    receipt?.restored && `${receipt.restored} files restored.`,
    receipt?.filesNote && `${receipt.filesNote.charAt(0).toUpperCase()}${receipt.filesNote.slice(1)}.`,
    receipt?.lost.length && `${WORDS.page.notRestored}: ${receipt.lost.join(", ")}.`,
    receipt && `It took ${renderSpan(receipt.tookMs)}.`,
  ].filter(Boolean).join(" ");
}

if (!customElements.get("sandbox-preview")) customElements.define("sandbox-preview", SandboxPreview);
