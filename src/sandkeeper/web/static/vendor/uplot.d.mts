// What we use of uPlot; see ../../vendor.json.

export default class uPlot {
  constructor(options: any, data: any[], place: HTMLElement);
  data: (number | null)[][];
  cursor: { idx?: number | null };
  bbox: { left: number; top: number; width: number; height: number };
  select: { left: number; width: number };
  root: HTMLElement;
  series: any[];
  setData(data: any[], resetScales?: boolean): void;
  setSize(size: { width: number; height: number }): void;
  posToVal(position: number, scale: string): number;
  setSelect(select: { left: number; top: number; width: number; height: number }, fire?: boolean): void;
  destroy(): void;
}
