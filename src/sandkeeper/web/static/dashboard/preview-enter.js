// <preview-enter>: leads someone who is signed in to a preview that members may see.

import { api } from "./api.js";
import { BaseElement, renderProblem } from "./base-element.js";

export class PreviewEnter extends BaseElement {
  begin() {
    void this.#go();
  }

  async #go() {
    const to = new URLSearchParams(location.search).get("to") ?? "";
    try {
      const { url } = await api.enterPreview(to);
      location.replace(url);
    } catch (error) {
      this.replaceChildren(renderProblem(error));
    }
  }
}

customElements.define("preview-enter", PreviewEnter);
