// An agent's workspace: a named sandbox that is found again, commands, processes and files.
import assert from "node:assert/strict";
import { E2BSandbox } from "@mastra/e2b";
import { Sandbox } from "e2b";

const template = "base";
const first = new E2BSandbox({ id: "a-workspace", template, timeout: 600_000, env: { A: "1" } });
await first.start();
const id = first.e2b.sandboxId;
console.log("create");

const ran = await first.executeCommand("sh", ["-c", "echo $A"]);
assert.deepEqual([ran.stdout, ran.exitCode], ["1\n", 0]);
const process = await first.processes.spawn("cat");
await process.sendStdin("typed\n");
await process.kill();
assert.equal((await first.executeCommand("sh", ["-c", "exit 3"])).exitCode, 3);
console.log("run");

await first.writeFiles([{ path: "/home/user/note.txt", content: "kept" }]);
assert.equal((await first.executeCommand("cat", ["/home/user/note.txt"])).stdout, "kept");
console.log("files");

await first.stop();
const second = new E2BSandbox({ id: "a-workspace", template });
await second.start();
assert.equal(second.e2b.sandboxId, id);
assert.equal((await second.executeCommand("cat", ["/home/user/note.txt"])).stdout, "kept");
console.log("pause");

await second.destroy();
assert.equal(await Sandbox.kill(id), false);
console.log("kill");
