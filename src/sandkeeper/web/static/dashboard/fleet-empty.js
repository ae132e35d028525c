// An empty fleet: the first three commands, and a button that starts a demo fleet.

import { h } from "../pane.js";
import { api } from "./api.js";
import { mayOperate, renderProblem } from "./base-element.js";

const DEMO = new URL("demo.json", import.meta.url);
const COMMANDS = [
  ["sandkeeper create my-project", "create a sandbox for a project"],
  ["sandkeeper ls", "list all sandboxes"],
  ["sandkeeper explain my-project", "show why it sleeps or wakes"],
];

/** @param {() => void} onCreated */
export function renderEmpty(onCreated) {
  const problem = h("div");
  const start = async () => {
    button.disabled = true;
    button.textContent = "Starting…";
    try {
      const { sandboxes } = await (await fetch(DEMO)).json();
      for (const one of sandboxes) await api.create(one.project, one.request);
      onCreated();
      for (const one of sandboxes) if (one.then === "pause") await api.act(one.project, "pause");
      for (const one of sandboxes) if (one.then === "kill") await api.kill(one.project);
    } catch (error) {
      button.disabled = false;
      button.textContent = "Start a demo fleet";
      problem.replaceChildren(renderProblem(error));
    }
  };
  const button = h("button", { type: "button", class: "primary", onclick: () => void start() }, "Start a demo fleet");
  return h("section", { class: "card empty" },
    h("h2", {}, "No sandboxes yet"),
    h("p", {}, "Sandboxes appear here when you or your application create them:"),
    h("dl", {}, ...COMMANDS.flatMap(([command, meaning]) => [h("dt", {}, h("code", {}, command ?? "")), h("dd", {}, meaning ?? "")])),
    mayOperate() ? button : null, problem);
}
