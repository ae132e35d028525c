"""Which headers cross, in either direction, and how they are written."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sandkeeper.relay.asgi import Fields, Scope
from sandkeeper.relay.cookies import may_set

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"http2-settings",
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

ROUTING = frozenset(
    {b"e2b-traffic-access-token", b"e2b-sandbox-id", b"e2b-sandbox-port", b"x-access-token"}
)
"""Headers by which a sandbox is found; the server inside does not need them, and two are secrets.
"""

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
the relay may write them."""

_DROPPED = HOP_BY_HOP | ROUTING | FORWARDED | {b"host", b"expect", b"content-length"}
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NO_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_METHOD = re.compile(rb"[A-Z-]+")


class UnsafeHeadError(ValueError):
    """A head that another server could read as something else."""


def select_request_fields(scope: Scope) -> Fields:
    """Return the request's headers that cross, before anything is added.

    The length is not among them: `render_request_head` writes how the body ends, and what the
    client says about the connection cannot change that.
    """
    dropped = _DROPPED | named_by_connection(scope["headers"])
    return [
        (name, value)
        for name, value in scope["headers"]
        if name not in dropped and not name.startswith(b"x-forwarded-")
    ]


def restore_cases(scope: Scope, fields: Fields) -> Fields:
    """Return the fields with their names as the client wrote them; some servers look at that."""
    cased = {name.lower(): name for name in scope.get("sandkeeper.header_names", ())}
    return [(cased.get(name, name), value) for name, value in fields]


def build_response_headers(fields: Fields, host: str) -> Fields:
    """Return the answer's headers as the client, which asked for this Host, shall see them."""
    lowered = [(name.lower(), value) for name, value in fields]
    dropped = HOP_BY_HOP | (named_by_connection(lowered) - {b"content-length"})
    name_only = host_name(host)
    return [
        (name, value)
        for name, value in lowered
        if name not in dropped and (name != b"set-cookie" or may_set(value, name_only))
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


def has_chunks(scope: Scope) -> bool:
    """Return whether the request's body came in chunks, without a length."""
    return any(name == b"transfer-encoding" for name, _ in scope["headers"])


def render_request_head(scope: Scope, fields: Fields) -> bytes:
    """Return the head of the request with these fields, and with the one length that its body has.

    Raises UnsafeHeadError if any part of it could end a line, even what we wrote.
    """
    written = list(fields)
    if has_chunks(scope):
        written.append((b"transfer-encoding", b"chunked"))
    else:
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        if len(lengths) > 1 or any(not value.isdigit() for value in lengths):
            raise UnsafeHeadError("more than one length")
        written.extend((b"content-length", value) for value in lengths)
    written.append((b"connection", b"close"))
    method, target = scope["method"].encode(), target_of(scope)
    if not _METHOD.fullmatch(method) or not _TARGET.fullmatch(target):
        raise UnsafeHeadError("method or target")
    check_fields(written)
    lines = [b"%b %b HTTP/1.1" % (method, target)]
    lines.extend(b"%b: %b" % field for field in written)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def check_fields(fields: Fields) -> None:
    """Raise UnsafeHeadError for a name or value that cannot stand in one line."""
    for name, value in fields:
        if not _NAME.fullmatch(name) or _NO_VALUE.search(value):
            raise UnsafeHeadError(name.decode("latin-1"))


def named_by_connection(fields: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    """Return the names in all Connection headers: they are between two neighbours only."""
    return {
        name.strip().lower()
        for key, value in fields
        if key == b"connection"
        for name in value.split(b",")
        if name.strip()
    }
