// What we use of xterm.js; see ../../vendor.json.

export class Terminal {
  constructor(options: Record<string, unknown>);
  readonly cols: number;
  readonly rows: number;
  options: Record<string, any>;
  open(place: HTMLElement): void;
  write(data: Uint8Array | string, done?: () => void): void;
  reset(): void;
  focus(): void;
  dispose(): void;
  loadAddon(addon: object): void;
  onData(act: (text: string) => void): void;
  onBinary(act: (bytes: string) => void): void;
  onResize(act: (size: { cols: number; rows: number }) => void): void;
}
