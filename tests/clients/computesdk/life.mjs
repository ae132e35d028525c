// One interface over many providers: commands, files, a port's address, a snapshot.
import assert from "node:assert/strict";
import { e2b } from "@computesdk/e2b";
import { compute } from "computesdk";
import { Sandbox } from "e2b";

compute.setConfig({ provider: e2b({ apiKey: process.env.E2B_API_KEY }) });
const box = await compute.sandbox.create({ timeout: 600_000, metadata: { by: "computesdk" } });
assert.equal((await compute.sandbox.getById(box.sandboxId)).sandboxId, box.sandboxId);
assert.ok((await compute.sandbox.list()).some((one) => one.sandboxId === box.sandboxId));
console.log("create");

const ran = await box.runCommand("echo $A; exit 3", { env: { A: "1" }, cwd: "/tmp" });
assert.deepEqual([ran.stdout, ran.exitCode], ["\n", 3]);
assert.equal((await box.runCommand("python - <<'PY'\nprint(6 * 7)\nPY")).stdout, "42\n");
assert.match(await box.getUrl({ port: 8000 }), new RegExp(`8000-${box.sandboxId}`));
console.log("run");

await box.filesystem.mkdir("/home/user/folder");
await box.filesystem.writeFile("/home/user/folder/note.txt", "kept");
assert.equal(await box.filesystem.readFile("/home/user/folder/note.txt"), "kept");
assert.deepEqual((await box.filesystem.readdir("/home/user/folder")).map((one) => one.name), ["note.txt"]);
assert.equal(await box.filesystem.exists("/home/user/none"), false);
console.log("files");

await box.getInstance().pause();
const back = await compute.sandbox.getById(box.sandboxId);
assert.equal(await back.filesystem.readFile("/home/user/folder/note.txt"), "kept");
console.log("pause");

await back.destroy();
assert.equal(await Sandbox.kill(box.sandboxId), false);
console.log("kill");
