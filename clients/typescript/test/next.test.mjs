// Route handler and server action helper, as Next.js calls them; and the hook rendered on a server.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createElement } from "react";
import { renderToString } from "react-dom/server";
import { Sandkeeper } from "sandkeeper";
import { issueToken, tokenRoute } from "sandkeeper/next";
import { SandboxPreview, SandkeeperProvider, useSandbox } from "sandkeeper/react";
import "sandkeeper/element";

const keeper = new Sandkeeper();
const GET = tokenRoute({ authorize: (project, request) => project === "mine" && request.headers.get("Cookie") === "user=ada" });
const ask = (query, cookie = "user=ada") => GET(new Request(`http://app.example/sandkeeper-token${query}`, { headers: { Cookie: cookie } }));

test("the route gives a token to the user who may see the project", async () => {
  await keeper.project("mine").create();
  const answer = await ask("?project=mine");
  assert.equal(answer.status, 200);
  assert.equal(answer.headers.get("Cache-Control"), "no-store");
  const browser = new Sandkeeper({ key: await answer.text() });
  assert.equal((await browser.project("mine").status()).project, "mine");
});

test("others, other projects and no project get none", async () => {
  assert.equal((await ask("?project=mine", "user=eve")).status, 403);
  assert.equal((await ask("?project=other")).status, 403);
  assert.equal((await ask("")).status, 400);
});

test("a keeper that refuses is told to the log, not to the browser", async (context) => {
  const logged = context.mock.method(console, "error", () => undefined);
  const broken = tokenRoute({ authorize: () => true, keeper: new Sandkeeper({ key: "sk_wrong" }) });
  const answer = await broken(new Request("http://app.example/?project=mine"));
  assert.equal(answer.status, 502);
  assert.doesNotMatch(await answer.text(), /sk_wrong|not one of ours/);
  assert.equal(logged.mock.callCount(), 1);
});

test("a server action refuses what is not a project of the user", async () => {
  const authorize = (project) => project === "mine";
  assert.ok(await issueToken("mine", { authorize }));
  for (const asked of ["other", "", null, { project: "mine" }]) {
    await assert.rejects(issueToken(asked, { authorize }), { name: "NotAuthorizedError" });
  }
});

test("hook and pane render on a server, where no element exists", () => {
  function Line() {
    return createElement("p", null, useSandbox("mine").view.label);
  }
  const page = createElement(SandkeeperProvider, { base: "http://keeper.example", token: "t" }, createElement(Line), createElement(SandboxPreview, { project: "mine" }));
  const html = renderToString(page);
  assert.match(html, /<p>\S.*<\/p>/);
  assert.match(html, /<sandbox-preview project="mine" base="http:\/\/keeper.example"/);
  assert.doesNotMatch(html, /token/);
});
