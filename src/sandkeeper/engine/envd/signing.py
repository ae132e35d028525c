"""Signed URLs: who may read or write one file without the sandbox's token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import parse_qs

from sandkeeper.engine.http.responses import EnvdRefusedError
from sandkeeper.engine.sandboxes.routing import RunningSandbox
from sandkeeper.relay.asgi import Scope


@dataclass(frozen=True, slots=True)
class Signature:
    """What a signed request claims."""

    path: str
    operation: str
    username: str
    value: str | None
    expiration: str | None

    def is_by(self, sandbox: RunningSandbox) -> bool:
        """Return whether this sandbox's token made the signature."""
        if self.value is None:
            return False
        signed = f"{self.path}:{self.operation}:{self.username}:{sandbox.token}"
        if self.expiration is not None:
            signed += f":{self.expiration}"
        digest = base64.b64encode(hashlib.sha256(signed.encode()).digest()).decode().rstrip("=")
        return hmac.compare_digest(f"v1_{digest}".encode(), self.value.encode())

    def check(self, sandbox: RunningSandbox) -> None:
        """Raise RefusedError unless the signature is the sandbox's and still good."""
        if self.value is None:
            raise EnvdRefusedError(401, "missing signature query parameter")
        if not self.is_by(sandbox):
            raise EnvdRefusedError(401, "invalid signature")
        self._check_time()

    def _check_time(self) -> None:
        if self.expiration is None:
            return
        if not self.expiration.isdecimal() or int(self.expiration) < time.time():
            raise EnvdRefusedError(401, "signature is already expired")


def read_signature(scope: Scope) -> Signature:
    """Read what a request for `/files` claims."""
    query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)

    def first(name: str) -> str | None:
        return query[name][0] if name in query else None

    return Signature(
        path=first("path") or "",
        operation="write" if scope["method"] == "POST" else "read",
        username=first("username") or "",
        # Base64 has plus signs, and not every client escapes them.
        value=None if (value := first("signature")) is None else value.replace(" ", "+"),
        expiration=first("signature_expiration"),
    )


def find_signer(signature: Signature, sandboxes: Iterable[RunningSandbox]) -> RunningSandbox:
    """Return the sandbox whose token made the signature. Raises RefusedError."""
    if signature.value is None:
        raise EnvdRefusedError(401, "missing signature query parameter")
    for sandbox in sandboxes:
        if sandbox.token and signature.is_by(sandbox):
            signature.check(sandbox)
            return sandbox
    raise EnvdRefusedError(401, "invalid signature")
