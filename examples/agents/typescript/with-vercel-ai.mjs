// Vercel AI SDK: a tool whose sandbox is leased for each call.
import { generateText, isStepCount, tool } from "ai";
import { Sandbox } from "e2b";
import { Sandkeeper } from "sandkeeper";
import { z } from "zod";
import { scriptedModel } from "./scripted-model.mjs";

const keeper = new Sandkeeper();

const runCommand = tool({
  description: "Run a shell command in the conversation's sandbox.",
  inputSchema: z.object({ command: z.string() }),
  execute: ({ command }) =>
    keeper.lease(Sandbox, { userId: "ada", taskId: "vercel-ai" }, async (sandbox) => (await sandbox.commands.run(command)).stdout),
});

const { text } = await generateText({
  model: scriptedModel(),
  tools: { runCommand },
  stopWhen: isStepCount(3),
  prompt: "How much is 6 * 7?",
});
console.log(text);
