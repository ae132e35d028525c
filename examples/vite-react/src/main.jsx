import { createRoot } from "react-dom/client";
import { SandboxPreview, SandkeeperProvider, useSandbox } from "sandkeeper/react";

// Outside the component: a new function on every render would be a new source of tokens.
const token = async () => (await fetch("/sandkeeper-token?project=shop")).text();

function State() {
  const { status, view, wake } = useSandbox("shop");
  const canWake = view.offers.some((offer) => offer.action === "wake");
  return (
    <p>
      State: <output id="state">{status?.status}</output> {canWake && <button onClick={wake}>Wake it</button>}
    </p>
  );
}

function App() {
  return (
    <SandkeeperProvider base={__SANDKEEPER_URL__} token={token}>
      <h1>Vite, React and Sandkeeper</h1>
      <SandboxPreview project="shop" style={{ height: "60vh" }} />
      <State />
    </SandkeeperProvider>
  );
}

createRoot(document.getElementById("root")).render(<App />);
