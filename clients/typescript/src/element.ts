// Registers <sandbox-preview>, for pages that are bundled. On a server, where there are no elements, it does nothing.

import type { SandboxPreview } from "./pane/sandbox-preview.js";

export type { SandboxPreview };

declare global {
  interface HTMLElementTagNameMap {
    "sandbox-preview": SandboxPreview;
  }
}

/** Register the element; resolves when it is defined. */
export async function defineElement(): Promise<void> {
  if (typeof HTMLElement !== "undefined") await import("./pane/pane.js");
}

void defineElement();
