"""Which headers a server in a sandbox sees."""

from __future__ import annotations

from sandkeeper.engine.proxy.credentials import Credentials
from sandkeeper.engine.sandboxes.routing import RunningSandbox
from sandkeeper.relay.asgi import Fields, Scope, header
from sandkeeper.relay.headers import restore_cases, select_request_fields


def build_request_fields(scope: Scope, sandbox: RunningSandbox, credentials: Credentials) -> Fields:
    """Return the request's headers as the server inside shall see them."""
    fields = credentials.strip(select_request_fields(scope))
    host = header(scope, b"host") or "localhost"
    seen = host
    if sandbox.mask_host is not None:
        seen = sandbox.mask_host.replace("${PORT}", str(scope["state"]["port"]))
    scheme: str = str(scope["scheme"]).replace("ws", "http")
    client: tuple[str, int] = scope.get("client") or ("127.0.0.1", 0)
    extra: dict[bytes, str] = {
        b"x-forwarded-host": host,
        b"x-forwarded-proto": scheme,
        b"x-forwarded-for": client[0],
    }
    if scope["state"].get("prefix"):
        extra[b"x-forwarded-prefix"] = scope["state"]["prefix"]
    fields = restore_cases(scope, fields)
    fields.extend((name, value.encode("latin-1")) for name, value in extra.items())
    return [(b"host", seen.encode("latin-1")), *fields]
