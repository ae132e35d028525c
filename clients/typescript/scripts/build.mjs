// Builds dist/ from src/, and from what this package shares with the server: the types of the API come
// from docs/openapi.json, and the modules of the pane are the server's own files.
import { execFileSync } from "node:child_process";
import { copyFileSync, cpSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import openapiTS, { astToString } from "openapi-typescript";

const here = dirname(dirname(fileURLToPath(import.meta.url)));
const root = join(here, "../..");
const served = join(root, "src/sandkeeper/web/static");
const pane = join(here, "src/pane");
const tsc = createRequire(import.meta.url).resolve("typescript/bin/tsc");

// The hook also renders on a server, where custom elements do not exist: it imports only the modules without them.
const STATE = ["client", "stream", "preview-model", "sandbox-store"];

rmSync(pane, { recursive: true, force: true });
mkdirSync(pane, { recursive: true });
for (const name of readdirSync(served)) {
  if (/\.(js|d\.ts)$/.test(name)) copyFileSync(join(served, name), join(pane, name));
}
cpSync(join(here, "words"), pane, { recursive: true });
writeFileSync(join(pane, "state.js"), STATE.map((name) => `export * from "./${name}.js";\n`).join(""));
const hook = readFileSync(join(pane, "react.js"), "utf8");
writeFileSync(join(pane, "react.js"), `"use client";\n${hook.replace('"./pane.js"', '"./state.js"')}`);

const document = JSON.parse(readFileSync(join(root, "docs/openapi.json"), "utf8"));
writeFileSync(join(here, "src/openapi.ts"), astToString(await openapiTS(document, { defaultNonNullable: false })));

// Built beside the old one and swapped, so that a failed build leaves the last good one.
const fresh = join(here, "dist.new");
rmSync(fresh, { recursive: true, force: true });
execFileSync(process.execPath, [tsc, "--project", here, "--outDir", fresh], { stdio: "inherit" });
for (const name of readdirSync(pane)) {
  // Where a module has declarations of its own, the compiler leaves both as they are.
  if (/(\.d\.ts|words\.js)$/.test(name)) copyFileSync(join(pane, name), join(fresh, "pane", name));
}
rmSync(join(here, "dist"), { recursive: true, force: true });
renameSync(fresh, join(here, "dist"));
copyFileSync(join(root, "LICENSE"), join(here, "LICENSE"));
