// The table of tabs on a sandbox's page. A tab is one module that defines one element, a
// `SandboxTab`; it is loaded when it is opened. To add one: a line here. The address has its `id`.

/** @type {{id: string, title: string, tag: string, load: () => Promise<unknown>}[]} */
export const TABS = [
  { id: "preview", title: "Preview", tag: "preview-tab", load: () => import("./preview-tab.js") },
  { id: "terminal", title: "Terminal", tag: "terminal-tab", load: () => import("./terminal-tab.js") },
  { id: "log", title: "Log", tag: "log-tab", load: () => import("./log-tab.js") },
  { id: "files", title: "Files", tag: "files-tab", load: () => import("./files-tab.js") },
  { id: "timeline", title: "Timeline", tag: "timeline-tab", load: () => import("./timeline-tab.js") },
];
