// The kept files of one sandbox, available in every state of the sandbox.

import type { Connection } from "./connection.js";
import type { Capture, Checkpoint, FileDiff, FileEdit, FileVersion, KeptFile, Page, PathChange, Restored } from "./types.js";

export class Files {
  readonly #connection: Connection;
  readonly #path: string;

  constructor(connection: Connection, sandboxPath: string) {
    this.#connection = connection;
    this.#path = sandboxPath;
  }

  /** Return all kept files with this prefix, sorted by path. */
  list(prefix = "", options: { version?: number } = {}): Promise<KeptFile[]> {
    return this.#all("files", { prefix, version: options.version });
  }

  /** Return the versions that are still kept, newest first; with `named`, checkpoints only. */
  versions(options: { named?: boolean } = {}): Promise<FileVersion[]> {
    return this.#all("versions", { named: options.named ?? false });
  }

  /** Return the paths that differ from another version, or from the one saved before it. */
  diff(version: number, options: { against?: number } = {}): Promise<PathChange[]> {
    return this.#all(`versions/${version}/diff`, options);
  }

  /** Compare one file of a version with another one, or with the one saved before it. */
  diffFile(path: string, version: number, options: { against?: number } = {}): Promise<FileDiff> {
    return this.#connection.request("GET", `${this.#path}/versions/${version}/diff/${encodePath(path)}`, { query: options });
  }

  /** Restore a file, a folder, or all files as they were; the present ones are saved first. */
  restore(version: number, path = ""): Promise<Restored> {
    return this.#connection.request("POST", `${this.#path}/restore`, { body: { version, path } });
  }

  /** Name a version, which keeps it; without `version`, the files as they are now. */
  checkpoint(name: string, options: { version?: number } = {}): Promise<Checkpoint> {
    return this.#connection.request("POST", `${this.#path}/checkpoints`, { body: { name, ...options } });
  }

  /** Remove a checkpoint's name; its version is pruned like all others from then on. */
  async deleteCheckpoint(name: string): Promise<void> {
    await this.#connection.send("DELETE", `${this.#path}/checkpoints/${encodeURIComponent(name)}`);
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

  async #all<T>(what: string, query: Record<string, string | number | boolean | undefined>): Promise<T[]> {
    const found: T[] = [];
    let cursor: string | null = null;
    do {
      const page: Page<T> = await this.#connection.request("GET", `${this.#path}/${what}`, { query: { ...query, cursor } });
      found.push(...page.items);
      cursor = page.nextCursor;
    } while (cursor !== null);
    return found;
  }

  #of(path: string): string {
    return `${this.#path}/files/${encodePath(path)}`;
  }
}

function encodePath(path: string): string {
  return path.split("/").map(encodeURIComponent).join("/");
}
