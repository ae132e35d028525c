"""Ways to use Sandkeeper from other programs: embedded, FastAPI, MCP, Inngest, agent backend."""
