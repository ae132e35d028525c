/**
 * Makes an element. `on…` are listeners, `true` is an empty attribute, null and false are left out.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node|string|number|null|undefined|false)} children
 * @returns {any}
 */
export function h(tag: string, attributes?: Record<string, any>, ...children: (Node | string | number | null | undefined | false)[]): any;
/** @param {string} name */
export function icon(name: string): SVGSVGElement;
/** Writes only what changed, so that an unchanged page stays untouched. @param {Element} element @param {string} text */
export function write(element: Element, text: string): void;
/** @param {Element} element @param {string} name @param {string|null} value */
export function mark(element: Element, name: string, value: string | null): void;
/** @param {Element} element @param {boolean} shown */
export function show(element: Element, shown: boolean): void;
