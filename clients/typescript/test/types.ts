// Compiled, never run: what a TypeScript program may write, and what it may not.
import { Sandbox } from "e2b";
import { Sandbox as CodeSandbox } from "@e2b/code-interpreter";
import { createElement } from "react";
import { Sandkeeper, type Status, type Wake } from "sandkeeper";
import { tokenRoute } from "sandkeeper/next";
import { SandboxPreview, useSandbox, type Status as PaneStatus } from "sandkeeper/react";

export async function program(keeper: Sandkeeper): Promise<void> {
  const text: string = await keeper.lease(Sandbox, { userId: "ada" }, async (sandbox) => (await sandbox.commands.run("id")).stdout);
  await keeper.lease(CodeSandbox, { userId: "ada", kind: "execution" }, (sandbox) => sandbox.runCode(text));
  await using lease = await keeper.project("shop").hold();
  const native: Sandbox = lease.sandbox(Sandbox);
  void native;
  for await (const event of keeper.events()) {
    const states: string = event.type === "status" ? event.status.status : event.change.type;
    void states;
  }
  const wake: Wake = await keeper.project("shop").wake({ onProgress: ({ step }) => console.log(step) });
  void wake;
  // @ts-expect-error An unknown option is a mistake.
  await keeper.project("shop").create({ prot: 3000 });
}

// The status of the API is what the pane shows: the types of both must agree.
export const shown = (status: Status): Omit<PaneStatus, "actions"> => status;

export const GET: (request: Request) => Promise<Response> = tokenRoute({ authorize: () => true });

export function Page() {
  const { view } = useSandbox("shop", { base: "http://127.0.0.1:7420" });
  const plain = createElement("sandbox-preview", { project: "shop", theme: "dark" });
  return createElement(SandboxPreview, { project: "shop", onSandboxChange: ({ status }) => console.log(status) }, plain, view.label);
}
