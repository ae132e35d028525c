// The process that runs JavaScript code. It is given to `node -e` as it stands here.
//
// Code is evaluated as a browser's console does: `await` is allowed everywhere, and what one call
// declared with `const` or `let` the next may declare again.
// A function holds all of it, so that the names in here are not the code's.
(() => {
  "use strict";

  const fs = require("node:fs");
  const inspector = require("node:inspector");
  const childProcess = require("node:child_process");
  const net = require("node:net");
  const path = require("node:path");
  const util = require("node:util");
  const vm = require("node:vm");
  const nodeModule = require("node:module");

  const REPORT_MAX = 16 * 1024 * 1024;
  const TEXT_MAX = 1024 * 1024;
  const KINDS = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg",
    "image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex",
    "application/json": "json", "application/javascript": "javascript",
  };
  const DISPLAY = Symbol.for("Jupyter.display");
  const [requests, reports] = process.argv.slice(-2).map(Number);

  const session = new inspector.Session();
  session.connect();
  let interrupt = () => {};
  let taken;

  const hide = (name, value) =>
    Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
  hide("require", nodeModule.createRequire(process.cwd() + "/"));
  hide("__import", (name) => import(locate(name)));
  hide("__take", (value) => { taken = value; });
  hide("display", (thing) => report({ type: "result", ...render(thing) }));

  // As in Deno: a package from npm, which is installed unless it is there.
  function locate(name) {
    if (/^\.{1,2}\//.test(name)) return path.resolve(name);
    if (!name.startsWith("npm:")) return name;
    const wanted = name.slice(4);
    const bare = wanted.replace(/(?<=.)@[^/]*$/, "");
    const { resolve } = nodeModule.createRequire(process.cwd() + "/");
    try {
      return resolve(bare);
    } catch {
      const quiet = ["install", "--no-save", "--no-audit", "--no-fund", "--silent", "--", wanted];
      childProcess.execFileSync("npm", quiet, { stdio: ["ignore", "ignore", "inherit"] });
      return resolve(bare);
    }
  }

  function report(fields) {
    let text = JSON.stringify(fields);
    if (text.length > REPORT_MAX) {
      const note = `[the result is left out: it is longer than ${REPORT_MAX / 1024 / 1024} MB]`;
      text = JSON.stringify({ type: fields.type, is_main_result: fields.is_main_result, text: note });
    }
    let data = Buffer.from(text + "\n");
    while (data.length > 0) data = data.subarray(fs.writeSync(reports, data));
  }

  function cut(text) {
    if (text.length <= TEXT_MAX) return text;
    return `${text.slice(0, TEXT_MAX)}\n[the rest is left out: ${text.length} characters]`;
  }

  function render(value) {
    const fields = {};
    if (value !== null && typeof value === "object") {
      try {
        const shown = typeof value[DISPLAY] === "function" ? value[DISPLAY]() : {};
        for (const [kind, data] of Object.entries(shown)) {
          if (KINDS[kind]) fields[KINDS[kind]] = data;
        }
        const plain = Object.getPrototypeOf(value) === Object.prototype || Array.isArray(value);
        if (plain && fields.json === undefined) fields.json = JSON.parse(JSON.stringify(value));
      } catch {
        // What cannot be shown richly is shown as text.
      }
    }
    if (fields.text === undefined) fields.text = cut(typeof value === "string" ? value : util.inspect(value));
    return fields;
  }

  function prepare(code, language) {
    if (language === "typescript") code = nodeModule.stripTypeScriptTypes(code, { mode: "transform" });
    if (!/\bimport\b/.test(code)) return code;
    return code
      .replace(/^[ \t]*import\s+(["'][^"']+["'])/gm, "await __import($1)")
      .replace(/^[ \t]*import\s+\*\s+as\s+(\w+)\s+from\s+(["'][^"']+["'])/gm, "const $1 = await __import($2)")
      .replace(/^[ \t]*import\s+(\w+)\s+from\s+(["'][^"']+["'])/gm, "const {default: $1} = await __import($2)")
      .replace(/^[ \t]*import\s+(?:(\w+)\s*,\s*)?\{([^}]*)\}\s+from\s+(["'][^"']+["'])/gm, (_, own, names, from) =>
        `const {${own ? `default: ${own}, ` : ""}${names.replace(/\bas\b/g, ":")}} = await __import(${from})`)
      .replace(/\bimport\s*\(/g, "__import(");
  }

  function evaluate(code) {
    return new Promise((resolve, reject) => {
      interrupt = () => reject(new Error("the code was interrupted"));
      const asked = { expression: code, replMode: true, awaitPromise: true, objectGroup: "call" };
      hide("__post", () => session.post("Runtime.evaluate", asked, (error, answer) =>
        error ? reject(error) : resolve(answer)));
      // Only a script that node itself runs can be broken by a signal, and so all it calls.
      vm.runInThisContext("__post()", { breakOnSigint: true });
    });
  }

  function valueOf(remote) {
    if (remote.objectId === undefined) {
      if (remote.unserializableValue === undefined) return remote.value;
      return vm.runInThisContext(remote.unserializableValue);
    }
    taken = undefined;
    session.post("Runtime.callFunctionOn", {
      objectId: remote.objectId,
      functionDeclaration: "function (it) { __take(it); }",
      arguments: [{ objectId: remote.objectId }],
    });
    return taken;
  }

  function reportError(error) {
    const isError = util.types.isNativeError(error);
    const stack = isError && typeof error.stack === "string" ? error.stack : util.inspect(error);
    // The frames below the code are this file's own.
    const lines = stack.split("\n");
    const own = lines.findIndex((line) => line.includes("node:inspector") || line.includes("[eval]"));
    report({
      type: "error",
      name: isError ? String(error.name) : typeof error,
      value: cut(isError ? String(error.message) : util.inspect(error)),
      traceback: cut((own > 0 ? lines.slice(0, own) : lines).join("\n")),
    });
  }

  async function serve({ code, env, language }) {
    const before = Object.fromEntries(Object.keys(env).map((name) => [name, process.env[name]]));
    Object.assign(process.env, env);
    try {
      const answer = await evaluate(prepare(code, language));
      const value = valueOf(answer.result);
      if (answer.exceptionDetails) reportError(value);
      else if (value !== undefined) report({ type: "result", is_main_result: true, ...render(value) });
    } catch (error) {
      const isBroken = error && error.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED";
      reportError(isBroken ? new Error("the code was interrupted") : error);
    }
    interrupt = () => {};
    session.post("Runtime.releaseObjectGroup", { objectGroup: "call" });
    for (const [name, value] of Object.entries(before)) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
    report({ type: "done" });
  }

  process.on("SIGINT", () => interrupt());
  // Code that fails later, in a timer or a promise that is not awaited, must not end its context.
  process.on("uncaughtException", (error) => console.error(error));
  process.on("unhandledRejection", (error) => console.error(error));

  let turn = Promise.resolve();
  let tail = "";
  new net.Socket({ fd: requests, readable: true, writable: false }).setEncoding("utf8")
    .on("data", (text) => {
      const lines = (tail + text).split("\n");
      tail = lines.pop();
      for (const line of lines) turn = turn.then(() => serve(JSON.parse(line)));
    })
    .on("end", () => process.exit(0));
})();
