// useSandbox("shop"): a sandbox's live state and actions in a React component.
// Needs React 18 or later from the page's own bundle or import map.

import { useEffect, useMemo, useSyncExternalStore } from "react";
import { Client, describe, INITIAL, SandboxStore } from "./pane.js";

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

/**
 * @param {string} project
 * @param {ClientOptions & {stream?: "project"|"fleet"|"off"}} [options] `token` is read on
 *   every render; a new token does not restart the store.
 * @returns {Sandbox}
 */
export function useSandbox(project, { base = "", token = null, stream = "project" } = {}) {
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
