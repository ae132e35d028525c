export * from "./machine.js";
export * from "./client.js";
export * from "./stream.js";
export * from "./dom.js";
export * from "./follower.js";
export * from "./preview-style.js";
export * from "./sandbox-preview.js";
