"""What a person sees in a browser when a sandbox's port cannot answer."""

from __future__ import annotations

from html import escape

from sandkeeper.engine.http.responses import NOT_FOUND, PORT_CLOSED, send_bytes
from sandkeeper.relay.asgi import Send

RELOAD_S = 2
"""How often a page reloads while its server has not started yet."""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{reload}<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 15vh auto 0;
  max-width: 34rem; padding: 0 1rem; }}
code {{ font-size: .95em; }}
p + p {{ opacity: .7; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{advice}</p>
<p>Sandbox <code>{sandbox_id}</code>{port}. {message}.</p>
</body>
</html>
"""


async def send_page(
    send: Send, status: int, sandbox_id: str, message: str, port: int | None
) -> None:
    """Send a page that explains the problem and what to do."""
    reload = ""
    if message == NOT_FOUND:
        title = "This sandbox is not running"
        advice = "It was paused, has ended, or never was. Resume it or start a new one."
    elif message == PORT_CLOSED:
        title = f"Nothing listens on port {port} yet"
        advice = "The sandbox is running. This page reloads until its server has started."
        reload = f'<meta http-equiv="refresh" content="{RELOAD_S}">\n'
    elif status == 403:
        title = "This sandbox's ports are private"
        advice = "Send the sandbox's traffic access token as E2B-Traffic-Access-Token."
    else:
        title = "The server in this sandbox did not answer"
        advice = "It may have crashed. Check its output, then reload this page."
    page = _PAGE.format(
        reload=reload,
        title=escape(title),
        advice=escape(advice),
        sandbox_id=escape(sandbox_id),
        port="" if port is None else f", port <code>{port}</code>",
        message=escape(message),
    )
    headers = ((b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"no-store"))
    await send_bytes(send, status, page.encode(), headers)
