import { dirname } from "node:path";
import { fileURLToPath } from "node:url";

/** @type {import("next").NextConfig} */
export default {
  // This folder is an application of its own, whatever lock files are above it.
  turbopack: { root: dirname(fileURLToPath(import.meta.url)) },
};
