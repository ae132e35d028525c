// app/preview.tsx: a custom element exists only in the browser, so this is a client component.
"use client";

import { useEffect, useRef } from "react";

const KEEPER = process.env.NEXT_PUBLIC_SANDKEEPER_URL ?? "http://127.0.0.1:7420";

export function Preview({ project }: { project: string }) {
  const place = useRef<HTMLDivElement>(null);

  useEffect(() => {
    const pane = document.createElement("sandbox-preview");
    const script = document.createElement("script");
    script.type = "module";
    script.src = `${KEEPER}/embed/pane.js`;
    document.head.append(script);
    Object.assign(pane, { token: async () => (await fetch(`/sandkeeper-token?project=${encodeURIComponent(project)}`)).text() });
    pane.setAttribute("base", KEEPER);
    pane.setAttribute("project", project);
    place.current?.append(pane);
    return () => pane.remove();
  }, [project]);

  return <div ref={place} />;
}
