// Times as the user wants to read them: local, or UTC as the server's log has them.

const KEY = "sandkeeper-times";

export function isUtc() {
  return localStorage.getItem(KEY) === "utc";
}

/** @param {boolean} utc */
export function setUtc(utc) {
  localStorage.setItem(KEY, utc ? "utc" : "local");
}

/** Render a moment exactly. @param {Date|string} at @param {Intl.DateTimeFormatOptions} [parts] */
export function exact(at, parts = { dateStyle: "medium", timeStyle: "medium" }) {
  const text = new Date(at).toLocaleString([], { ...parts, ...(isUtc() ? { timeZone: "UTC" } : {}) });
  return isUtc() ? `${text} UTC` : text;
}
