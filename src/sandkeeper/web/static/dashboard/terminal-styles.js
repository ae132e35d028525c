// xterm.js writes style elements and style attributes, which our content policy refuses. While a
// terminal is shown, both become what the policy allows: constructed sheets and single properties.

/** @returns {() => void} Ends it. */
export function translateStyles() {
  const { setAttribute } = Element.prototype;
  const { createElement } = Document.prototype;
  Element.prototype.setAttribute = function (/** @type {string} */ name, /** @type {string} */ value) {
    if (name === "style" && this instanceof HTMLElement) this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };
  document.createElement = /** @type {any} */ ((/** @type {string} */ tag) => (tag === "style" ? makeSheet() : createElement.call(document, tag)));
  return () => {
    Element.prototype.setAttribute = setAttribute;
    Reflect.deleteProperty(document, "createElement");
  };
}

/** Return an element whose text is a constructed sheet. */
function makeSheet() {
  const element = Document.prototype.createElement.call(document, "span");
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  Object.defineProperty(element, "textContent", { set: (text) => sheet.replaceSync(text) });
  element.hidden = true;
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
    Element.prototype.remove.call(element);
  };
  return element;
}
