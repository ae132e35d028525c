// What we use of the fit addon of xterm.js; see ../../vendor.json.

export class FitAddon {
  fit(): void;
}
