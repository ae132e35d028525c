// Charts on one time axis: a title, a sentence, the chart, its values under the pointer, and its
// data as a table. The axis spans the whole range that was asked for; where nothing was measured
// there is a gap. Drag over a part to choose it: a `chart-range` event says which.

import { h } from "../pane.js";
import { api } from "./api.js";
import { table } from "./base-element.js";
import { exact, isUtc } from "./clock.js";
import { figure } from "./health-page.js";

/** @import {Trend} from "./api.js" */

/** @typedef {{from: number, to: number, stepS: number}} TimeRange In epoch seconds. */

const HEIGHT = 200;
const ORDER = ["blue", "amber", "green", "orange", "red", "gray", "yellow"];
const MEASURES = new Set(["ratio", "s", "ms"]); // Other units are words that the title contains.
const GAP_STEPS = 3; // A line is interrupted where more samples than this are missing.
const SAMPLED = new Set(["states", "costs"]); // Samples of a lasting value; all others are single events.
const TABLE_MAX = 100;

let sheet = /** @type {HTMLElement|null} */ (null);

/** @param {Trend} trend @param {TimeRange} [range] */
export function renderChart(trend, range) {
  const series = trend.series.filter((one) => one.points.length);
  const legend = h("ul", { class: "legend" }, ...series.map((one, i) => h("li", { "data-badge": badgeOf(one.name, i) }, h("span", { class: "dot" }), one.name.toLowerCase().replaceAll("_", " "), " ", h("b", {}))));
  const plot = /** @type {TimeChart} */ (h("time-chart", { role: "img", "aria-label": `${trend.title}. ${trend.sentence}` }));
  Object.assign(plot, { trend: { ...trend, series }, range, legend });
  return h("figure", { class: "card chart" },
    h("figcaption", {}, h("h2", {}, trend.title), h("p", {}, trend.sentence)),
    series.length ? plot : h("p", { class: "quiet" }, "No data yet."),
    legend, h("details", {}, h("summary", {}, "As a table"), tabulate(trend)));
}

/** @param {string} name @param {number} index */
function badgeOf(name, index) {
  return api.states[name.toUpperCase()]?.badge ?? ORDER[index % ORDER.length] ?? "gray";
}

/** The drawing of one chart; its values under the pointer are written into the legend. */
export class TimeChart extends HTMLElement {
  /** @type {Trend} */ trend = /** @type {any} */ (null);
  /** @type {TimeRange|undefined} */ range;
  /** @type {HTMLElement} */ legend = /** @type {any} */ (null);
  /** @type {any} */ #plot = null;
  #watcher = new ResizeObserver(() => this.#plot?.setSize({ width: this.clientWidth, height: HEIGHT }));

  connectedCallback() {
    this.style.height = `${HEIGHT}px`;
    void this.#draw();
  }

  disconnectedCallback() {
    this.#watcher.disconnect();
    this.#plot?.destroy();
    this.#plot = null;
  }

