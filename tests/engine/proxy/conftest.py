"""Fixtures of the port proxy tests.

runtime_server  a runtime with its port proxy, one for each test file
served          a sandbox in it whose small server listens on port 3000
server_code     the program of that server
start_server    starts that server in another sandbox
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import httpx
import pytest
import pytest_asyncio

from sandkeeper.engine.sandboxes.routing import RunningSandbox
from support.base_cache import lend_base
from support.eventually import eventually
from support.runtime_server import RuntimeServer, open_runtime_server

SERVER = """
import base64, hashlib, http.server, json, struct, threading, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        if self.headers.get("Upgrade", "").lower() == "websocket":
            return self.echo_messages()
        if self.path.startswith("/hang-up"):
            self.close_connection = True
            return
        if self.path.startswith("/break"):
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"half")
            self.close_connection = True
            return
        if self.path.startswith("/drip"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while True:
                self.wfile.write(b"5\\r\\ndrip\\n\\r\\n")
                self.wfile.flush()
                time.sleep(0.05)
        body = json.dumps({"path": self.path, "headers": dict(self.headers.items())}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "a=1")
        self.send_header("Set-Cookie", "b=2")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def do_POST(self):
        total = 0
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                total += len(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        else:
            total = len(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(201)
        self.end_headers()
        self.wfile.write(str(total).encode())
        self.close_connection = True

    def echo_messages(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_header("Sec-WebSocket-Accept", accept)
        if "Sec-WebSocket-Protocol" in self.headers:
            self.send_header("Sec-WebSocket-Protocol", "chat")
        self.end_headers()
        while True:
            first, second = self.rfile.read(2)
            length = second & 127
            if length == 126:
                length = struct.unpack(">H", self.rfile.read(2))[0]
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(length)))
            if data == b"please close":
                first, data = 0x88, struct.pack(">H", 4321) + b"bye"
            head = bytes([first, len(data)]) if len(data) < 126 else (
                bytes([first, 126]) + struct.pack(">H", len(data)))
            self.wfile.write(head + data)
            self.wfile.flush()
            if first & 15 == 8:
                self.close_connection = True
                return

http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RuntimeServer]:
    data = lend_base(tmp_path_factory, tmp_path_factory.mktemp("server"))
    async with open_runtime_server(data) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(runtime_server: RuntimeServer) -> RunningSandbox:
    running = await runtime_server.add()
    await serve(runtime_server, running)
    return running


@pytest.fixture
def server_code() -> str:
    """The small server as a Python program."""
    return SERVER


@pytest.fixture
def start_server(runtime_server: RuntimeServer) -> Callable[[RunningSandbox], Awaitable[None]]:
    """Starts the small server in a sandbox and waits until it answers."""
    return partial(serve, runtime_server)


async def serve(runtime_server: RuntimeServer, running: RunningSandbox) -> None:
    sandbox = runtime_server.sdk(running)
    await sandbox.files.write("server.py", SERVER)
    await sandbox.commands.run("python3 server.py", background=True, timeout=0)
    headers = runtime_server.headers(running, 3000)
    if running.traffic_token is not None:
        headers["E2B-Traffic-Access-Token"] = running.traffic_token
    async with httpx.AsyncClient(
        base_url=runtime_server.url, headers=headers, timeout=60
    ) as client:

        async def is_up() -> bool:
            return (await client.get("/")).status_code == 200

        await eventually(is_up, within_s=60)
