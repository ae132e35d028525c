// Everything that shows one sandbox. The server sends these modules as this one file.

export * from "./words.js";
export * from "./preview-model.js";
export * from "./client.js";
export * from "./stream.js";
export * from "./dom.js";
export * from "./sandbox-store.js";
export * from "./preview-style.js";
export * from "./sandbox-preview.js";
