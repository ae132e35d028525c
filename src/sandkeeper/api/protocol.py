"""What the keeper answers to bytes that are no request: the one shape of its errors."""

from __future__ import annotations

import secrets
from http import HTTPStatus

from sandkeeper.api.errors import (
    MEDIA_TYPE,
    render_error,
)
from sandkeeper.api.wire_errors import MalformedRequestError, UnknownMethodError
from sandkeeper.common.http_protocol import BoundedBodyProtocol


class KeeperProtocol(BoundedBodyProtocol):
    """The keeper's HTTP protocol."""

    @classmethod
    def render_refusal(cls, status: HTTPStatus, message: str) -> tuple[str, bytes]:
        """Return the refusal as problem+json."""
        is_unknown = status is HTTPStatus.NOT_IMPLEMENTED
        error = UnknownMethodError() if is_unknown else MalformedRequestError(message)
        return MEDIA_TYPE, render_error(error, secrets.token_hex(8)).body
