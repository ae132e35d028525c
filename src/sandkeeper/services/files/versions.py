"""Versions of an owner's kept files, and their contents."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import orjson

from sandkeeper.domain.errors import FilesDamagedError, SavedFileNotFoundError
from sandkeeper.domain.events import Event
from sandkeeper.domain.files.manifest import (
    Kind,
    Manifest,
    ManifestEntry,
    NotKept,
    find_difference,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.agent.inside.common import ZEROS
from sandkeeper.services.files.pack_writer import PackWriter, hash_next
from sandkeeper.services.files.sealed_packs import SealedPacks
from sandkeeper.store import FileVersion

LISTS_CACHED: Final = 64
ENTRIES_CACHED: Final = 5_000
"""Lists up to this long are cached: the long ones would fill the memory, and cost more to use."""


@dataclass(frozen=True, slots=True)
class VersionHandle:
    """An owner's kept files as they are now; `version` is None before the first."""

    owner: Owner
    version: FileVersion | None
    manifest: Manifest

    @property
    def number(self) -> int:
        return 0 if self.version is None else self.version.number


class FileVersions:
    """Reads and commits versions. A version is whole, or it is not there."""

    def __init__(self, deps: Deps, packs: SealedPacks) -> None:
        self._deps = deps
        self._store = deps.store
        self._packs = packs
        self._clock = deps.clock
        self._lists: OrderedDict[str, Manifest] = OrderedDict()

    async def open(self, owner: Owner, number: int | None = None) -> VersionHandle:
        """Return the version in force, or another one that is still kept."""
        if number is None:
            version = await self._store.files.find_latest(owner)
        else:
            version = await self._store.files.find(owner, number)
            if version is None:
                raise SavedFileNotFoundError(f"There is no version {number} of the kept files.")
        if version is None:
            return VersionHandle(owner, None, Manifest())
        return VersionHandle(owner, version, await self._read_list(version.manifest))

    def pack(self) -> PackWriter:
        """Return where the contents of a change are gathered."""
        return PackWriter(self._deps, self._packs)

    async def commit(
        self,
        handle: VersionHandle,
        manifest: Manifest,
        packing: PackWriter,
        *,
        source: str,
        actor: str = "",
        reason: str = "",
        seen_at: datetime | None = None,
        published: tuple[Sandbox, Sequence[Event]] | None = None,
    ) -> FileVersion | None:
        """Put a manifest in force over the one that was opened; None while nothing is kept.

        The same tree stays the same version, with the new list of how it looks inside; `published`
        is published with a new one. `seen_at` is when the whole sandbox was looked at, before the
        first file was read; None for an edit, which says nothing about the other files. Raise
        VersionConflictError if another writer won.
        """
        now = self._clock()
        old = handle.version
        if manifest == handle.manifest:
            if old is not None and seen_at is not None:
                await self._store.files.mark_seen(old, now=seen_at)
            return old
        data, tree, changed, removed = await asyncio.to_thread(_render, handle.manifest, manifest)
        name = await packing.finish(data)
        packs = [name, *manifest.packs]
        if old is not None and old.tree == tree:
            await self._store.files.replace_manifest(
                old, name, packs=packs, seen_at=seen_at or old.seen_at, now=now
            )
            version = replace(old, manifest=name)
        else:
            version = FileVersion(
                owner=handle.owner,
                number=handle.number + 1,
                manifest=name,
                tree=tree,
                files=manifest.file_count,
                bytes=manifest.bytes,
                source=source,
                created_at=seen_at or now,
                seen_at=seen_at or (now if old is None else old.seen_at),
                reason=reason,
                actor=actor,
                changed=changed,
                removed=removed,
            )
            await self._store.files.commit(
                version, packs=packs, blobs=packing.new, now=now, published=published
            )
        self._remember(name, manifest)
        return version

    async def mark_seen(self, handle: VersionHandle, at: datetime | None = None) -> None:
        """Note that the sandbox was found in this state, or put into it, now or at a given time."""
        if handle.version is not None:
            await self._store.files.mark_seen(handle.version, now=at or self._clock())

    async def read(self, entries: Sequence[ManifestEntry]) -> dict[str, bytes]:
        """Return verified contents of some small files by hash; read all packs in parallel."""
        by_pack: dict[str, dict[str, ManifestEntry]] = {}
        contents: dict[str, bytes] = {}
        for entry in entries:
            if entry.size == 0:
                contents[entry.sha256] = b""
            else:
                by_pack.setdefault(entry.pack, {})[entry.sha256] = entry
        for pack, wanted in by_pack.items():
            some = list(wanted.values())
            pieces = await self._packs.get_ranges(pack, [(one.offset, one.size) for one in some])
            # Megabytes to hash: a thread keeps the event loop free.
            contents |= await asyncio.to_thread(_prove, some, pieces)
        return contents

    async def stream(self, entry: ManifestEntry) -> AsyncIterator[bytes]:
        """Yield one content of any size; a damaged one raises at its end."""
        at = 0
        async for offset, data in self.read_pieces(entry):
            for start in range(at, offset, len(ZEROS)):
                yield ZEROS[: offset - start]
            if data:
                yield data
            at = offset + len(data)

    async def read_pieces(self, entry: ManifestEntry) -> AsyncIterator[tuple[int, bytes]]:
        """Yield its pieces with their offsets, an empty one at its end; zeros lie between them."""
        digest = hashlib.sha256()
        at = 0
        async for offset, data in self._read_stored(entry):
            await hash_next(digest, offset - at, data)
            yield offset, data
            at = offset + len(data)
        await hash_next(digest, entry.size - at, b"")
        if digest.hexdigest() != entry.sha256:
            raise FilesDamagedError(path=entry.path, pack=entry.pack)
        yield entry.size, b""

    async def _read_stored(self, entry: ManifestEntry) -> AsyncIterator[tuple[int, bytes]]:
        at, stored = 0, entry.offset
        for hole, length in (*entry.holes, (entry.size, 0)):
            if hole > at:
                async for data in self._packs.stream(entry.pack, stored, hole - at):
                    yield at, data
                    at, stored = at + len(data), stored + len(data)
            at = hole + length

    async def _read_list(self, name: str) -> Manifest:
        known = self._lists.get(name)
        if known is not None:
            self._lists.move_to_end(name)
            return known
        data = await self._packs.get(name)
        # A long list takes a good part of a second, in which others must be answered.
        manifest = await asyncio.to_thread(decode_manifest, data)
        self._remember(name, manifest)
        return manifest

    def _remember(self, name: str, manifest: Manifest) -> None:
        if len(manifest.entries) > ENTRIES_CACHED:
            return
        self._lists[name] = manifest
        while len(self._lists) > LISTS_CACHED:
            self._lists.popitem(last=False)


