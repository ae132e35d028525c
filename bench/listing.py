"""A provider with very many instances, in a process of its own: it lists them and nothing else."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from bench.seed_data import instance

PAGE = 100
END = datetime(2099, 1, 1, tzinfo=UTC)
"""When every instance would end."""
LIST = "/v2/sandboxes"


@contextlib.contextmanager
def listing_provider(instances: int) -> Iterator[str]:
    """Yield the address of a provider that lists so many running instances."""
    words = [sys.executable, "-m", "bench.listing", str(instances)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def render_page(first: int, count: int) -> bytes:
    now = datetime.now(UTC)
    listed = [
        {
            "templateID": "base",
            "sandboxID": instance(number),
            "clientID": "client",
            "startedAt": (now - timedelta(hours=2)).isoformat(),
            "endAt": END.isoformat(),
            "cpuCount": 2,
            "memoryMB": 512,
            "diskSizeMB": 1024,
            "metadata": {},
            "state": "running",
            "envdVersion": "0.2.0",
        }
        for number in range(first, min(first + PAGE, count))
    ]
    return json.dumps(listed).encode()


def serve(count: int) -> None:
    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Say nothing of a client that went away."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            first = int(parse_qs(url.query).get("nextToken", ["0"])[0])
            is_list = url.path == LIST
            body = render_page(first, count) if is_list else b'{"code": 404, "message": "no"}'
            self.send_response(200 if is_list else 404)
            if is_list and first + PAGE < count:
                self.send_header("x-next-token", str(first + PAGE))
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
