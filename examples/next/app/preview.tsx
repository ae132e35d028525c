"use client";

import { useCallback } from "react";
import { SandboxPreview, SandkeeperProvider, useSandbox } from "sandkeeper/react";
import { sandboxToken } from "./actions";

export function Preview({ project, base }: { project: string; base: string }) {
  // A server action. `fetch("/sandkeeper-token?project=…")` asks the route handler beside this file instead.
  const token = useCallback(() => sandboxToken(project), [project]);
  return (
    <SandkeeperProvider base={base} token={token}>
      <SandboxPreview project={project} style={{ height: "60vh" }} />
      <State project={project} />
    </SandkeeperProvider>
  );
}

function State({ project }: { project: string }) {
  const { status } = useSandbox(project);
  return (
    <p>
      State: <output id="state">{status?.status}</output>
    </p>
  );
}
