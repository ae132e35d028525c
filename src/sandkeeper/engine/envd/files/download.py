"""Reading one file: whole, in part, or not at all when the client has it already."""

from __future__ import annotations

import asyncio
import gzip
import mimetypes
import os
import re
from dataclasses import dataclass
from email.utils import formatdate
from posixpath import basename
from urllib.parse import quote

from sandkeeper.engine.envd.files.rooted_fs import RootedFilesystem
from sandkeeper.engine.http.responses import EnvdRefusedError, send_bytes
from sandkeeper.relay.asgi import Scope, Send, header

CHUNK_BYTES = 256 * 1024
GZIP_MAX_BYTES = 32 * 1024 * 1024
"""A larger file is sent as it is: to be compressed it is held in memory."""

# Files are untrusted: browsers save them, and run nothing in one that is opened anyway.
AS_DOWNLOAD = (
    (b"content-security-policy", b"default-src 'none'; sandbox"),
    (b"x-content-type-options", b"nosniff"),
)

_RANGE = re.compile(r"^bytes=(\d*)-(\d*)$")


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes of a file that were asked for."""

    start: int
    length: int


def parse_range(value: str | None, size: int) -> Part | None:
    """Return the part a Range header names, None for the whole file.

    Several ranges in one request are answered with the whole file, as the standard allows. Raises
    RefusedError if the part lies outside the file.
    """
    match = None if value is None else _RANGE.match(value.strip())
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, end = max(0, size - int(last)), size - 1
    else:
        start, end = int(first), min(int(last), size - 1) if last else size - 1
    if start >= size or end < start:
        raise EnvdRefusedError(416, f"invalid range: the file has {size} bytes")
    return Part(start=start, length=end - start + 1)


def choose_encoding(accepted: str | None) -> str:
    """Return `gzip` if the client asks for nothing else, or `identity`. Raises RefusedError."""
    weights: dict[str, float] = {}
    for item in (accepted or "").lower().split(","):
        name, _, weight = item.strip().partition(";")
        if name.strip():
            try:
                weights[name.strip()] = float(weight.strip().removeprefix("q=") or 1)
            except ValueError:
                weights[name.strip()] = 1.0
    is_plain_refused = weights.get("identity", weights.get("*", 1.0)) == 0
    takes_gzip = weights.get("gzip", weights.get("*", 0.0)) > 0
    if set(weights) == {"gzip"} and takes_gzip:
        return "gzip"
    if not is_plain_refused:
        return "identity"
    if takes_gzip:
        return "gzip"
    raise EnvdRefusedError(
        406, f"no acceptable encoding found, supported: identity, gzip: {accepted}"
    )


async def send_file(scope: Scope, send: Send, tree: RootedFilesystem, path: str) -> None:
    """Answer with a file's bytes. Raises OSError, RefusedError."""
    encoding = choose_encoding(header(scope, b"accept-encoding"))
    descriptor = tree.open_file(path)
    try:
        found = os.fstat(descriptor)
        etag = f'"{found.st_mtime_ns:x}-{found.st_size:x}"'
        headers = _headers(path, found, etag)
        if etag in [tag.strip() for tag in (header(scope, b"if-none-match") or "").split(",")]:
            await send_bytes(send, 304, b"", headers)
            return
        asked = header(scope, b"range")
        if header(scope, b"if-range") not in (None, etag):
            asked = None
        part = parse_range(asked, found.st_size)
        is_small = found.st_size <= GZIP_MAX_BYTES
        if part is None and encoding == "gzip" and is_small and scope["method"] == "GET":
            body = await asyncio.to_thread(_compress, descriptor)
            await send_bytes(send, 200, body, [*headers, (b"content-encoding", b"gzip")])
            return
        status = 200 if part is None else 206
        part = part or Part(start=0, length=found.st_size)
        if status == 206:
            last = part.start + part.length - 1
            span = f"bytes {part.start}-{last}/{found.st_size}"
            headers.append((b"content-range", span.encode()))
        headers.append((b"content-length", str(part.length).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
        else:
            await _send_part(send, descriptor, part)
    finally:
        os.close(descriptor)


async def send_open_file(send: Send, status: int, descriptor: int) -> None:
    """Answer with all bytes of an open file."""
    length = os.fstat(descriptor).st_size
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", str(length).encode()),
        *AS_DOWNLOAD,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await _send_part(send, descriptor, Part(start=0, length=length))


async def _send_part(send: Send, descriptor: int, part: Part) -> None:
    offset, end = part.start, part.start + part.length
    while offset < end:
        # The copy stays open if the request is cancelled while the thread still reads.
        data = await asyncio.to_thread(
            _read_at, os.dup(descriptor), min(CHUNK_BYTES, end - offset), offset
        )
        if not data:
            # The file shrank under us: the answer cannot be completed, so the connection drops.
            return
        offset += len(data)
        await send({"type": "http.response.body", "body": data, "more_body": offset < end})
    if part.length == 0:
        await send({"type": "http.response.body", "body": b""})


def _read_at(descriptor: int, length: int, offset: int) -> bytes:
    try:
        return os.pread(descriptor, length, offset)
    finally:
        os.close(descriptor)


def _compress(descriptor: int) -> bytes:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return gzip.compress(file.read(), compresslevel=1)


def _headers(path: str, found: os.stat_result, etag: str) -> list[tuple[bytes, bytes]]:
    name = basename(path)
    quoted = quote(name, safe="", errors="replace")
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return [
        (b"content-type", kind.encode()),
        (b"content-disposition", f"attachment; filename*=utf-8''{quoted}".encode()),
        *AS_DOWNLOAD,
        (b"accept-ranges", b"bytes"),
        (b"etag", etag.encode()),
        (b"last-modified", formatdate(found.st_mtime, usegmt=True).encode()),
        (b"vary", b"Accept-Encoding"),
    ]
