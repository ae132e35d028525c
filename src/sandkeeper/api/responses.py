"""Answers of the cold routes."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Callable, Mapping
from typing import Final

import zstandard
from fastapi import Request, Response

from sandkeeper.api.status.serializers import dumps

# A shorter body fits into one packet as it is.
COMPRESSED_FROM: Final = 1400
# A longer one is compressed in a thread: the event loop would stand still for a millisecond.
INLINE_MAX: Final = 256 * 1024
# Level 1 of gzip is three times as fast as the usual 6, and the answers are hardly longer.
LEVEL: Final = 1


def _compress_zstd(body: bytes) -> bytes:
    # A compressor of its own for each answer: one must not be used by two threads at a time.
    return zstandard.ZstdCompressor(level=LEVEL).compress(body)


def _compress_gzip(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=LEVEL, mtime=0)


# The first one that the caller accepts is taken: zstd is several times as fast, and shorter.
ENCODINGS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "zstd": _compress_zstd,
    "gzip": _compress_gzip,
}


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


async def reply_revalidated(request: Request, body: bytes) -> Response:
    """Return JSON with its ETag, compressed if the caller accepts it; 304 if it has this body.

    For answers without secrets only. The length of a compressed answer tells how much of it repeats
    what its caller sent (BREACH); a token or a key beside such text could be guessed by it.
    """
    headers = {
        "ETag": f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"',
        "Cache-Control": "no-cache, private",
        "Vary": "Accept-Encoding",
    }
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    encoding = _choose_encoding(request) if len(body) >= COMPRESSED_FROM else None
    if encoding is not None:
        headers["Content-Encoding"] = encoding
        compress = ENCODINGS[encoding]
        is_long = len(body) > INLINE_MAX
        body = await asyncio.to_thread(compress, body) if is_long else compress(body)
    return Response(body, media_type="application/json", headers=headers)


def _choose_encoding(request: Request) -> str | None:
    """Return the best encoding of those that the caller accepts; `q=0` refuses one (RFC 9110)."""
    header = request.headers.get("accept-encoding", "").replace(" ", "").lower()
    parts = (part.partition(";q=") for part in header.split(","))
    accepted = {name for name, _, weight in parts if not weight or weight.strip("0.")}
    return next((name for name in ENCODINGS if name in accepted), None)
