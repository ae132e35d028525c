// <sandbox-preview project="…">: the state of one sandbox, and its preview when there is one.
// Attributes: project, or job; base; token; stream (project, fleet, off); theme (light, dark).
// The property `token` may also be a function that gives a token. Events: sandbox-change.

import { Client } from "./client.js";
import { h, icon, mark, show, write } from "./dom.js";
import { Follower } from "./follower.js";
import { isOverdue, isWaking, renderAge, renderSpan, sleepsAt } from "./machine.js";
import { STYLE } from "./preview-style.js";

/** @import {Action, Status, Token, View} from "./shapes.js" */

const LOAD_MS = 10000; // A frame whose navigation fails fires no event at all: only time tells.
const AGAIN_MAX_MS = 30000;
const FRAME_RIGHTS = "allow-scripts allow-same-origin allow-forms allow-popups allow-modals";

export class SandboxPreview extends HTMLElement {
  static observedAttributes = ["project", "job", "base", "token", "stream"];

  /** @type {Follower|null} */ #follower = null;
  /** @type {Token} */ #token = null;
  /** @type {any} */ #parts;
  /** @type {View|null} */ #view = null;
  /** @type {HTMLIFrameElement|null} */ #frame = null;
  /** @type {ReturnType<typeof setTimeout>|undefined} */ #watchdog;
  /** @type {ReturnType<typeof setInterval>|undefined} */ #clock;
  #frameUrl = "";
  #again = 1000;
  #port = 0;
  #round = 0;
  #blurred = () => this.#frame && this.shadowRoot?.activeElement === this.#frame && this.#follower?.touch("preview");

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
    if (this.#follower) this.#follower.client.token = token;
    if (this.#follower?.model.fault) void this.#follower.refresh();
  }

  /** What the server said last. */
  get status() {
    return this.#follower?.model.status ?? null;
  }

  connectedCallback() {
    void this.#follow();
    window.addEventListener("blur", this.#blurred);
    this.#clock = setInterval(() => this.#tick(), 1000);
  }

  disconnectedCallback() {
    this.#round++;
    this.#follower?.stop();
    this.#follower = null;
    this.#drop();
    clearInterval(this.#clock);
    this.#clock = undefined;
    window.removeEventListener("blur", this.#blurred);
  }

  /** @param {string} name @param {string|null} old @param {string|null} value */
  attributeChangedCallback(name, old, value) {
    // A browser tells the attributes of an upgraded element before it says that it is connected.
    if (this.#clock === undefined || old === value) return;
    if (name === "token") this.token = this.#token;
    else void this.#follow();
  }

  /** Makes the sandbox run. */
  wake() {
    return this.#follower?.wake();
  }

  /** Asks the provider what is true, and loads the preview again. */
  async refresh() {
    const { stage, refresh } = this.#parts;
    if (stage.ariaBusy) return;
    stage.ariaBusy = refresh.ariaBusy = "true";
    await this.#follower?.verify();
    stage.ariaBusy = refresh.ariaBusy = null;
    if (this.#frame) this.#load();
  }

  async #follow() {
    this.#follower?.stop();
    this.#drop();
    const round = ++this.#round;
    const job = this.getAttribute("job");
    const name = job ?? this.getAttribute("project");
    if (!name) return;
    const client = new Client({ base: this.getAttribute("base") ?? "", token: this.token });
    const stream = /** @type {any} */ (this.getAttribute("stream") ?? "project");
    // Only a page that shows jobs pays for their words and dialog.
    const Kind = job === null ? Follower : (await import("./job.js")).JobFollower;
    if (round !== this.#round || !this.isConnected) return;
    const follower = (this.#follower = new Kind(client, name, { stream }));
    follower.subscribe(() => this.#draw());
    this.#draw();
    follower.start();
  }

  /** @param {ShadowRoot} root */
  #build(root) {
    const touch = () => this.#follower?.touch("pane");
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
      awake: tool("awake", "Keep awake", () => void this.#follower?.keepAwake()),
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
    const follower = this.#follower;
    if (!follower) return;
    const { model } = follower;
    const before = this.#view;
    const view = (this.#view = follower.describe());
    const p = this.#parts;
    for (const element of [p.bar, p.overlay]) {
      mark(element, "data-badge", view.badge);
      mark(element, "data-pulsing", view.pulsing ? "" : null);
    }
    mark(this, "data-state", view.state ?? "NONE");
    mark(this, "aria-busy", view.busy ? "true" : null);
    write(p.label, view.label);
    write(p.caption, view.caption);
    mark(p.caption, "title", view.caption || null);
    write(p.notice, view.notice);
    show(p.refresh, view.tools.includes("refresh"));
    show(p.copy_url, view.tools.includes("copy_url") && Boolean(view.frameUrl));
    show(p.open, view.tools.includes("open") && Boolean(view.frameUrl));
    show(p.awake, Boolean(view.frameUrl) && !this.hasAttribute("job"));
    const { recreated, receipt } = model.status ?? {};
    const told = recreated || receipt?.restored || receipt?.lost.length;
    write(p.recreated, recreated ? "Recreated" : "Restored");
    show(p.recreated, Boolean(told));
    if (!told) show(p.receipt, false);
    this.#drawOverlay(view, before);
    this.#drawFrame(view.frameUrl);
    this.#tick();
    if (model.status && before?.state !== view.state) {
      this.dispatchEvent(new CustomEvent("sandbox-change", { detail: model.status, bubbles: true, composed: true }));
    }
  }

  /** @param {View} view @param {View|null} before */
  #drawOverlay(view, before) {
    const p = this.#parts;
    const inside = p.overlay.contains(this.shadowRoot?.activeElement ?? null);
    show(p.overlay, !view.frameUrl);
    mark(p.overlay, "role", view.alarming ? "alert" : "group");
    mark(p.overlay, "aria-label", view.label);
    if (before?.icon !== view.icon) p.icon.replaceWith((p.icon = icon(view.icon)));
    write(p.title, view.label);
    write(p.text, view.caption);
    show(p.text, Boolean(view.caption));
    const log = view.frameUrl ? "" : view.log.join("\n");
    write(p.log, log);
    show(p.log, Boolean(log));
    this.#drawProgress(view);
    const offers = JSON.stringify([view.offers, view.busy && this.#overdue()]);
    if (p.offers !== offers) {
      p.offers = offers;
      p.actions.replaceChildren(...this.#offer(view));
    }
    // Focus follows only if it was here: a person in another field is not pulled away.
    if (inside && !p.overlay.contains(this.shadowRoot?.activeElement ?? null)) {
      (p.actions.querySelector("button") ?? p.stage).focus();
    }
  }

  /** @param {View} view */
  #offer(view) {
    const late = view.busy && this.#overdue();
    const offers = (late && this.#follower?.lateOffers()) || view.offers;
    const buttons = offers.map(({ action, label }, i) => h("button", { class: i ? "second" : "primary", part: "action", type: "button", "data-action": action, onclick: () => this.#perform(action) }, label));
    return late ? [h("p", {}, "This takes longer than usual."), ...buttons] : buttons;
  }

  /** @param {View} view */
  #drawProgress(view) {
    const { progress } = this.#parts;
    const waking = view.progress;
    show(progress, view.busy);
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
    const model = this.#follower?.model;
    const began = model?.askedAt ?? (model?.waking?.startedAt ? Date.parse(model.waking.startedAt) : Date.now());
    return Date.now() - began;
  }

  #overdue() {
    return isOverdue(this.#follower?.model.waking ?? null, this.#elapsed());
  }

  /** Moves the clocks and nothing else. */
  #tick() {
    const model = this.#follower?.model;
    if (!model || document.hidden) return;
    const p = this.#parts;
    const { status } = model;
    const now = Date.now();
    write(p.age, status?.asOf && !isWaking(model) ? `as of ${renderAge(now - Date.parse(status.asOf))}` : "");
    mark(p.age, "title", status?.asOf ?? null);
    const sleeps = isWaking(model) ? null : sleepsAt(status);
    show(p.sleep, sleeps !== null);
    if (sleeps !== null) write(p.sleep, sleeps > now ? `sleeps in ${renderSpan(sleeps - now)}` : "about to sleep");
    show(p.elapsed, Boolean(this.#view?.busy));
    if (!this.#view?.busy) return;
    const usual = model.waking?.usualMs;
    write(p.elapsed, `${(this.#elapsed() / 1000).toFixed(1)} s${usual ? ` of about ${renderSpan(usual)}` : ""}`);
    this.#drawOverlay(this.#view, this.#view);
  }

  /** @param {Action} action */
  #perform(action) {
    const follower = this.#follower;
    if (!follower) return;
    if (action === "rebuild") void /** @type {any} */ (follower).rebuild(this.shadowRoot);
    else if (action === "wake") void follower.wake();
    else if (isWaking(follower.model)) void follower.wakeAgain();
    else if (follower.model.failure && action === "retry") void follower.wake();
    else void this.refresh();
  }

  /** @param {string|null} url */
  #drawFrame(url) {
    if (!url) return this.#drop();
    const { port } = this.#parts;
    const own = /^(https?:\/\/)(\d+)(-.*)$/.exec(url);
    show(port, Boolean(own));
    const wanted = own && this.#port ? `${own[1]}${this.#port}${own[3]}` : url;
    if (own && document.activeElement !== this) port.value = this.#port || own[2];
    mark(this.#parts.open, "href", wanted);
    // The address assigned last is what counts: the frame's own may have moved on.
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
  }

  /** The preview was shown as ready and did not come: that is said, checked and tried again. */
  #unloaded() {
    const follower = this.#follower;
    if (!follower || !this.#frame || document.hidden) return;
    if (this.#again === 1000 && follower.model.status) {
      follower.reportMismatch(follower.model.status, null, "the preview did not load");
      void follower.verify();
    }
    this.#watchdog = setTimeout(() => this.#load(), this.#again);
    this.#again = Math.min(this.#again * 2, AGAIN_MAX_MS);
  }

  #drop() {
    clearTimeout(this.#watchdog);
    this.#frame?.remove();
    this.#frame = null;
    this.#frameUrl = "";
    this.#port = 0;
    show(this.#parts.port, false);
  }

  /** @param {number} port */
  #choosePort(port) {
    this.#port = port >= 1 && port <= 65535 ? port : 0;
    this.#drawFrame(this.#view?.frameUrl ?? null);
  }

  async #copy() {
    const { label } = this.#parts;
    await navigator.clipboard?.writeText(this.#frameUrl).catch(() => undefined);
    write(label, "URL copied");
    setTimeout(() => write(label, this.#view?.label ?? ""), 1500);
  }

  #toggleReceipt() {
    const { receipt, recreated } = this.#parts;
    const open = receipt.hidden;
    write(receipt, renderReceipt(this.status));
    show(receipt, open);
    mark(recreated, "aria-expanded", String(open));
  }
}

/** @param {Status|null} status */
function renderReceipt(status) {
  const receipt = status?.receipt;
  return [
    status?.recreated && "A new sandbox with your files.",
    status?.recreationReason && `Why: ${status.recreationReason}.`,
    receipt?.restored && `${receipt.restored} files restored.`,
    receipt?.lost.length && `Not restored: ${receipt.lost.join(", ")}.`,
    receipt && `It took ${renderSpan(receipt.tookMs)}.`,
  ].filter(Boolean).join(" ");
}

if (!customElements.get("sandbox-preview")) customElements.define("sandbox-preview", SandboxPreview);
