// An empty fleet: the three commands with which one begins, and a button that begins for you.

import { h } from "../pane.js";
import { api } from "./api.js";
import { mayOperate, renderFault } from "./part.js";

const DEMO = new URL("demo.json", import.meta.url);
const COMMANDS = [
  ["sandkeeper create my-project", "a sandbox for a project"],
  ["sandkeeper ls", "what there is"],
  ["sandkeeper explain my-project", "why it sleeps or wakes"],
];

/** @param {() => void} begun */
export function renderEmpty(begun) {
  const fault = h("div");
  const start = async () => {
    button.disabled = true;
    button.textContent = "Starting…";
    try {
      const { sandboxes } = await (await fetch(DEMO)).json();
      for (const one of sandboxes) await api.create(one.project, one.asked);
      begun();
      for (const one of sandboxes) if (one.then === "pause") await api.act(one.project, "pause");
      for (const one of sandboxes) if (one.then === "kill") await api.kill(one.project);
    } catch (error) {
      button.disabled = false;
      button.textContent = "Start a demo fleet";
      fault.replaceChildren(renderFault(error));
    }
  };
  const button = h("button", { type: "button", class: "primary", onclick: () => void start() }, "Start a demo fleet");
  return h("section", { class: "card empty" },
    h("h2", {}, "No sandboxes yet"),
    h("p", {}, "A sandbox appears here as soon as your application, or you, create one:"),
    h("dl", {}, ...COMMANDS.flatMap(([command, meaning]) => [h("dt", {}, h("code", {}, command ?? "")), h("dd", {}, meaning ?? "")])),
    mayOperate() ? button : null, fault);
}
