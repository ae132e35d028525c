"use client";

// React: a provider, a hook, a component, and the types of <sandbox-preview> in JSX.

import { createElement, useEffect, useRef, type DetailedHTMLProps, type HTMLAttributes, type ReactElement } from "react";
import { useSandkeeper } from "./pane/react.js";
import type { SandboxPreview as SandboxPreviewElement } from "./pane/sandbox-preview.js";
import type { Status, Token } from "./pane/shapes.js";

export { SandkeeperProvider, useSandbox } from "./pane/react.js";
export type { Sandbox } from "./pane/react.js";
export type { Model, State, Status, Token, View } from "./pane/shapes.js";

/** The attributes of <sandbox-preview>. */
export interface SandboxPreviewAttributes {
  project?: string;
  job?: string;
  base?: string;
  token?: Token;
  stream?: "project" | "fleet" | "off";
  theme?: "light" | "dark";
}

type ElementProps = DetailedHTMLProps<HTMLAttributes<SandboxPreviewElement>, SandboxPreviewElement> & SandboxPreviewAttributes;

declare module "react" {
  namespace JSX {
    interface IntrinsicElements {
      "sandbox-preview": ElementProps;
    }
  }
}

export type SandboxPreviewProps = Omit<ElementProps, "ref"> & {
  /** Called when the state changes. */
  onSandboxChange?: (status: Status) => void;
};

/** The finished pane. What is not given comes from the provider. */
export function SandboxPreview({ token, base, stream, onSandboxChange, ...rest }: SandboxPreviewProps): ReactElement {
  const given = useSandkeeper();
  const element = useRef<SandboxPreviewElement>(null);
  const currentToken = token ?? given.token ?? null;

  // Before the element is defined these are plain properties: they are set again when it is.
  useEffect(() => {
    let left = false;
    void import("./pane/pane.js").then(() => {
      if (!left && element.current && element.current.token !== currentToken) element.current.token = currentToken;
    });
    return () => void (left = true);
  }, [currentToken]);

  useEffect(() => {
    const target = element.current;
    if (!target || !onSandboxChange) return undefined;
    const listen = (event: Event) => onSandboxChange((event as CustomEvent<Status>).detail);
    target.addEventListener("sandbox-change", listen);
    return () => target.removeEventListener("sandbox-change", listen);
  }, [onSandboxChange]);

  return createElement("sandbox-preview", { ...rest, ref: element, base: base ?? given.base ?? "", stream: stream ?? given.stream });
}