def _render(old: Manifest, new: Manifest) -> tuple[bytes, str, int, int]:
    """Return the new list, the hash of its tree, and how many paths it changes and removes."""
    difference = find_difference(old, new)
    removed = sum(one.new is None for one in difference)
    return encode_manifest(new), new.tree, len(difference) - removed, removed


def _prove(entries: Sequence[ManifestEntry], pieces: Sequence[bytes]) -> dict[str, bytes]:
    """Return the pieces by hash, each verified to be what was kept."""
    for entry, piece in zip(entries, pieces, strict=True):
        if hashlib.sha256(piece).hexdigest() != entry.sha256:
            raise FilesDamagedError(path=entry.path, pack=entry.pack)
    return {entry.sha256: piece for entry, piece in zip(entries, pieces, strict=True)}


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as the blob store has it: compressed JSON, one short row an entry."""
    packs = sorted(manifest.packs)
    places = {name: number for number, name in enumerate(packs)}
    rows = [
        (
            one.path,
            one.kind.value,
            one.mode,
            one.size,
            one.sha256,
            one.target,
            one.mtime_ns,
            one.stamp,
            one.is_pending,
            places.get(one.pack, -1),
            one.offset,
        )
        for one in manifest.entries.values()
    ]
    not_kept = [manifest.not_kept.paths, manifest.not_kept.count]
    holes = {one.path: one.holes for one in manifest.entries.values() if one.holes}
    body = {"format": 1, "packs": packs, "entries": rows, "not_kept": not_kept, "holes": holes}
    return zlib.compress(orjson.dumps(body), 1)


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest of these bytes."""
    try:
        found: dict[str, Any] = orjson.loads(zlib.decompress(data))
        packs = [*found["packs"], ""]
        entries = {}
        kinds = {kind.value: kind for kind in Kind}
        for row in found["entries"]:
            path, kind, *rest = row
            rest[-2] = packs[rest[-2]]
            entries[path] = ManifestEntry(path, kinds[kind], *rest)
        for path, holes in found.get("holes", {}).items():
            entries[path] = entries[path].evolve(holes=tuple((at, size) for at, size in holes))
        paths, count = found.get("not_kept", [(), 0])  # Older lists have none.
    except (zlib.error, ValueError, KeyError, IndexError, TypeError) as error:
        raise FilesDamagedError("A kept list cannot be read.") from error
    return Manifest(entries, NotKept(tuple(paths), count))
