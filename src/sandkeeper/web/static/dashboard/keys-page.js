// <keys-page>: who may get in: named keys, client tokens, logins. Revoking ends at once.

import { h } from "../pane.js";
import { api } from "./api.js";
import { BaseElement, confirmAction, nothing, renderProblem, section, showDialog, table, toast, until, when } from "./base-element.js";

export class KeysPage extends BaseElement {
  #keys = h("div");
  #tokens = h("div");
  #logins = h("div");
  #problem = h("div");

  begin() {
    this.replaceChildren(h("div", { class: "heading" }, h("h1", {}, "Keys and tokens")), this.#problem,
      h("div", { class: "column" }, section("Named keys", this.#form(), this.#keys), section("Client tokens", this.#tokens), section("Logins", this.#logins)));
    this.#show();
  }

  #form() {
    const name = h("input", { required: true, placeholder: "name", "aria-label": "Name", maxlength: 64 });
    const scope = h("input", { required: true, placeholder: "read, operate, operate:PREFIX, admin", "aria-label": "Scope", size: 34 });
    const create = async (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      try {
        const made = await api.json("POST", "/api/keys", { name: name.value.trim(), scope: scope.value.trim() });
        this.#problem.replaceChildren();
        showDialog(`Key ${made.name}`, [h("p", {}, "It is shown this once. Copy it now."), h("pre", { tabindex: 0, "aria-label": "Key" }, made.key)]);
        this.#show();
      } catch (error) {
        this.#problem.replaceChildren(renderProblem(error));
      }
    };
    return h("form", { class: "filters", onsubmit: create }, name, scope, h("button", {}, "Create key"));
  }

  #show() {
    void this.load(this.#keys, () => api.json("GET", "/api/keys"), ({ items }) => list(items, ["Name", "Scope", "Created", "By", "Expires in", "Action"], "Named keys", (one) => [one.name, one.scope, when(one.createdAt), one.createdBy, until(one.expiresAt), this.#revoke(`the key ${one.name}`, `/api/keys/${one.id}`)]));
    void this.load(this.#tokens, () => api.json("GET", "/api/client-tokens"), ({ items }) => list(items, ["For", "Issued", "By", "Expires in", "Action"], "Client tokens", (one) => [one.project, when(one.issuedAt), one.issuedBy, until(one.expiresAt), this.#revoke(`the token for ${one.project}`, `/api/client-tokens/${one.id}`)]));
    void this.load(this.#logins, () => api.json("GET", "/api/logins"), ({ items }) => list(items, ["Who", "Role", "Since", "Ends in", "Action"], "Logins", (one) => [one.current ? `${one.holder} (this one)` : one.holder, one.role, when(one.issuedAt), until(one.expiresAt), this.#revoke(`the login of ${one.holder}`, `/api/logins/${one.id}`)]));
  }

  /** @param {string} what @param {string} path */
  #revoke(what, path) {
    const act = async () => {
      if (!(await confirmAction(`Revoke ${what}?`, [h("p", {}, "What uses it is refused at once, on every replica within seconds.")], "Revoke", true))) return;
      try {
        await api.json("DELETE", path);
        toast(`Revoked ${what}`);
        this.#show();
      } catch (error) {
        this.#problem.replaceChildren(renderProblem(error));
      }
    };
    return h("button", { type: "button", class: "small", "aria-label": `Revoke ${what}`, onclick: () => void act() }, "Revoke");
  }
}

/** @param {any[]} items @param {string[]} heads @param {string} caption @param {(one: any) => (Node|string)[]} row */
function list(items, heads, caption, row) {
  return items.length ? [table(heads, items.map(row), caption)] : [nothing("None.")];
}

customElements.define("keys-page", KeysPage);
