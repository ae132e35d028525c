"""What an upload carries, and how it reaches the disk without holding up the engine."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Self

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from sandkeeper.engine.envd.files.entries import METADATA_PREFIX
from sandkeeper.engine.envd.files.rooted_fs import RootedFilesystem, real_path
from sandkeeper.engine.http.responses import EnvdRefusedError
from sandkeeper.relay.asgi import Receive

FLUSH_BYTES = 1024 * 1024
"""So much is gathered before a thread writes it. More costs memory, less costs thread switches."""

INFLATE_BYTES = 1024 * 1024
METADATA_HEADER = b"x-metadata-"
METADATA_KEY_MAX_BYTES = 246
METADATA_MAX_BYTES = 4096
GZIP_WINDOW = 16 + zlib.MAX_WBITS


class MetadataError(Exception):
    """A file's metadata cannot be stored; the message explains why."""


def parse_metadata(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the metadata of `X-Metadata-<key>` headers. Raises MetadataError."""
    found: dict[str, str] = {}
    total = 0
    for name, raw in headers:
        if not name.startswith(METADATA_HEADER):
            continue
        key = name[len(METADATA_HEADER) :].decode("latin-1")
        value = raw.decode("latin-1")
        if not key or len(key) > METADATA_KEY_MAX_BYTES:
            raise MetadataError(f"metadata key must be 1 to {METADATA_KEY_MAX_BYTES} bytes")
        if not all(" " <= letter <= "~" for letter in key + value):
            raise MetadataError(f"metadata '{key}' must be printable ASCII")
        total += len(key) + len(value)
        found[key] = value
    if total > METADATA_MAX_BYTES:
        raise MetadataError(f"metadata is larger than {METADATA_MAX_BYTES} bytes")
    return found


async def read_body(receive: Receive) -> AsyncIterator[bytes]:
    """Return the request's body piece by piece. Raises RefusedError if the client goes away."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise EnvdRefusedError(499, "the client left before its upload was complete")
        if data := message.get("body", b""):
            yield data
        if not message.get("more_body", False):
            return


async def decompressed(body: AsyncIterator[bytes], encoding: str | None) -> AsyncIterator[bytes]:
    """Undo the request's content encoding. Raises RefusedError if it is unknown or broken."""
    if encoding is None or encoding.lower() in ("", "identity"):
        async for data in body:
            yield data
        return
    if encoding.lower() != "gzip":
        raise EnvdRefusedError(400, f"unsupported Content-Encoding: {encoding}")
    inflater = zlib.decompressobj(GZIP_WINDOW)
    try:
        async for data in body:
            waiting = data
            while waiting and not inflater.eof:
                yield inflater.decompress(waiting, INFLATE_BYTES)
                waiting = inflater.unconsumed_tail
        yield inflater.flush()
    except zlib.error as error:
        raise EnvdRefusedError(400, f"malformed gzip: {error}") from None
    if not inflater.eof:
        raise EnvdRefusedError(400, "malformed gzip: it ends too early")


class _Form:
    """Turns the parser's callbacks into a row of names and bytes."""

    def __init__(self, boundary: bytes) -> None:
        self.items: list[str | bytes] = []
        self.is_complete = False
        self._field = b""
        self._value = b""
        self._disposition = b""
        self._is_file = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._add_field,
                "on_header_value": self._add_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._add_data,
                "on_end": self._end,
            },
        )

    def feed(self, data: bytes) -> list[str | bytes]:
        self._parser.write(data)
        items, self.items = self.items, []
        return items

    def _begin(self) -> None:
        self._disposition = b""
        self._is_file = False

    def _add_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field = self._value = b""

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._is_file = options.get(b"name") == b"file"
        if self._is_file:
            self.items.append(options.get(b"filename", b"").decode(errors="replace"))

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.items.append(data[start:end])

    def _end(self) -> None:
        self.is_complete = True


async def read_parts(body: AsyncIterator[bytes], content_type: str) -> AsyncIterator[str | bytes]:
    """Return each file's name, followed by its bytes. Raises RefusedError on a broken form."""
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise EnvdRefusedError(400, "the multipart boundary is missing")
    form = _Form(boundary)
    try:
        async for data in body:
            for item in form.feed(data):
                yield item
    except FormParserError as error:
        raise EnvdRefusedError(400, f"malformed multipart form: {error}") from None
    if not form.is_complete:
        raise EnvdRefusedError(400, "malformed multipart form: it ends too early")


class FileSink:
    """Writes one file, in order, in a thread."""

    def __init__(self, tree: RootedFilesystem, path: str, metadata: Mapping[str, str]) -> None:
        self._tree = tree
        self._path = path
        self._metadata = metadata
        self._descriptor: int | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.close()
        else:
            self.abandon()

    async def open(self) -> None:
        """Make the file, empty. Raises OSError."""
        self._descriptor = self._tree.create_file(self._path)
        _store_metadata(self._descriptor, self._metadata)

    async def write(self, data: bytes) -> None:
        """Write data; it is in the file when `close` returns. Raises OSError."""
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= FLUSH_BYTES:
            await self._flush()

    async def close(self) -> None:
        """Write what is left. Raises OSError."""
        try:
            await self._flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    async def _flush(self) -> None:
        if self._descriptor is None or not self._waiting:
            return
        data, self._waiting, self._waiting_bytes = b"".join(self._waiting), [], 0
        # The copy stays open if the request is cancelled while the thread still writes.
        await asyncio.to_thread(_write_all, os.dup(self._descriptor), data)


def _write_all(descriptor: int, data: bytes) -> None:
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)


def _store_metadata(descriptor: int, metadata: Mapping[str, str]) -> None:
    """Replace all that was stored beside the file."""
    path = real_path(descriptor)
    try:
        names = os.listxattr(path)
    except OSError:
        names = []
    for name in names:
        if name.startswith(METADATA_PREFIX):
            os.removexattr(path, name)
    for key, value in metadata.items():
        os.setxattr(path, METADATA_PREFIX + key, value.encode())
