"""Which headers cross the proxy, in either direction."""

from __future__ import annotations

from sandkeeper.engine.http.responses import Scope, header
from sandkeeper.engine.proxy.credentials import Credentials, may_set
from sandkeeper.engine.sandboxes.routing import RunningSandbox

Fields = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

OURS = frozenset(
    {b"e2b-traffic-access-token", b"e2b-sandbox-id", b"e2b-sandbox-port", b"x-access-token"}
)
"""Headers for routing; the server inside does not need them, and two are secrets."""

FORWARDED = frozenset(
    {
        b"cf-connecting-ip",
        b"client-ip",
        b"fastly-client-ip",
        b"forwarded",
        b"true-client-ip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-original-forwarded-for",
        b"x-real-ip",
    }
)
"""Headers that say who asked, and all that begin with `x-forwarded-`. Apps believe them, so only
the proxy may write them."""


def build_request_head(scope: Scope, sandbox: RunningSandbox, credentials: Credentials) -> Fields:
    """Return the request's headers as the server inside shall see them."""
    dropped = HOP_BY_HOP | OURS | _named_by_connection(scope) | FORWARDED | {b"host", b"expect"}
    passed = [
        (name, value)
        for name, value in scope["headers"]
        if name not in dropped and not name.startswith(b"x-forwarded-")
    ]
    fields = credentials.strip(passed)
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
    cased = _find_cases(scope)
    fields = [(cased.get(name, name), value) for name, value in fields]
    fields.extend((name, value.encode("latin-1")) for name, value in extra.items())
    return [(b"host", seen.encode("latin-1")), *fields]


def build_response_headers(fields: Fields, host: str) -> Fields:
    """Return the answer's headers as the client, which asked for this Host, shall see them."""
    lowered = [(name.lower(), value) for name, value in fields]
    name_only = host_name(host)
    return [
        (name, value)
        for name, value in lowered
        if name not in HOP_BY_HOP and (name != b"set-cookie" or may_set(value, name_only))
    ]


def host_name(host: str) -> str:
    """Return the name in a Host header, without its port."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def target_of(scope: Scope) -> bytes:
    """Return the request target as it came, escapes and all."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = raw.partition(b"?")[0] or b"/"
    query: bytes = scope["query_string"]
    return path + b"?" + query if query else path


def _find_cases(scope: Scope) -> dict[bytes, bytes]:
    """Return the names of the request's headers as the client wrote them, by their lower case."""
    return {name.lower(): name for name in scope.get("sandkeeper.header_names", ())}


def _named_by_connection(scope: Scope) -> set[bytes]:
    named = header(scope, b"connection") or ""
    return {name.strip().lower().encode("latin-1") for name in named.split(",") if name.strip()}