  async #draw() {
    if (!sheet) document.head.append((sheet = h("link", { rel: "stylesheet", href: new URL("../vendor/uplot.css", import.meta.url).href })));
    const { default: uPlot } = /** @type {{default: any}} */ (await import("../vendor/uplot.mjs"));
    if (!this.isConnected || this.#plot) return;
    const style = getComputedStyle(this);
    const [ink, line] = [style.getPropertyValue("color"), getComputedStyle(this.closest(".card") ?? this).borderTopColor];
    const dots = [...this.legend.querySelectorAll(".dot")];
    const isSampled = SAMPLED.has(this.trend.name);
    const series = this.trend.series.map((one, i) => {
      const stroke = getComputedStyle(dots[i] ?? this).backgroundColor;
      return { label: one.name, stroke, width: 1.5, spanGaps: false, points: { show: !isSampled, size: 6, fill: stroke }, ...(isSampled ? { paths: uPlot.paths.stepped({ align: 1 }) } : { paths: () => null }) };
    });
    const axis = { stroke: ink, font: "11px system-ui, sans-serif", grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const unit = MEASURES.has(this.trend.unit) ? this.trend.unit : "";
    const data = alignPoints(this.trend.series.map((one) => one.points), isSampled ? this.range?.stepS : undefined);
    const span = this.range ?? { from: data[0]?.[0] ?? 0, to: data[0]?.at(-1) ?? 1 };
    this.#plot = new uPlot({
      width: this.clientWidth || 480, height: HEIGHT, series: [{}, ...series], legend: { show: false },
      ...(isUtc() ? { tzDate: (/** @type {number} */ at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC") } : {}),
      scales: { x: { time: true, range: () => [span.from, span.to] }, y: { range: (/** @type {any} */ _plot, /** @type {number} */ _low, /** @type {number|null} */ high) => [0, Math.max(high ?? 0, unit ? 0.001 : 1) * 1.1] } },
      axes: [axis, { ...axis, size: 64, values: (/** @type {any} */ _plot, /** @type {number[]} */ values) => values.map((value) => figure(value, unit)) }],
      cursor: { sync: { key: "charts" }, drag: { x: true, y: false, setScale: false } },
      hooks: { setCursor: [(/** @type {any} */ plot) => this.#tell(plot, unit)], setSelect: [(/** @type {any} */ plot) => this.#choose(plot)] },
    }, data, this);
    this.#watcher.observe(this);
  }

  /** Write the values under the pointer into the legend. @param {any} plot @param {string} unit */
  #tell(plot, unit) {
    const at = plot.cursor.idx;
    this.title = typeof at === "number" && plot.data[0][at] ? exact(new Date(plot.data[0][at] * 1000)) : "";
    [...this.legend.querySelectorAll("b")].forEach((place, i) => {
      const value = typeof at === "number" ? plot.data[i + 1]?.[at] : undefined;
      place.textContent = typeof value === "number" ? figure(value, unit) : "";
    });
  }

  /** @param {any} plot */
  #choose(plot) {
    const { left, width } = plot.select;
    if (width < 5) return;
    const detail = { from: plot.posToVal(left, "x"), to: plot.posToVal(left + width, "x") };
    this.dispatchEvent(new CustomEvent("chart-range", { detail, bubbles: true }));
  }
}

/**
 * Return the instants of all lines in order, then the values of each line at them. Undefined is no
 * sample of this line, null ends it: what follows is drawn apart.
 * @param {[string, number][][]} lines
 * @param {number} [stepS] The time between two samples of one line.
 * @returns {(number|null|undefined)[][]}
 */
export function alignPoints(lines, stepS) {
  const values = lines.map((points) => {
    /** @type {Map<number, number|null>} */
    const line = new Map();
    let last = 0;
    for (const [text, value] of points) {
      const at = Date.parse(text) / 1000;
      if (stepS && last && at - last > GAP_STEPS * stepS) line.set(last + stepS, null);
      line.set(at, value);
      last = at;
    }
    return line;
  });
  const instants = [...new Set(values.flatMap((line) => [...line.keys()]))].sort((one, other) => one - other);
  return [instants, ...values.map((line) => instants.map((at) => line.get(at)))];
}

/** @param {Trend} trend */
function tabulate(trend) {
  const names = trend.series.map((one) => one.name);
  /** @type {Map<string, Map<string, number>>} */
  const byTime = new Map();
  for (const one of trend.series) for (const [at, value] of one.points) byTime.set(at, (byTime.get(at) ?? new Map()).set(one.name, value));
  const rows = [...byTime].sort().reverse().slice(0, TABLE_MAX).map(([at, values]) => [exact(at), ...names.map((name) => (values.has(name) ? figure(values.get(name) ?? 0, trend.unit) : "–"))]);
  return table(["Time", ...names], rows, trend.title);
}

customElements.define("time-chart", TimeChart);
