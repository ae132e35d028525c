// Build elements without markup strings: text from outside is only ever text, so it never runs.

const SVG = "http://www.w3.org/2000/svg";

/** @type {Readonly<Record<string, string>>} */
const PATHS = {
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5Z",
  play: "M7 5v14l12-7Z",
  error: "M6 6l12 12M18 6 6 18",
  clock: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18Zm0 5v4.5l3 2",
  stop: "M12 3v9M6.5 6.8a8 8 0 1 0 11 0",
  warning: "M12 4 2.8 19.5h18.4ZM12 10v4.5m0 2.3v.4",
  spinner: "M12 3a9 9 0 1 1-9 9",
  refresh: "M20 11a8 8 0 1 0-2.3 6.7M20 5v6h-6",
  copy_url: "M9 9h11v11H9ZM5 15H4V4h11v1",
  open: "M14 4h6v6m0-6-9 9M18 14v6H4V6h6",
  awake: "M5 8h11v9H5Zm11 2h4v4h-4",
};

/**
 * Create an element. `on…` adds a listener, `true` sets an empty attribute, null and false are skipped.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node|string|number|null|undefined|false)} children
 * @returns {any}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child !== null && child !== undefined && child !== false) element.append(String(child) === child || typeof child === "number" ? String(child) : /** @type {Node} */ (child));
  return element;
}

/** @param {string} name */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", `icon ${name}`);
  path.setAttribute("d", PATHS[name] ?? PATHS.warning ?? "");
  svg.append(path);
  return svg;
}

/** Write only a changed text, so an unchanged page is not touched. @param {Element} element @param {string} text */
export function updateText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** @param {Element} element @param {string} name @param {string|null} value */
export function updateAttribute(element, name, value) {
  if (element.getAttribute(name) === value) return;
  if (value === null) element.removeAttribute(name);
  else element.setAttribute(name, value);
}

/** @param {Element} element @param {unknown} shown */
export function setVisible(element, shown) {
  updateAttribute(element, "hidden", shown ? null : "");
}
