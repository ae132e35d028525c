"""Identity providers: a real one as a process, and one that lies.

The real one is the npm package `oidc-provider`. It knows `ada` (may do everything), `bob` (may
read; claims ada's address, which was never verified) and `eve` (no role that counts).
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urljoin

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from support.engine_process import Engine
from support.keeper_process import Keeper, keeping

CLIENT_ID = "sandkeeper-under-test"
CLIENT_SECRET = "a secret of the test, which is long enough"
ROLES = {"keepers": "admin", "everyone": "read"}
SCRIPT = Path(__file__).with_name("identity_provider.mjs")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RealProvider:
    """`oidc-provider` on a port of its own; each start has new keys."""

    def __init__(self, *redirects: str) -> None:
        self.port = free_port()
        self._redirects = redirects
        self._process: subprocess.Popen[str] | None = None

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        node = shutil.which("node")
        if node is None:
            pytest.skip("no Node.js on this machine")
        command = [node, str(SCRIPT), str(self.port), CLIENT_ID, CLIENT_SECRET, *self._redirects]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == "ready"
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def sign_in(self, address: str, person: str) -> str:
        """Go where the keeper sent the browser, sign in there; return the address to go back to."""
        with httpx.Client(timeout=60) as browser:
            answer = browser.get(address)
            while True:
                if answer.is_redirect:
                    target = urljoin(str(answer.url), answer.headers["location"])
                    if not target.startswith(self.issuer):
                        return target
                    answer = browser.get(target)
                else:
                    form = re.search(r'action="([^"]+)"', answer.text)
                    assert form is not None, answer.text
                    fields = {"prompt": "login", "login": person, "password": "any"}
                    answer = browser.post(form[1], data=fields)


@dataclass
class LyingProvider:
    """Says of itself, its keys and its people what a test tells it to say."""

    port: int = 0
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, auto_kid=True))
    describe: Callable[[dict[str, Any]], object] = lambda found: found
    sign: Callable[[dict[str, Any]], object] = lambda _: None
    delay: threading.Event | None = None
    codes: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    nonce: str = ""

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def make_claims(self, **changes: Any) -> dict[str, Any]:
        """Return what an honest provider would say, with changes; None removes a claim."""
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT_ID,
            "sub": "mallory",
            "email": "mallory@example.test",
            "email_verified": True,
            "groups": ["keepers"],
            "nonce": self.nonce,
            "iat": now,
            "exp": now + 300,
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def sign_honestly(self, **changes: Any) -> str:
        header = {"alg": "RS256", "kid": self.key.kid}
        return jwt.encode(header, self.make_claims(**changes), self.key)

    def answer(self, path: str, body: str) -> tuple[int, bytes]:
        self.asked.append(path)
        if path == "/.well-known/openid-configuration":
            described = {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/jwks",
            }
            return 200, _encode(self.describe(described))
        if path == "/jwks":
            return 200, _encode({"keys": [self.key.as_dict(private=False, use="sig")]})
        if path == "/token":
            if self.delay is not None:
                self.delay.wait(60)
            self.codes += parse_qs(body).get("code", [])
            id_token = self.sign(self.make_claims())
            return 200, _encode({"access_token": "a", "token_type": "Bearer", "id_token": id_token})
        return 404, b"{}"


def _encode(found: object) -> bytes:
    return found if isinstance(found, bytes) else json.dumps(found).encode()


@contextmanager
def lying() -> Iterator[LyingProvider]:
    """Serve a lying provider during the block."""
    provider = LyingProvider()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            sent = self.rfile.read(length).decode()
            status, body = provider.answer(self.path, sent)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    provider.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield provider
    finally:
        if provider.delay is not None:
            provider.delay.set()
        server.shutdown()
        server.server_close()


def make_settings(issuer: str, port: int) -> dict[str, object]:
    """Return the settings of a keeper on this port whose people sign in there."""
    return {
        "oidc_issuer": issuer,
        "oidc_name": "Example",
        "oidc_client_id": CLIENT_ID,
        "oidc_client_secret": CLIENT_SECRET,
        "oidc_redirect_url": f"http://sandkeeper.localhost:{port}",
        "oidc_roles": json.dumps(ROLES),
    }


@contextmanager
def keeping_people(
    data: Path, issuer: str, port: int, *flags: str, engine: Engine, **settings: object
) -> Iterator[Keeper]:
    """A keeper on this port whose people sign in with a provider."""
    options = make_settings(issuer, port) | settings
    with keeping(data, "--port", str(port), *flags, engine=engine, **options) as keeper:
        yield keeper
