"""Encrypted packs over the place of the contents, read in pieces without decrypting the rest.

An encrypted pack has a name of its own beside the plain one that an older version wrote. The
database says which packs are still plain, so a plain object never takes the place of an encrypted
one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from sandkeeper.domain.errors import FilesDamagedError
from sandkeeper.encryption.packs import (
    CHUNK_BYTES,
    HEADER_BYTES,
    PackCipher,
    PackDamagedError,
    PackSealer,
    find_last_chunk,
    locate_chunks,
    open_header,
    seal_pack,
)
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.blobs import Blobs, MissingPackError

SUFFIX: Final = ".sk1"
PIECE_BYTES: Final = 64 * CHUNK_BYTES
"""Read at a time from a large content."""
HEADERS_CACHED: Final = 4096
INLINE_BYTES: Final = 256 * 1024
"""More than this is encrypted in a thread, to keep the event loop free."""
ATTEMPTS: Final = 3
"""A pack may be re-encrypted between the reads of its header and of its chunks."""


class SealedPacks:
    """Packs by name, as their writers and readers see them: in plain."""

    def __init__(self, deps: Deps, blobs: Blobs) -> None:
        self._blobs = blobs
        self._files = deps.store.files
        self._keyring = deps.store.database.keyring
        self._headers: OrderedDict[str, tuple[PackCipher, int]] = OrderedDict()

    @property
    def key_id(self) -> str:
        """Return the data key that encrypts new packs."""
        return self._keyring.current_id

    async def put(self, name: str, data: bytes) -> None:
        """Write a small pack, whole or not at all."""
        sealed = await asyncio.to_thread(seal_pack, self._keyring, name, data)
        await self._blobs.put(name + SUFFIX, sealed)

    async def put_stream(self, name: str, chunks: AsyncIterator[bytes]) -> None:
        """Write a large pack piece by piece, whole or not at all."""
        await self._blobs.put_stream(name + SUFFIX, self._seal(name, chunks))
        self._headers.pop(name, None)

    async def get(self, name: str) -> bytes:
        """Return a whole pack."""
        return b"".join([piece async for piece in self.read(name)])

    async def read(self, name: str) -> AsyncIterator[bytes]:
        """Yield a whole pack, a few megabytes at a time."""
        try:
            _, size = await self._open(name)
        except MissingPackError:
            async for piece in self._read_plain(name):
                yield piece
            return
        end = (find_last_chunk(size) + 1) * CHUNK_BYTES
        for start in range(0, end, PIECE_BYTES):
            [piece] = await self._read_sealed(name, [(start, min(PIECE_BYTES, end - start))])
            yield piece

    async def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several pieces, each given by start and size."""
        try:
            pieces = await self._read_sealed(name, ranges)
        except MissingPackError:
            if await self._files.is_plain(name):
                return await self._blobs.get_ranges(name, ranges)
            # It may have been encrypted between the two looks.
            pieces = await self._read_sealed(name, ranges)
        if any(len(piece) != size for piece, (_, size) in zip(pieces, ranges, strict=True)):
            raise FilesDamagedError("A kept content was cut off.", pack=name)
        return pieces

    async def stream(self, name: str, start: int, size: int) -> AsyncIterator[bytes]:
        """Yield one piece of any size, a few megabytes at a time."""
        for at in range(start, start + size, PIECE_BYTES):
            [piece] = await self.get_ranges(name, [(at, min(PIECE_BYTES, start + size - at))])
            yield piece

    async def delete(self, names: Sequence[str]) -> None:
        """Remove packs; those that are gone already are fine."""
        for name in names:
            self._headers.pop(name, None)
        await self._blobs.delete([one for name in names for one in (name + SUFFIX, name)])

    async def delete_plain(self, name: str) -> None:
        """Remove the plain object of a pack that is encrypted now."""
        await self._blobs.delete([name])

    async def _read_plain(self, name: str) -> AsyncIterator[bytes]:
        if not await self._files.is_plain(name):
            raise MissingPackError(pack=name)
        async for piece in self._blobs.read(name):
            yield piece

    async def _seal(
        self, name: str, chunks: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes | bytearray]:
        sealer = PackSealer(self._keyring, name)
        async for chunk in chunks:
            is_short = len(chunk) <= INLINE_BYTES
            sealed = sealer.feed(chunk) if is_short else await asyncio.to_thread(sealer.feed, chunk)
            if sealed:
                yield sealed
        yield sealer.finish()

    async def _read_sealed(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._try_read(name, ranges)
            except PackDamagedError as error:
                self._headers.pop(name, None)
                if attempt == ATTEMPTS:
                    message = f"A kept content was changed: {error}."
                    raise FilesDamagedError(message, pack=name) from error
        raise AssertionError("the last attempt returns or raises")

    async def _try_read(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        cipher, stored_bytes = await self._open(name)
        last = find_last_chunk(stored_bytes)
        runs = _find_runs(ranges, last)
        places = [locate_chunks(first, count, stored_bytes) for first, count in runs]
        stored = await self._blobs.get_ranges(name + SUFFIX, places) if places else []

        def take() -> list[bytes]:
            opened = [
                (first * CHUNK_BYTES, cipher.open_run(first, data, last=last))
                for (first, _), data in zip(runs, stored, strict=True)
            ]
            return _slice(opened, ranges)

        is_short = sum(size for _, size in places) <= INLINE_BYTES
        return take() if is_short else await asyncio.to_thread(take)

    async def _open(self, name: str) -> tuple[PackCipher, int]:
        known = self._headers.get(name)
        if known is None:
            header, size = await self._blobs.get_head(name + SUFFIX, HEADER_BYTES)
            try:
                find_last_chunk(size)
                known = open_header(self._keyring, name, header), size
            except PackDamagedError as error:
                message = f"A kept content was changed: {error}."
                raise FilesDamagedError(message, pack=name) from error
            self._headers[name] = known
            while len(self._headers) > HEADERS_CACHED:
                self._headers.popitem(last=False)
        return known


def _find_runs(ranges: Iterable[tuple[int, int]], last: int) -> list[tuple[int, int]]:
    """Return the chunks that hold these pieces, as first number and count, without overlaps."""
    runs: list[tuple[int, int]] = []
    for start, size in sorted(ranges):
        first, end = start // CHUNK_BYTES, min((start + size - 1) // CHUNK_BYTES, last)
        if size <= 0 or first > last:
            continue
        if runs and first <= runs[-1][0] + runs[-1][1]:
            begin, count = runs[-1]
            runs[-1] = begin, max(count, end - begin + 1)
        else:
            runs.append((first, end - first + 1))
    return runs


def _slice(opened: Sequence[tuple[int, bytes]], ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return each range of the pack out of the runs that were opened, in the order asked for."""
    found: dict[int, bytes] = {}
    at = 0
    for index in sorted(range(len(ranges)), key=lambda one: ranges[one]):
        start, size = ranges[index]
        while at < len(opened) and start >= opened[at][0] + len(opened[at][1]):
            at += 1
        if at == len(opened) or size <= 0:
            found[index] = b""
            continue
        begin, data = opened[at]
        found[index] = data[start - begin : start - begin + size]
    return [found[index] for index in range(len(ranges))]
