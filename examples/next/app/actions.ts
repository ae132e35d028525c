"use server";

import { issueToken } from "sandkeeper/next";
import { maySee } from "./access";

export async function sandboxToken(project: string): Promise<string> {
  return issueToken(project, { authorize: maySee });
}
