"""Writing contents: small ones together, a large one by itself, each of them once.

Every pack is written down before its object is made, so that a crash leaves nothing that no one
knows of; and it becomes part of the kept files only when a version that needs it is committed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Final

from sandkeeper.domain.errors import PayloadTooLargeError
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.sealed_packs import SealedPacks
from sandkeeper.store import BlobLocation

# Larger packs hold more unused data when one file in them is still used; smaller ones
# make more objects to read when a sandbox comes back.
PACK_BYTES: Final = 16 * 1024 * 1024
EMPTY: Final = hashlib.sha256(b"").hexdigest()


class PackWriter:
    """The contents that one change brings. To be thrown away after its commit."""

    def __init__(self, deps: Deps, packs: SealedPacks) -> None:
        self._packs = packs
        self._store = deps.store
        self._clock = deps.clock
        self._known: dict[str, BlobLocation] = {EMPTY: BlobLocation(EMPTY, "", 0, 0)}
        self._new: list[BlobLocation] = []
        self._name = ""
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def new(self) -> Sequence[BlobLocation]:
        """What was not kept before."""
        return self._new

    async def look_up(self, hashes: Sequence[str]) -> None:
        """Learn which of these are kept already."""
        asked = [one for one in set(hashes) if one not in self._known]
        self._known |= await self._store.files.find_locations(asked)

    async def add(self, data: bytes) -> BlobLocation:
        """Keep a small content, which was looked up before."""
        digest = hashlib.sha256(data).hexdigest()
        known = self._known.get(digest)
        if known is not None:
            return known
        if self._size and self._size + len(data) > PACK_BYTES:
            await self.flush()
        if not self._name:
            self._name = secrets.token_hex(16)
        place = BlobLocation(digest, self._name, self._size, len(data))
        self._parts.append(data)
        self._size += len(data)
        self._remember(place)
        return place

    async def add_new(self, data: bytes) -> BlobLocation:
        """Keep a small content of which nothing is known yet."""
        await self.look_up([hashlib.sha256(data).hexdigest()])
        return await self.add(data)

    async def add_stream(self, chunks: AsyncIterator[bytes], *, size_max: int) -> BlobLocation:
        """Keep a content of any size up to the bound, without holding it in memory."""
        digest, size = hashlib.sha256(), 0

        async def count() -> AsyncIterator[bytes]:
            nonlocal size
            async for chunk in chunks:
                size += len(chunk)
                if size > size_max:
                    raise PayloadTooLargeError(f"A kept file has at most {size_max} bytes.")
                digest.update(chunk)
                yield chunk

        name = await self._new_pack(0)
        await self._packs.put_stream(name, count())
        sha256 = digest.hexdigest()
        await self.look_up([sha256])
        known = self._known.get(sha256)
        if known is not None:
            # The pack stays unfinished and is removed with the others of its kind.
            return known
        place = BlobLocation(sha256, name, 0, size)
        self._remember(place)
        return place

    async def add_list(self, data: bytes) -> str:
        """Keep a manifest, and give the name of its pack."""
        name = await self._new_pack(len(data))
        await self._packs.put(name, data)
        return name

    async def flush(self) -> None:
        """Write what is gathered."""
        if not self._parts:
            return
        await self._record(self._name, self._size)
        await self._packs.put(self._name, b"".join(self._parts))
        self._name, self._parts, self._size = "", [], 0

    async def _new_pack(self, size: int) -> str:
        name = secrets.token_hex(16)
        await self._record(name, size)
        return name

    async def _record(self, name: str, size: int) -> None:
        key_id = self._packs.key_id
        await self._store.files.add_packs([(name, size)], data_key=key_id, now=self._clock())

    def _remember(self, place: BlobLocation) -> None:
        self._known[place.sha256] = place
        self._new.append(place)
