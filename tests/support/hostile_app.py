"""A sandbox whose app wants what is not its own: it notes and tells all that reaches it, over
HTTP and WebSocket, and sets the cookies that it is asked to set.
"""

from __future__ import annotations

from dataclasses import dataclass

from e2b import Sandbox

from support.engine_process import Engine

APP = """
import base64, hashlib, http.server, json, struct, urllib.parse

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        seen = json.dumps([[name.lower(), value] for name, value in self.headers.items()]).encode()
        with open("seen.jsonl", "ab") as notes:
            notes.write(self.path.encode() + b" " + seen + b"\\n")
        if self.headers.get("Upgrade", "").lower() == "websocket":
            return self.tell_over_websocket(seen)
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        page = self.path == "/page"
        body = open("page.html", "rb").read() if page else seen
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if page else "application/json")
        self.send_header("Content-Length", str(len(body)))
        for cookie in asked.get("set", []):
            self.send_header("Set-Cookie", cookie)
        self.end_headers()
        self.wfile.write(body)

    def tell_over_websocket(self, seen):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_header("Sec-WebSocket-Accept", accept)
        self.send_header("Set-Cookie", "sandkeeper_login=planted")
        self.end_headers()
        self.wfile.write(bytes([0x81, 126]) + struct.pack(">H", len(seen)) + seen)
        self.wfile.write(bytes([0x88, 2]) + struct.pack(">H", 1000))
        self.wfile.flush()
        self.rfile.read(1)
        self.close_connection = True

http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
"""


@dataclass(frozen=True, slots=True)
class Hostile:
    """A running sandbox with the app on port 3000."""

    sandbox: Sandbox
    engine: Engine

    @property
    def host(self) -> str:
        """The Host under which a browser reaches the app."""
        return f"3000-{self.sandbox.sandbox_id}.localhost:{self.engine.port}"

    def headers(self, port: int = 3000) -> dict[str, str]:
        """How an SDK names the sandbox: by headers, at the engine's own address."""
        return {"E2b-Sandbox-Id": self.sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}
