"""A server that gives out tokens for a registry, by Docker's protocol: with a key of its own."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_ISSUER, _SERVICE = "tokens", "registry"


@contextlib.contextmanager
def run_token_server(folder: Path, username: str, password: str) -> Iterator[str]:
    """Run it; give the settings for the registry. Without that password a token allows nothing."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certify(key)
    (folder / "tokens.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    chain = [base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()]
    good = "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization")
            if given is not None and given != good:
                self.send_error(401)
                return
            access = []
            for scope in parse_qs(urlsplit(self.path).query).get("scope", []) if given else []:
                kind, name, actions = scope.split(":")
                access.append({"type": kind, "name": name, "actions": actions.split(",")})
            now = int(time.time())
            claims = {"iss": _ISSUER, "sub": "", "aud": _SERVICE, "access": access, "jti": "1"}
            claims |= {"exp": now + 300, "nbf": now - 10, "iat": now}
            token = jwt.encode(claims, key, "ES256", {"x5c": chain})
            body = json.dumps({"token": token}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield (
            f"{{token: {{realm: 'http://127.0.0.1:{server.server_port}/token', "
            f"service: {_SERVICE}, issuer: {_ISSUER}, rootcertbundle: {folder / 'tokens.pem'}}}}}"
        )
    finally:
        server.shutdown()
        server.server_close()


def _certify(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _ISSUER)])
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
