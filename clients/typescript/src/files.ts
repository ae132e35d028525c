// The kept files of one sandbox, available in every state of the sandbox.

import type { Connection } from "./connection.js";
import type { Capture, FileEdit, KeptFile, Page } from "./types.js";

export class Files {
  readonly #connection: Connection;
  readonly #path: string;

  constructor(connection: Connection, sandboxPath: string) {
    this.#connection = connection;
    this.#path = sandboxPath;
  }

  /** Return all kept files with this prefix, sorted by path. */
  async list(prefix = "", options: { version?: number } = {}): Promise<KeptFile[]> {
    const found: KeptFile[] = [];
    let cursor: string | null = null;
    do {
      const query = { prefix, version: options.version, cursor };
      const page: Page<KeptFile> = await this.#connection.request("GET", `${this.#path}/files`, { query });
      found.push(...page.items);
      cursor = page.nextCursor;
    } while (cursor !== null);
    return found;
  }

  /** Return a kept file's content. */
  async read(path: string, options: { version?: number } = {}): Promise<Uint8Array> {
    const response = await this.#connection.send("GET", this.#of(path), { query: options });
    return new Uint8Array(await response.arrayBuffer());
  }

  /** Return a kept file's content as text. */
  async readText(path: string, options: { version?: number } = {}): Promise<string> {
    return new TextDecoder().decode(await this.read(path, options));
  }

  /** Keep a file; it is written to a running sandbox immediately. The result says whether it was. */
  write(path: string, content: string | Uint8Array<ArrayBuffer>, options: { mode?: number } = {}): Promise<FileEdit> {
    const mode = options.mode?.toString(8).padStart(4, "0");
    return this.#connection.request("PUT", this.#of(path), { content, query: { mode } });
  }

  /** Delete a file from the kept files and from the sandbox. */
  delete(path: string): Promise<FileEdit> {
    return this.#connection.request("DELETE", this.#of(path));
  }

  /** Capture the files of the running sandbox now. */
  capture(): Promise<Capture> {
    return this.#connection.request("POST", `${this.#path}/capture`);
  }

  /** Return all kept files as a tar archive. It is not read into memory at once. */
  async readArchive(options: { version?: number } = {}): Promise<ReadableStream<Uint8Array>> {
    const response = await this.#connection.send("GET", `${this.#path}/archive`, { query: options, timeoutMs: 0 });
    return response.body ?? new Blob().stream();
  }

  /** Keep all files of an uncompressed tar; with `replace`, delete all others. */
  writeArchive(content: Uint8Array<ArrayBuffer>, options: { replace?: boolean } = {}): Promise<FileEdit> {
    return this.#connection.request("PUT", `${this.#path}/archive`, { content, query: options });
  }

  #of(path: string): string {
    return `${this.#path}/files/${path.split("/").map(encodeURIComponent).join("/")}`;
  }
}
