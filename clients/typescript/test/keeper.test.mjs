// The package as it is published, against the keeper that SANDKEEPER_URL names. tests/typescript starts one.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { createServer, request as forward } from "node:http";
import { test } from "node:test";
import { Sandbox } from "e2b";
import { KeeperUnreachableError, Sandkeeper, SandkeeperError, WakeTimedOutError } from "sandkeeper";

const keeper = new Sandkeeper();
const name = () => `ts-${randomBytes(4).toString("hex")}`;
const APP = "mkdir -p site; [ -e site/index.html ] || echo first > site/index.html; exec python3 -m http.server 3000 --directory site";

test("a sandbox is created, paused and woken with its files, step by step", async () => {
  const project = keeper.project(name());
  const created = await project.create({ port: 3000, startCommand: APP, metadata: { from: "node" } });
  assert.equal(created.status, "RUNNING");
  assert.equal((await project.create()).id, created.id, "a second create returns the same sandbox");
  assert.equal((await project.pause()).status, "PAUSED");
  assert.equal((await project.status()).status, "PAUSED");
  const shown = [];
  const wake = await project.wake({ onProgress: (now) => shown.push(now) });
  assert.equal(wake.status, "succeeded");
  assert.equal(wake.receipt?.method, "resume");
  assert.deepEqual(shown.at(-1), wake, "the last progress is the result");
  assert.equal((await project.status()).status, "RUNNING");
  assert.equal((await project.explain()).status, "RUNNING");
  assert.deepEqual((await project.history()).map((one) => one.project).filter((one) => one !== project.address), []);
  assert.equal((await project.kill()).status, "KILLED");
});

test("kept files are written, listed, read and deleted in every state", async () => {
  const project = keeper.project(name());
  await project.create();
  const path = "notes/ü and space.txt";
  assert.equal((await project.files.write(path, "kept\n")).inside, true);
  await project.files.write("tool.sh", new TextEncoder().encode("echo hi\n"), { mode: 0o755 });
  await project.kill();
  assert.equal(await project.files.readText(path), "kept\n");
  assert.deepEqual((await project.files.list("notes/")).map((file) => file.path), [path]);
  assert.equal((await project.files.list("tool.sh"))[0]?.mode, "0755");
  let size = 0;
  for await (const part of await project.files.readArchive()) size += part.length;
  assert.ok(size > 1024, "the archive holds both files");
  const [before] = await project.files.versions();
  assert.ok(before);
  await project.files.checkpoint("before the end", { version: before.number });
  await project.files.delete(path);
  const [gone] = await project.files.versions();
  assert.ok(gone);
  assert.deepEqual((await project.files.diff(gone.number)).map((one) => [one.path, one.change]), [[path, "removed"]]);
  assert.match((await project.files.diffFile(path, gone.number)).diff ?? "", /^-kept$/m);
  assert.equal((await project.files.restore(before.number, path)).undoVersion >= gone.number, true);
  assert.deepEqual((await project.files.versions({ named: true })).map((one) => one.names), [["before the end"]]);
  await project.files.deleteCheckpoint("before the end");
  await project.files.delete(path);
  await assert.rejects(project.files.read(path), { code: "file_not_found", status: 404 });
});

test("a lease is a native sandbox of the SDK, and the same task finds its files again", async () => {
  const who = { userId: "ada", taskId: name(), holder: "node" };
  const first = await keeper.lease(Sandbox, who, async (sandbox) => {
    await sandbox.files.write("note.txt", "mine");
    return (await sandbox.commands.run("cat note.txt")).stdout;
  });
  assert.equal(first, "mine");
  const lease = await keeper.sessions.acquire("ada", { taskId: who.taskId, leaseMs: 1000 });
  try {
    assert.equal(await lease.sandbox(Sandbox).files.read("note.txt"), "mine");
    const renewed = async () => (await keeper.sessions.show(lease.info.id)).sandbox?.status === "RUNNING";
    assert.ok(await renewed());
  } finally {
    await lease.release();
  }
  assert.equal(lease.lost, null);
  await keeper.sessions.close(lease.info.id);
  await assert.rejects(keeper.sessions.show(lease.info.id), { code: "session_not_found" });
});

test("a project's sandbox can be leased, too, and the lease ends with the work", async () => {
  const project = keeper.project(name());
  await project.create();
  await project.pause();
  await assert.rejects(
    project.lease(Sandbox, async (sandbox) => {
      assert.equal((await sandbox.commands.run("echo hello")).stdout, "hello\n");
      throw new Error("the work failed");
    }),
    /the work failed/,
  );
  assert.equal((await project.pause()).status, "PAUSED", "no lease keeps it awake");
});

test("a job is built, made ready and resumed", async () => {
  const job = await keeper.jobs.create({ job_id: name(), port: 3000, start_command: APP });
  assert.equal((await keeper.jobs.markReady(job.job_id, { build_version: "1" })).sandbox_paused, true);
  assert.match((await keeper.jobs.resume(job.job_id)).preview_url, /^http/);
  assert.equal((await keeper.jobs.change(job.job_id, { stage_label: "shipped" })).stage_label, "shipped");
  const listed = [];
  for await (const one of keeper.jobs.list()) listed.push(one.job_id);
  assert.ok(listed.includes(job.job_id));
  await keeper.project(`job:${job.job_id}`).kill();
  const asked = await keeper.jobs.askRebuild(job.job_id);
  const rebuilt = await keeper.jobs.rebuild(job.job_id, asked.confirmation ?? "");
  assert.equal(rebuilt.rebuild_status, "done");
});

