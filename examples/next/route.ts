// app/sandkeeper-token/route.ts: gives the browser a token for one project, after your own checks.

export async function GET(request: Request) {
  const project = new URL(request.url).searchParams.get("project");
  // Check here that the signed-in user may see this project.
  const answer = await fetch(`${process.env.SANDKEEPER_URL}/api/client-tokens`, {
    method: "POST",
    headers: { Authorization: `Bearer ${process.env.SANDKEEPER_OPERATOR_KEY}`, "Content-Type": "application/json" },
    body: JSON.stringify({ project }),
    cache: "no-store",
  });
  if (!answer.ok) return new Response("No token.", { status: 502 });
  return new Response((await answer.json()).token);
}
