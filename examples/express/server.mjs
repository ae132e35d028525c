// An Express server with the TypeScript client: it issues the tokens, runs code in a lease, and forwards live changes.
import express from "express";
import { Sandbox } from "e2b";
import { Sandkeeper, SandkeeperError } from "sandkeeper";

const keeper = new Sandkeeper();
const app = express();
// Here you would ask whether the signed-in user may see the project.
const projects = new Set(["shop"]);

app.get("/settings", (request, response) => void response.json({ keeper: keeper.url }));

app.get("/sandkeeper-token", async (request, response) => {
  const project = String(request.query.project ?? "");
  if (!projects.has(project)) return void response.status(403).send("This project is not yours.");
  const { token } = await keeper.issueClientToken(project);
  response.set("Cache-Control", "no-store").type("text").send(token);
});

app.post("/hello", async (request, response) => {
  const said = await keeper.lease(Sandbox, { userId: "ada", taskId: "express-example" }, async (sandbox) => {
    return (await sandbox.commands.run("echo hello from inside")).stdout;
  });
  response.json({ said });
});

app.use(express.static("public"));

app.use((error, request, response, next) => {
  if (!(error instanceof SandkeeperError)) return next(error);
  console.error(error.code, error.message, error.hint);
  response.status(502).json({ code: error.code });
});

app.listen(Number(process.env.PORT ?? 8000), "127.0.0.1");
