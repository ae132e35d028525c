export const STYLE: CSSStyleSheet;
