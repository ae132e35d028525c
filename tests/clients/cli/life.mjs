// The command line: a sandbox's life, its logs and metrics, and a template from a Dockerfile.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const folder = mkdtempSync(join(tmpdir(), "cli-"));
process.on("exit", () => rmSync(folder, { recursive: true }));

/** Run the program, and return what it wrote. */
function e2b(...words) {
  const options = { cwd: folder, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] };
  return execFileSync(process.execPath, [process.env.E2B_CLI, ...words], options);
}

const made = e2b("sandbox", "create", "--detach", "--timeout", "600", "base");
const [id] = made.match(/\bi[a-z0-9]{15,}\b/) ?? assert.fail(made);
const listed = JSON.parse(e2b("sandbox", "list", "--format", "json"));
assert.ok(listed.some((one) => one.sandboxId === id));
assert.equal(JSON.parse(e2b("sandbox", "info", "--format", "json", id)).sandboxId, id);
console.log("create");

assert.equal(e2b("sandbox", "exec", "-e", "A=1", id, "sh", "-c", "echo hello $A"), "hello 1\n");
assert.throws(() => e2b("sandbox", "exec", id, "sh", "-c", "exit 3"), { status: 3 });
e2b("sandbox", "metrics", "--format", "json", id);
console.log("run");

e2b("sandbox", "exec", id, "sh", "-c", "echo kept > note.txt");
assert.equal(e2b("sandbox", "exec", id, "cat", "note.txt"), "kept\n");
console.log("files");

e2b("sandbox", "pause", id);
const paused = JSON.parse(e2b("sandbox", "list", "--state", "paused", "--format", "json"));
assert.ok(paused.some((one) => one.sandboxId === id));
e2b("sandbox", "resume", id);
assert.equal(e2b("sandbox", "exec", id, "cat", "note.txt"), "kept\n");
console.log("pause");

e2b("sandbox", "kill", id);
assert.equal(JSON.parse(e2b("sandbox", "list", "--format", "json")).filter((one) => one.sandboxId === id).length, 0);
console.log("kill");

writeFileSync(join(folder, "e2b.Dockerfile"), "FROM e2bdev/base\nRUN echo built > /built.txt\n");
e2b("template", "create", "from-the-cli", "--dockerfile", "e2b.Dockerfile");
assert.match(e2b("template", "list", "--format", "json"), /from-the-cli/);
e2b("template", "delete", "--yes", "from-the-cli");
console.log("templates");
