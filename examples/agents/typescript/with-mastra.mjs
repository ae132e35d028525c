// Mastra: an agent with a tool whose sandbox is leased for each call.
import { Agent } from "@mastra/core/agent";
import { createTool } from "@mastra/core/tools";
import { Sandbox } from "e2b";
import { Sandkeeper } from "sandkeeper";
import { z } from "zod";
import { scriptedModel } from "./scripted-model.mjs";

const keeper = new Sandkeeper();

const runCommand = createTool({
  id: "runCommand",
  description: "Run a shell command in the conversation's sandbox.",
  inputSchema: z.object({ command: z.string() }),
  execute: ({ command }) =>
    keeper.lease(Sandbox, { userId: "ada", taskId: "mastra" }, async (sandbox) => (await sandbox.commands.run(command)).stdout),
});

const agent = new Agent({ id: "coder", name: "coder", instructions: "Use the tool.", model: scriptedModel(), tools: { runCommand } });
console.log((await agent.generate("How much is 6 * 7?")).text);
