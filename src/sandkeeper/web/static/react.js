// <SandkeeperProvider> and useSandbox("shop"): a sandbox's live state and actions in a React component.
// Needs React 18 or later from the page's own bundle or import map.

import { createContext, createElement, useContext, useEffect, useMemo, useSyncExternalStore } from "react";
import { Client, describe, INITIAL, SandboxStore } from "./pane.js";

/** @import {ReactNode} from "react" */
/** @import {ClientOptions, Model, Status, View} from "./shapes.js" */

/**
 * @typedef {object} Sandbox
 * @property {Status|null} status The last status from the server; null before the first one.
 * @property {View} view What to show: label, caption, badge, buttons, URL of the frame.
 * @property {boolean} live Whether the stream is connected.
 * @property {() => Promise<void>} wake Start the sandbox from any state.
 * @property {() => Promise<void>} refresh Check the state with the provider.
 * @property {() => Promise<void>} keepAwake Reset the idle timer.
 */

/** @typedef {ClientOptions & {stream?: "project"|"fleet"|"off"}} SandkeeperOptions */

const Options = createContext(/** @type {SandkeeperOptions} */ ({}));

/**
 * Give all hooks and panes below it the server's URL, the token and the kind of stream.
 * @param {SandkeeperOptions & {children?: ReactNode}} props
 */
export function SandkeeperProvider({ base, token, stream, children }) {
  const value = useMemo(() => ({ base, token, stream }), [base, token, stream]);
  return createElement(Options.Provider, { value }, children);
}

/** Return the options of the provider above, or none. */
export function useSandkeeper() {
  return useContext(Options);
}

/**
 * @param {string} project
 * @param {SandkeeperOptions} [options] What is not given comes from the provider. `token` is read on every
 *   render; a new token does not restart the store.
 * @returns {Sandbox}
 */
export function useSandbox(project, options = {}) {
  const given = useSandkeeper();
  const base = options.base ?? given.base ?? "";
  const token = options.token ?? given.token ?? null;
  const stream = options.stream ?? given.stream ?? "project";
  const store = useMemo(() => new SandboxStore(new Client({ base, token }), project, { stream }), [base, project, stream]);
  store.client.token = token;
  useEffect(() => {
    store.start();
    return () => store.stop();
  }, [store]);
  const model = useSyncExternalStore(
    (changed) => store.subscribe(changed),
    () => store.model,
    () => /** @type {Model} */ (INITIAL),
  );
  return useMemo(
    () => ({
      status: model.status,
      view: describe(model, globalThis.location?.origin ?? ""),
      live: model.live,
      wake: () => store.wake(),
      refresh: () => store.verify(),
      keepAwake: () => store.keepAwake(),
    }),
    [store, model],
  );
}
