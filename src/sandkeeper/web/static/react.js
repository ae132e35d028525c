// useSandbox("shop"): a sandbox's state in a React component, live, and what can be done with it.
// It needs React 18 or later from the page's own bundle or import map.

import { useEffect, useMemo, useSyncExternalStore } from "react";
import { BEGINNING, Client, describe, Follower } from "./pane.js";

/** @import {ClientOptions, Model, Status, View} from "./shapes.js" */

/**
 * @typedef {object} Sandbox
 * @property {Status|null} status What the server said last; null until it said anything.
 * @property {View} view What to show: label, caption, badge, buttons, address of the frame.
 * @property {boolean} live Whether changes arrive by themselves.
 * @property {() => Promise<void>} wake Makes it run, whatever it was.
 * @property {() => Promise<void>} refresh Asks the provider what is true.
 * @property {() => Promise<void>} keepAwake Says that somebody still needs it.
 */

/**
 * @param {string} project
 * @param {ClientOptions & {stream?: "project"|"fleet"|"off"}} [options] `token` is read anew with
 *   every render, so a token that changes does not start over.
 * @returns {Sandbox}
 */
export function useSandbox(project, { base = "", token = null, stream = "project" } = {}) {
  const follower = useMemo(() => new Follower(new Client({ base, token }), project, { stream }), [base, project, stream]);
  follower.client.token = token;
  useEffect(() => {
    follower.start();
    return () => follower.stop();
  }, [follower]);
  const model = useSyncExternalStore(
    (changed) => follower.subscribe(changed),
    () => follower.model,
    () => /** @type {Model} */ (BEGINNING),
  );
  return useMemo(
    () => ({
      status: model.status,
      view: describe(model, globalThis.location?.origin ?? ""),
      live: model.live,
      wake: () => follower.wake(),
      refresh: () => follower.verify(),
      keepAwake: () => follower.keepAwake(),
    }),
    [follower, model],
  );
}
