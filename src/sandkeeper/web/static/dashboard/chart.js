// Charts as SVG: a title, a sentence, the chart, and its data as a table.

import { h } from "../pane.js";
import { api } from "./api.js";
import { table } from "./base-element.js";
import { figure } from "./health-page.js";

/** @import {Trend} from "./api.js" */

const WIDTH = 640;
const HEIGHT = 180;
const LEFT = 48;
const BOTTOM = 20;
const SVG = "http://www.w3.org/2000/svg";
const ORDER = ["blue", "amber", "green", "orange", "red", "gray", "yellow"];

const MEASURES = new Set(["ratio", "s", "ms"]); // Other units are words that the title contains.

/** @param {string} tag @param {Record<string, string|number>} attributes @param {...(Node|string)} children */
function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** @param {Trend} trend */
export function renderChart(trend) {
  const series = trend.series.filter((one) => one.points.length);
  const stacked = trend.name.includes("state");
  const picture = series.length ? draw(series, trend, stacked) : h("p", { class: "quiet" }, "No data yet.");
  const legend = h("ul", { class: "legend" }, ...series.map((one, i) => h("li", { "data-badge": badgeOf(one.name, i) }, h("span", { class: "dot" }), one.name.toLowerCase().replaceAll("_", " "))));
  return h("figure", { class: "card chart" }, h("figcaption", {}, h("h2", {}, trend.title), h("p", {}, trend.sentence)), picture, legend, h("details", {}, h("summary", {}, "As a table"), tabulate(trend)));
}

/** @param {string} name @param {number} index */
function badgeOf(name, index) {
  return api.states[name.toUpperCase()]?.badge ?? ORDER[index % ORDER.length] ?? "gray";
}

/** @param {Trend["series"]} series @param {Trend} trend @param {boolean} stacked */
function draw(series, trend, stacked) {
  const instants = [...new Set(series.flatMap((one) => one.points.map(([at]) => Date.parse(at))))].sort((a, b) => a - b);
  const first = instants[0] ?? 0;
  const span = Math.max((instants.at(-1) ?? 1) - first, 1);
  const values = series.map((one) => new Map(one.points.map(([at, value]) => [Date.parse(at), value])));
  const sums = instants.map((at) => values.reduce((sum, of) => sum + (of.get(at) ?? 0), 0));
  const top = niceTop(stacked ? Math.max(...sums, 0) : Math.max(...series.flatMap((one) => one.points.map(([, value]) => value)), 0));
  const x = (/** @type {number} */ at) => LEFT + ((at - first) / span) * (WIDTH - LEFT - 8);
  const y = (/** @type {number} */ value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - 8);
  const base = instants.map(() => 0);
  const shapes = series.map((one, i) => {
    const of = values[i] ?? new Map();
    if (!stacked) return line(one.points.map(([at, value]) => [x(Date.parse(at)), y(value)]), badgeOf(one.name, i));
    const lower = [...base];
    instants.forEach((at, n) => (base[n] = (base[n] ?? 0) + (of.get(at) ?? 0)));
    const edge = [...instants.map((at, n) => [x(at), y(base[n] ?? 0)]), ...instants.map((at, n) => [x(at), y(lower[n] ?? 0)]).reverse()];
    return svg("path", { d: `M${edge.map((point) => point.map((v) => (v ?? 0).toFixed(1)).join(" ")).join("L")}Z`, class: "area", "data-badge": badgeOf(one.name, i) });
  });
  const grid = [0, top / 2, top].map((value) => svg("g", {}, svg("line", { x1: LEFT, x2: WIDTH, y1: y(value), y2: y(value), class: "grid" }), svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, figure(value, MEASURES.has(trend.unit) ? trend.unit : ""))));
  const ends = [first, first + span].map((at, i) => svg("text", { x: i ? WIDTH : LEFT, y: HEIGHT - 4, "text-anchor": i ? "end" : "start" }, new Date(at).toLocaleString([], { weekday: "short", hour: "2-digit", minute: "2-digit" })));
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${trend.title}. ${trend.sentence}` }, ...grid, ...shapes, ...ends);
}

/** @param {number[][]} points @param {string} badge */
function line(points, badge) {
  if (points.length === 1) return svg("circle", { cx: points[0]?.[0] ?? 0, cy: points[0]?.[1] ?? 0, r: 3, class: "point", "data-badge": badge });
  return svg("polyline", { points: points.map((point) => point.map((v) => v.toFixed(1)).join(",")).join(" "), class: "line", "data-badge": badge });
}

/** Return the next round number for the axis. @param {number} value */
function niceTop(value) {
  if (value <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= value) ?? value;
}

/** @param {Trend} trend */
function tabulate(trend) {
  const names = trend.series.map((one) => one.name);
  /** @type {Map<string, Map<string, number>>} */
  const byTime = new Map();
  for (const one of trend.series) for (const [at, value] of one.points) byTime.set(at, (byTime.get(at) ?? new Map()).set(one.name, value));
  const rows = [...byTime].sort().reverse().slice(0, 100).map(([at, values]) => [new Date(at).toLocaleString(), ...names.map((name) => (values.has(name) ? figure(values.get(name) ?? 0, trend.unit) : "–"))]);
  return table(["Time", ...names], rows, trend.title);
}