test("a client token opens its own project only, and not after it was revoked", async () => {
  const [own, other] = [keeper.project(name()), keeper.project(name())];
  await Promise.all([own.create(), other.create()]);
  const issued = await keeper.issueClientToken(own.address, { ttlS: 60 });
  const browser = new Sandkeeper({ key: issued.token });
  assert.equal((await browser.project(own.address).status()).status, "RUNNING");
  await assert.rejects(browser.project(other.address).status(), (error) => {
    assert.ok(error instanceof SandkeeperError);
    assert.equal(error.code, "forbidden");
    assert.ok(error.hint, "the error says what to do");
    return true;
  });
  await keeper.revokeClientToken(issued.id);
  const refused = async () => browser.project(own.address).status().then(() => false, (error) => error.code === "unauthenticated");
  while (!(await refused())) await new Promise((resolve) => setTimeout(resolve, 100));
});

test("a key that is a function is asked again when it was refused", async () => {
  const asked = [];
  const renewing = new Sandkeeper({ key: (expired) => (asked.push(expired), expired ? process.env.SANDKEEPER_OPERATOR_KEY : "sk_old") });
  assert.ok((await renewing.summary()).total >= 0);
  assert.deepEqual(asked, [false, true]);
});

test("a stream that was cut is resumed after the last change, and none is missed", async () => {
  const project = keeper.project(name());
  await project.create();
  const proxy = await cuttingProxy();
  const watched = new Sandkeeper({ url: proxy.url }).project(project.address);
  const stop = new AbortController();
  const [seen, statuses] = [[], []];
  for await (const event of watched.events({ signal: stop.signal })) {
    if (event.type === "status") statuses.push(event.status.status);
    if (event.type === "change") seen.push(event.change);
    if (statuses.length === 1 && proxy.cuts === 0) {
      proxy.cut();
      await project.pause();
    }
    if (statuses.at(-1) === "PAUSED") stop.abort();
  }
  proxy.close();
  const logged = (await project.history()).filter((one) => one.toState === "PAUSED").map((one) => one.seq);
  assert.deepEqual(seen.filter((one) => one.toState === "PAUSED").map((one) => one.seq), logged);
  assert.equal(proxy.cuts, 1);
  assert.ok(proxy.streams >= 2, "it connected again");
});

test("a lost reply is asked for again with the same idempotency key, and nothing happens twice", async () => {
  const proxy = await cuttingProxy({ losing: "PUT" });
  const project = new Sandkeeper({ url: proxy.url }).project(name());
  const created = await project.create();
  proxy.close();
  assert.equal(proxy.keys.length, 2);
  assert.equal(proxy.keys[0], proxy.keys[1]);
  const creations = (await keeper.project(project.address).history()).filter((one) => one.type === "sandbox.created");
  assert.equal(creations.length, 1);
  assert.equal((await keeper.project(project.address).status()).id, created.id);
});

test("a keeper that is not there, a wrong URL and a wrong name say what to do", async () => {
  const nowhere = new Sandkeeper({ url: "http://127.0.0.1:9", retry: { attemptsMax: 2 } });
  await assert.rejects(nowhere.summary(), (error) => {
    assert.ok(error instanceof KeeperUnreachableError && error instanceof SandkeeperError);
    assert.match(error.message, /127\.0\.0\.1:9/);
    assert.match(error.hint, /sandkeeper up/);
    return true;
  });
  assert.throws(() => new Sandkeeper({ url: "localhost:7420" }), /must begin with http/);
  assert.throws(() => keeper.project("a/b"), { code: "invalid_request" });
  await assert.rejects(keeper.project("nothing-here").status(), { code: "sandbox_not_found", status: 404 });
  await assert.rejects(keeper.project(name()).create({ port: 99999 }), (error) => /port/.test(error.message));
  await assert.rejects(keeper.project("nothing-here").wake({ withinMs: 1 }), { code: "sandbox_not_found" });
  assert.ok(new WakeTimedOutError("x") instanceof SandkeeperError);
});

test("an aborted request ends with the caller's own reason", async () => {
  const project = keeper.project(name());
  await project.create();
  const reason = new Error("the user left");
  await assert.rejects(project.wake({ signal: AbortSignal.abort(reason) }), (error) => error === reason);
});

/** A proxy that cuts all streams on request, and the reply to the first request of one method. */
async function cuttingProxy({ losing = "" } = {}) {
  const target = new URL(keeper.url);
  const open = new Set();
  const proxy = { url: "", cuts: 0, streams: 0, keys: [] };
  const server = createServer((request, response) => {
    if (request.url.endsWith("/events")) (proxy.streams++, open.add(response.socket));
    const isLost = request.method === losing && proxy.keys.push(request.headers["idempotency-key"]) === 1;
    const { hostname, port } = target;
    const behind = forward({ hostname, port, path: request.url, method: request.method, headers: { ...request.headers, host: target.host } }, (answer) => {
      if (isLost) return void answer.resume().on("end", () => response.socket?.destroy());
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    behind.on("error", () => response.destroy());
    response.on("close", () => behind.destroy());
    request.pipe(behind);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  proxy.url = `http://127.0.0.1:${server.address().port}`;
  proxy.cut = () => (proxy.cuts++, open.forEach((socket) => socket.destroy()), open.clear());
  proxy.close = () => (server.close(), server.closeAllConnections());
  return proxy;
}
