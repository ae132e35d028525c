"""Writing contents: small ones together, a large one by itself, each of them once.

Every pack is written down before its object is made, so that a crash leaves nothing that no one
knows of; and it becomes part of the kept files only when a version that needs it is committed.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Final

from sandkeeper.domain.errors import PayloadTooLargeError, ProviderAmbiguousError
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.agent.inside.common import CHUNK, ZEROS, hash_zeros
from sandkeeper.services.files.sealed_packs import SealedPacks
from sandkeeper.store import BlobLocation

# Larger packs hold more unused data when one file in them is still used; smaller ones
# make more objects to read when a sandbox comes back. One has at most a parcel more.
PACK_BYTES: Final = 8 * 1024 * 1024
EMPTY: Final = hashlib.sha256(b"").hexdigest()
INLINE_BYTES: Final = 64 * 1024
"""More than this is hashed in a thread, to keep the event loop free."""


class PackWriter:
    """The contents that one change brings. To be thrown away after its commit.

    A pack is written while the next one is gathered.
    """

    def __init__(self, deps: Deps, packs: SealedPacks) -> None:
        self._packs = packs
        self._store = deps.store
        self._clock = deps.clock
        self._known: dict[str, BlobLocation] = {EMPTY: BlobLocation(EMPTY, "", 0, 0)}
        self._new: list[BlobLocation] = []
        self._name = secrets.token_hex(16)
        self._parts: list[bytes] = []
        self._size = 0
        self._writing: asyncio.Task[None] | None = None

    @property
    def new(self) -> Sequence[BlobLocation]:
        """What was not kept before."""
        return self._new

    async def look_up(self, hashes: Sequence[str]) -> None:
        """Learn which of these are kept already."""
        asked = [one for one in set(hashes) if one not in self._known]
        if asked:
            self._known |= await self._store.files.find_locations(asked)

    def add(self, sha256: str, data: bytes) -> BlobLocation:
        """Keep a small content of this hash, which was looked up before."""
        known = self._known.get(sha256)
        if known is not None:
            return known
        place = BlobLocation(sha256, self._name, self._size, len(data))
        self._parts.append(data)
        self._size += len(data)
        self._remember(place)
        return place

    async def add_new(self, data: bytes) -> BlobLocation:
        """Keep a small content of which nothing is known yet."""
        sha256 = hashlib.sha256(data).hexdigest()
        await self.look_up([sha256])
        place = self.add(sha256, data)
        if self._size >= PACK_BYTES:
            await self.flush()
        return place

    async def write_full(self) -> None:
        """Begin to write what is gathered if it is a pack's worth."""
        if self._size >= PACK_BYTES:
            await self._wait()
            pack = self._take()
            self._writing = asyncio.create_task(self._write([pack]))

    async def add_stream(
        self, pieces: AsyncIterator[tuple[int, bytes]], *, size_max: int
    ) -> BlobLocation:
        """Keep a content of any size up to the bound, without holding it in memory.

        It comes in pieces in their order, each with its offset; the last one may be empty. What
        lies between two of them is zeros, and is not stored.
        """
        digest, size, stored = hashlib.sha256(), 0, 0
        holes: list[tuple[int, int]] = []

        async def count() -> AsyncIterator[bytes]:
            nonlocal size, stored
            async for offset, data in pieces:
                if offset + len(data) > size_max:
                    raise PayloadTooLargeError(f"A kept file has at most {size_max} bytes.")
                gap = offset - size
                if gap < 0 or (data and gap % CHUNK):
                    raise ProviderAmbiguousError("The pieces of a large file do not fit.")
                if gap:
                    holes.append((size, gap))
                size, stored = offset + len(data), stored + len(data)
                # A piece is hashed while it is encrypted.
                hashing = asyncio.create_task(hash_next(digest, gap, data))
                try:
                    if data:
                        yield data
                finally:
                    await hashing

        name = secrets.token_hex(16)
        await self._record([(name, 0)])
        await self._packs.put_stream(name, count())
        sha256 = digest.hexdigest()
        await self.look_up([sha256])
        known = self._known.get(sha256)
        if known is not None:
            # The pack stays unfinished and is removed with the others of its kind.
            return known
        place = BlobLocation(sha256, name if stored else "", 0, size, tuple(holes))
        self._remember(place)
        return place

    async def flush(self) -> None:
        """Write what is gathered, and wait for all that was begun."""
        await self._wait()
        if self._parts:
            await self._write([self._take()])

    async def finish(self, manifest: bytes) -> str:
        """Write what is gathered and a manifest, and give the name of its pack."""
        await self._wait()
        packs = [self._take()] if self._parts else []
        packs.append((secrets.token_hex(16), manifest))
        await self._write(packs)
        return packs[-1][0]

    async def close(self) -> None:
        """Leave nothing under way."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    def _take(self) -> tuple[str, bytes]:
        pack = self._name, b"".join(self._parts)
        self._name, self._parts, self._size = secrets.token_hex(16), [], 0
        return pack

    async def _write(self, packs: Sequence[tuple[str, bytes]]) -> None:
        await self._record([(name, len(data)) for name, data in packs])
        await asyncio.gather(*(self._packs.put(name, data) for name, data in packs))

    async def _wait(self) -> None:
        if self._writing is not None:
            await self._writing

    async def _record(self, packs: Sequence[tuple[str, int]]) -> None:
        key_id = self._packs.key_id
        await self._store.files.add_packs(packs, data_key=key_id, now=self._clock())

    def _remember(self, place: BlobLocation) -> None:
        self._known[place.sha256] = place
        if not place.holes:
            self._new.append(place)


async def cut_pieces(chunks: AsyncIterator[bytes]) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield a content with offsets, a mebibyte at a time, without those that are all zeros."""
    offset, size = 0, 0
    waiting: list[bytes] = []
    async for chunk in chunks:
        waiting.append(chunk)
        size += len(chunk)
        if size < CHUNK:
            continue
        data = b"".join(waiting)
        end = size // CHUNK * CHUNK
        for start in range(0, end, CHUNK):
            piece = data[start : start + CHUNK]
            if piece != ZEROS:
                yield offset + start, piece
        offset, size, waiting = offset + end, size - end, [data[end:]]
    yield offset, b"".join(waiting)


async def hash_next(digest: hashlib._Hash, zeros: int, data: bytes) -> None:
    """Add so many zeros and this data to a hash."""

    def update() -> None:
        hash_zeros(digest, zeros)
        digest.update(data)

    if zeros + len(data) <= INLINE_BYTES:
        update()
    else:
        await asyncio.to_thread(update)
