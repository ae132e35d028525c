import { Sandkeeper } from "sandkeeper";
import { Preview } from "./preview";

// The status changes: this page is rendered for every request.
export const dynamic = "force-dynamic";

export default async function Page() {
  const keeper = new Sandkeeper();
  const { status } = await keeper.project("shop").status();
  return (
    <main>
      <h1>Next.js and Sandkeeper</h1>
      <p>
        On the server it was: <output id="server-state">{status}</output>
      </p>
      <Preview project="shop" base={keeper.url} />
    </main>
  );
}
