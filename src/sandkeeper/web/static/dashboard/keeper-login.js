// <keeper-login>: exchanges a key for an HttpOnly cookie, or leads to the identity provider.

import { h } from "../pane.js";
import { api } from "./api.js";
import { BaseElement, renderProblem } from "./base-element.js";

export class KeeperLogin extends BaseElement {
  begin() {
    const key = h("input", { type: "password", name: "key", required: true, autocomplete: "current-password", autofocus: true, id: "key" });
    const problem = h("div");
    const others = h("div");
    /** @param {SubmitEvent} event */
    const submit = async (event) => {
      event.preventDefault();
      try {
        await api.login({ key: key.value.trim() });
        key.value = "";
        this.dispatchEvent(new CustomEvent("keeper-login", { bubbles: true }));
      } catch (error) {
        problem.replaceChildren(renderProblem(error));
        key.select();
      }
    };
    this.replaceChildren(h("main", { class: "login" }, h("form", { class: "card", onsubmit: submit },
      h("h1", {}, "Sandkeeper"),
      h("label", { for: "key" }, "Operator or viewer key"), key, problem,
      h("button", { class: "primary" }, "Sign in"), others,
      h("p", { class: "quiet" }, h("code", {}, "sandkeeper open"), " signs you in. The key itself is in the file ", h("code", {}, "operator.key"), " of the data folder."))));
    key.focus();
    void this.#offer(others);
  }

  /** Offer the identity provider, if there is one. @param {HTMLElement} place */
  async #offer(place) {
    const { provider } = await api.signIn();
    if (!provider) return;
    const next = encodeURIComponent(location.pathname + location.search);
    place.replaceChildren(h("a", { class: "button", href: `${provider.path}?next=${next}` }, `Sign in with ${provider.name}`));
  }
}

customElements.define("keeper-login", KeeperLogin);
