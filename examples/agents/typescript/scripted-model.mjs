// Takes the place of a real model: calls the tool once, then repeats what it said.
import { convertArrayToReadableStream, MockLanguageModelV4 } from "ai/test";

const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };

/** Return the content of the answer, and why it ends. */
function answerTo(prompt) {
  const results = prompt.filter(({ role }) => role === "tool").flatMap(({ content }) => content);
  const said = results.find((part) => part.type === "tool-result")?.output.value;
  if (said !== undefined) return { content: { type: "text", text: `It said ${said}` }, reason: "stop" };
  const input = JSON.stringify({ command: "echo $((6 * 7)) | tee answer.txt" });
  return { content: { type: "tool-call", toolCallId: "1", toolName: "runCommand", input }, reason: "tool-calls" };
}

export function scriptedModel() {
  return new MockLanguageModelV4({
    doGenerate: async ({ prompt }) => {
      const { content, reason } = answerTo(prompt);
      return { content: [content], finishReason: { unified: reason, raw: reason }, usage, warnings: [] };
    },
    doStream: async ({ prompt }) => {
      const { content, reason } = answerTo(prompt);
      const parts =
        content.type === "text"
          ? [{ type: "text-start", id: "1" }, { type: "text-delta", id: "1", delta: content.text }, { type: "text-end", id: "1" }]
          : [content];
      const finish = { type: "finish", finishReason: { unified: reason, raw: reason }, usage };
      return { stream: convertArrayToReadableStream([{ type: "stream-start", warnings: [] }, ...parts, finish]) };
    },
  });
}
