// Next.js: what gives the browser a token for one project, as a route handler or in a server action.
// The keeper's key stays on the server.

import { SandkeeperError } from "./errors.js";
import { Sandkeeper } from "./keeper.js";

export interface TokenOptions {
  /** Say whether the signed-in user may see this project. There is no default: every project would be open. */
  authorize: (project: string) => boolean | Promise<boolean>;
  /** Default: the keeper that `SANDKEEPER_URL` and `SANDKEEPER_OPERATOR_KEY` name. */
  keeper?: Sandkeeper;
  /** Time to live of the token. Default: the keeper's. */
  ttlS?: number;
}

/** Thrown when `authorize` said no. Next.js shows its message to no browser in production. */
export class NotAuthorizedError extends Error {
  constructor(project: string) {
    super(`The user may not see the project ${JSON.stringify(project)}.`);
    this.name = "NotAuthorizedError";
  }
}

/**
 * Return a client token, for a server action:
 *
 *     "use server";
 *     export async function sandboxToken(project: string) {
 *       return issueToken(project, { authorize: async (project) => … });
 *     }
 */
export async function issueToken(project: string, options: TokenOptions): Promise<string> {
  // The argument of a server action comes from a browser: it may be anything.
  if (typeof project !== "string" || !project || !(await options.authorize(project))) throw new NotAuthorizedError(String(project));
  const keeper = options.keeper ?? new Sandkeeper();
  return (await keeper.issueClientToken(project, { ttlS: options.ttlS })).token;
}

/**
 * Return a route handler that answers `?project=…` with a client token as text:
 *
 *     // app/sandkeeper-token/route.ts
 *     export const GET = tokenRoute({ authorize: async (project, request) => … });
 */
export function tokenRoute(
  options: Omit<TokenOptions, "authorize"> & { authorize: (project: string, request: Request) => boolean | Promise<boolean> },
): (request: Request) => Promise<Response> {
  return async (request) => {
    const project = new URL(request.url).searchParams.get("project") ?? "";
    if (!project) return refuse(400, "Name a project: ?project=…");
    try {
      const token = await issueToken(project, { ...options, authorize: (name) => options.authorize(name, request) });
      return new Response(token, { headers: { "Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store" } });
    } catch (error) {
      if (error instanceof NotAuthorizedError) return refuse(403, "This project is not yours.");
      if (!(error instanceof SandkeeperError)) throw error;
      console.error(`No client token for ${JSON.stringify(project)}: ${error.message} ${error.hint}`);
      return refuse(502, "The keeper issued no token; the server's log says why.");
    }
  };
}

function refuse(status: number, message: string): Response {
  return new Response(message, { status, headers: { "Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store" } });
}
