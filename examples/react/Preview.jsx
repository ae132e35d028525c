// Two ways: the finished pane, or your own markup around the hook.
// Copy `pane.js` and `react.js` from Sandkeeper's `/embed/` and, for TypeScript, the declarations that
// `make types` writes; or name the modules in an import map.

import { useSandbox } from "./sandkeeper/react.js";
import "./sandkeeper/pane.js";

const KEEPER = "http://127.0.0.1:7420";

async function token() {
  return (await fetch("/sandkeeper-token?project=shop")).text();
}

export function Pane() {
  return <sandbox-preview project="shop" base={KEEPER} token={token} />;
}

export function Line() {
  const { view, wake } = useSandbox("shop", { base: KEEPER, token });
  return (
    <p>
      {view.label} {view.offers.some((offer) => offer.action === "wake") && <button onClick={wake}>Wake</button>}
    </p>
  );
}
