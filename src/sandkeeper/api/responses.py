"""Answers of the cold routes."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Response

from sandkeeper.api.status.serializers import dumps


def reply(
    value: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return JSON that no cache keeps."""
    return reply_bytes(dumps(value), status=status, headers=headers)


def reply_bytes(
    body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response like `reply`, for JSON that is encoded already."""
    return Response(
        body,
        status_code=status,
        media_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )
