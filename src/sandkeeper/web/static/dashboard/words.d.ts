// The words of the dashboard, which the server sends as `words.js` beside its scripts.

export const FLEET_WORDS: Record<"notWoken" | "noFiles" | "noSession" | "notPaused" | "connectionLost" | "connecting" | "wakingForTerminal" | "noTerminal", string> & { operations: Record<string, string> };
