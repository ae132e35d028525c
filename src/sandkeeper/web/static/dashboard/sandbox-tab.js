// The base class of the tabs on a sandbox's page: see `sandbox-tabs.js`.

import { BaseElement } from "./base-element.js";

/** @import {Status} from "../shapes.js" */
/** @import {Change} from "./api.js" */

export class SandboxTab extends BaseElement {
  /** The newest status; it is there before `begin`. */
  status = /** @type {Status} */ (/** @type {unknown} */ (null));

  get project() {
    return this.getAttribute("project") ?? "";
  }

  /** Called when `status` was replaced, at most five times a second. @param {Status} before */
  statusChanged(before) {
    void before;
  }

  /** Called with what happened to the sandbox, the newest last. @param {Change[]} changes */
  changesArrived(changes) {
    void changes;
  }
}
