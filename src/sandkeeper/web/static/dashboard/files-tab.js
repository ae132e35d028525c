// <files-tab>: the files that are kept.

import { h } from "../pane.js";
import { api } from "./api.js";
import { amount, askSoon, nothing, orNull, section, table, when } from "./base-element.js";
import { SandboxTab } from "./sandbox-tab.js";
import { FLEET_WORDS } from "./words.js";

/** @import {Status} from "../shapes.js" */

export class FilesTab extends SandboxTab {
  #files = h("div");

  begin() {
    this.replaceChildren(section("Files", this.#files));
    void this.#read();
  }

  /** @param {Status} before */
  statusChanged(before) {
    if (before.status !== this.status.status) askSoon(`files ${this.project}`, () => this.isConnected && this.#read());
  }

  #read() {
    return this.load(this.#files, () => orNull(api.files(this.project)), renderFiles);
  }
}

/** @param {any} answer */
function renderFiles(answer) {
  if (!answer?.version) return [nothing(FLEET_WORDS.noFiles)];
  const [latest] = answer.versions;
  const rows = answer.items.map((/** @type {any} */ file) => [file.path, size(file.size), h("code", { title: file.sha256 ?? "" }, (file.sha256 ?? file.target ?? file.kind).slice(0, 12))]);
  return [
    h("p", { class: "quiet" }, `${amount(answer.files, "file")}, ${size(answer.bytes)}, version ${answer.version}`, latest ? h("span", {}, ", confirmed ", when(latest.seenAt)) : ""),
    table(["Path", "Size", "Hash"], rows, "Kept files"),
    answer.nextCursor ? h("p", { class: "quiet" }, "The list is longer: ", h("code", {}, `sandkeeper files ls`), " shows all.") : "",
  ];
}

/** @param {number} bytes */
function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  return bytes < 1048576 ? `${(bytes / 1024).toFixed(1)} KB` : `${(bytes / 1048576).toFixed(1)} MB`;
}

customElements.define("files-tab", FilesTab);
