"""What both Connect services share: users, timeouts and error codes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from connectrpc.code import Code
from connectrpc.codec import Codec, proto_binary_codec, proto_json_codec
from connectrpc.errors import ConnectError
from connectrpc.request import Headers, RequestContext
from protobuf import Message

from sandkeeper.engine.envd.users import InvalidUsernameError, User, find_user, parse_basic
from sandkeeper.engine.http.active_requests import current_request
from sandkeeper.engine.runtime.contract import Runtime, RuntimeFaultError
from sandkeeper.relay.asgi import header

Decoded = TypeVar("Decoded", bound=Message)
Req = TypeVar("Req")
Res = TypeVar("Res")

KEEPALIVE_S = 90.0
KEEPALIVE_MIN_S = 1.0
"""A client may not ask for a stream of nothing but keep-alives."""

_CODES = {
    errno.ENOENT: Code.NOT_FOUND,
    errno.EEXIST: Code.ALREADY_EXISTS,
    errno.ENOTDIR: Code.INVALID_ARGUMENT,
    errno.EISDIR: Code.INVALID_ARGUMENT,
    errno.EINVAL: Code.INVALID_ARGUMENT,
    errno.ENAMETOOLONG: Code.INVALID_ARGUMENT,
    errno.ELOOP: Code.INVALID_ARGUMENT,
    errno.ENOSPC: Code.RESOURCE_EXHAUSTED,
    errno.EDQUOT: Code.RESOURCE_EXHAUSTED,
}


class CarefulCodec(Codec[Message, Decoded]):
    """A codec whose refusal of a malformed message is the caller's error, not ours."""

    def __init__(self, codec: Codec[Message, Decoded]) -> None:
        self._codec = codec

    def name(self) -> str:
        return self._codec.name()

    def encode(self, message: Message) -> bytes:
        return self._codec.encode(message)

    def decode(self, data: bytes | bytearray, message_class: type[Decoded]) -> Decoded:
        try:
            return self._codec.decode(data, message_class)
        except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
            raise ConnectError(Code.INVALID_ARGUMENT, f"malformed message: {error}") from error


CODECS = (CarefulCodec(proto_json_codec()), CarefulCodec(proto_binary_codec()))


def acting_user(runtime: Runtime) -> User:
    """Return the user the current request acts as."""
    current = current_request()
    try:
        name = parse_basic(header(current.scope, b"authorization"))
        return find_user(runtime, current.sandbox, name)
    except InvalidUsernameError as error:
        raise ConnectError(Code.UNAUTHENTICATED, str(error)) from None
    except RuntimeFaultError as error:
        raise ConnectError(Code.UNAVAILABLE, str(error)) from error


def keepalive_s(headers: Headers) -> float:
    """Return the interval of keepalives on a silent stream."""
    asked = headers.get("keepalive-ping-interval", "")
    return max(KEEPALIVE_MIN_S, float(asked)) if asked.isdecimal() else KEEPALIVE_S


def patience_s(ctx: RequestContext[Req, Res]) -> float:
    """Return how long a stream may be silent: to its next keep-alive, or to its end if sooner.

    Raises ConnectError when the caller's time is over.
    """
    quiet_s = keepalive_s(ctx.request_headers)
    if ctx.timeout_ms is None:
        return quiet_s
    left_s = ctx.timeout_ms / 1000
    if left_s <= 0:
        raise ConnectError(Code.DEADLINE_EXCEEDED, "the time to listen is over")
    return min(quiet_s, left_s)


@contextmanager
def file_errors(path: str) -> Iterator[None]:
    """Translate the kernel's errors about `path` to Connect errors."""
    try:
        yield
    except OSError as error:
        code = _CODES.get(error.errno or 0, Code.INTERNAL)
        if code is Code.NOT_FOUND:
            raise ConnectError(code, f"path not found: {path}") from error
        raise ConnectError(code, f"{error.strerror or error}: {path}") from error
