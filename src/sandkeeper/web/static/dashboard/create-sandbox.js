// The form that creates a sandbox.

import { h } from "../pane.js";
import { api } from "./api.js";
import { detailPath, renderProblem } from "./base-element.js";

/** Ask what the sandbox should be, create it, and open its page. */
export function openCreate() {
  const problem = h("div");
  /** @param {string} label @param {Record<string, any>} attributes @param {string} [hint] */
  const field = (label, attributes, hint = "") => h("label", { class: "field" }, h("span", {}, label, hint ? h("span", { class: "quiet" }, ` ${hint}`) : ""), h("input", attributes));
  const create = h("button", { class: "primary" }, "Create");
  const form = h("form", { class: "create", onsubmit: (/** @type {SubmitEvent} */ event) => (event.preventDefault(), void submit()) },
    h("h2", {}, "New sandbox"),
    field("Project", { name: "project", required: true, maxlength: 200, autofocus: true, autocomplete: "off" }, "its name in every address"),
    field("Template", { name: "template", placeholder: "base" }),
    field("Start command", { name: "startCommand", placeholder: "npm run dev" }, "optional"),
    field("Port", { name: "port", type: "number", min: 1, max: 65535, placeholder: "3000" }, "of the preview, optional"),
    field("Idle limit in minutes", { name: "idle", type: "number", min: 1, max: 43200 }, "optional"),
    problem,
    h("div", { class: "row" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), create));
  const dialog = h("dialog", { "aria-label": "New sandbox", onclose: () => dialog.remove() }, form);
  const submit = async () => {
    const { project = "", template, startCommand, port, idle } = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value).trim()]));
    const body = {
      ...(template ? { template } : {}), ...(startCommand ? { startCommand } : {}), ...(port ? { port: Number(port) } : {}),
      ...(idle ? { policy: { idleTimeoutMs: Number(idle) * 60000 } } : {}),
    };
    create.disabled = true;
    try {
      await api.create(project, body);
      dialog.close();
      document.dispatchEvent(new CustomEvent("keeper-go", { detail: detailPath(project) }));
    } catch (error) {
      problem.replaceChildren(renderProblem(error));
    }
    create.disabled = false;
  };
  document.body.append(dialog);
  dialog.showModal();
}
