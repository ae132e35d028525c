"""Where a backup lies: a folder or a bucket, and what is written there.

::

    backup.json             written last: a place without it holds no whole backup
    tables/<name>.jsonl.gz  the rows of a table, after a line with the names of its columns
    packs.jsonl.gz          name, size and SHA-256 of each pack
    packs/<xx>/<name>       the packs, as encrypted as they were
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import obstore
import orjson
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import LocalStore, ObjectStore, from_url

FORMAT: Final = 1
SUMMARY: Final = "backup.json"
PACK_LIST: Final = "packs.jsonl.gz"
CHUNK_BYTES: Final = 8 * 1024 * 1024
GZIP: Final = 31
"""zlib's window size with gzip's header."""


class BackupError(Exception):
    """A backup or a restore that cannot be done. Nothing in use was changed."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(slots=True)
class Written:
    """What was written so far: its size and hash."""

    bytes: int = 0
    sha256: str = ""


class BackupPlace:
    """The objects of one backup."""

    def __init__(self, place: str) -> None:
        self.name = place
        try:
            self._store = _open(place)
        except (BaseError, ValueError, OSError) as error:
            raise BackupError(
                f"{place} cannot be used for a backup: {error}",
                "Name a folder or a bucket such as s3://bucket/prefix.",
            ) from error

    async def write(self, key: str, pieces: AsyncIterable[bytes]) -> Written:
        """Write an object as its pieces come; return its size and hash."""
        digest, written = hashlib.sha256(), Written()

        async def count() -> AsyncIterator[bytes]:
            async for piece in pieces:
                digest.update(piece)
                written.bytes += len(piece)
                if piece:
                    yield piece

        try:
            await obstore.put_async(
                self._store, key, count(), use_multipart=True, chunk_size=CHUNK_BYTES
            )
        except (BaseError, OSError) as error:
            raise BackupError(f"{self.name}: {key} could not be written: {error}") from error
        written.sha256 = digest.hexdigest()
        return written

    async def read(self, key: str, *, sha256: str | None = None) -> AsyncIterator[bytes]:
        """Yield an object in pieces; raise BackupError at its end if it has another hash."""
        digest = hashlib.sha256()
        try:
            found = await obstore.get_async(self._store, key)
            async for piece in found.stream(min_chunk_size=CHUNK_BYTES):
                digest.update(piece)
                yield bytes(piece)
        except (BaseError, OSError) as error:
            raise BackupError(f"{self.name}: {key} could not be read: {error}") from error
        if sha256 is not None and digest.hexdigest() != sha256:
            raise BackupError(
                f"{self.name}: {key} is damaged: its hash is not the one that was noted.",
                "Use another backup. Nothing was restored into the database.",
            )

    async def read_summary(self) -> dict[str, Any] | None:
        """Return what the backup says about itself; None where there is no whole one."""
        try:
            found = await obstore.get_async(self._store, SUMMARY)
            content: dict[str, Any] = orjson.loads(bytes(await found.bytes_async()))
        except (NotFoundError, FileNotFoundError):
            return None
        except (BaseError, OSError, ValueError) as error:
            raise BackupError(f"{self.name}: {SUMMARY} cannot be read: {error}") from error
        return content

    async def write_summary(self, content: dict[str, Any]) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

        await self.write(SUMMARY, pieces())


def find_pack_key(name: str) -> str:
    """Return the key of a pack's object in a backup."""
    return f"packs/{name[:2]}/{name}"


async def compress(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces with gzip, fast rather than small."""
    squeeze = zlib.compressobj(level=1, wbits=GZIP)
    async for piece in pieces:
        yield squeeze.compress(piece)
    yield squeeze.flush()


async def split_lines(pieces: AsyncIterable[bytes], *, at_most: int) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a gzip stream, up to so many at once."""
    expand = zlib.decompressobj(wbits=GZIP)
    rest = b""
    waiting: list[bytes] = []
    async for piece in pieces:
        *lines, rest = (rest + expand.decompress(piece)).split(b"\n")
        waiting += lines
        while len(waiting) >= at_most:
            yield waiting[:at_most]
            del waiting[:at_most]
    if rest or not expand.eof:
        raise BackupError("A list of the backup ends too early: it is damaged.")
    if waiting:
        yield waiting


def _open(place: str) -> ObjectStore:
    if "://" in place and not place.startswith("file:"):
        return from_url(
            place,
            client_options={"timeout": timedelta(seconds=300), "allow_http": True},
        )
    folder = Path(place.removeprefix("file://")).expanduser().absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return LocalStore(folder)
