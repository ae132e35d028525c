import react from "@vitejs/plugin-react";
import { Sandkeeper } from "sandkeeper";
import { defineConfig } from "vite";

// In development, Vite itself issues the tokens; in production your own server does, as in ../express.
const keeper = new Sandkeeper();
const projects = new Set(["shop"]);

const tokens = {
  name: "sandkeeper-token",
  configureServer(server) {
    server.middlewares.use("/sandkeeper-token", async (request, response) => {
      const project = new URL(request.url, "http://localhost").searchParams.get("project") ?? "";
      response.setHeader("Cache-Control", "no-store");
      if (!projects.has(project)) return void (response.writeHead(403), response.end());
      try {
        response.end((await keeper.issueClientToken(project)).token);
      } catch (error) {
        server.config.logger.error(`${error.message} ${error.hint ?? ""}`);
        response.writeHead(502).end();
      }
    });
  },
};

export default defineConfig({
  plugins: [react(), tokens],
  define: { __SANDKEEPER_URL__: JSON.stringify(keeper.url) },
  server: { host: "127.0.0.1", port: Number(process.env.PORT ?? 8000), strictPort: true },
});
