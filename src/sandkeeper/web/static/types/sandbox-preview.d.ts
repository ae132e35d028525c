export class SandboxPreview extends HTMLElement {
    static observedAttributes: string[];
    set token(token: string | ((expired: boolean) => string | null | Promise<string | null>) | null);
    get token(): string | ((expired: boolean) => string | null | Promise<string | null>) | null;
    /** What the server said last. */
    get status(): Status | null;
    connectedCallback(): void;
    disconnectedCallback(): void;
    /** @param {string} name @param {string|null} old @param {string|null} value */
    attributeChangedCallback(name: string, old: string | null, value: string | null): void;
    /** Makes the sandbox run. */
    wake(): Promise<void> | undefined;
    /** Asks the provider what is true, and loads the preview again. */
    refresh(): Promise<void>;
    #private;
}
import type { Status } from "./shapes.js";
