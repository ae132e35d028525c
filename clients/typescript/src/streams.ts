// Live streams as typed events.

import type { Connection, Query } from "./connection.js";
import type { Change, Status, StreamEvent } from "./types.js";

export interface StreamOptions {
  /** The `seq` of the last change that the caller knows: what came after it is sent first. */
  after?: number;
  /** Ends the stream. */
  signal?: AbortSignal;
}

/** Yield changes and statuses; drop a status that is older than one already yielded. */
export async function* readEvents(connection: Connection, path: string, options: StreamOptions & { query?: Query }): AsyncGenerator<StreamEvent, void, undefined> {
  const versions = new Map<string, number>();
  for await (const { event, data } of connection.stream(path, options)) {
    if (event === "change") yield { type: "change", change: data as Change };
    if (event !== "status") continue;
    const status = data as Status;
    if (status.version < (versions.get(status.id) ?? 0)) continue;
    versions.set(status.id, status.version);
    yield { type: "status", status };
  }
}
