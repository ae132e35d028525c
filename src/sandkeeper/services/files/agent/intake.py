"""What a capture brings: the rows that the script inside sends become entries of a manifest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from sandkeeper.domain.errors import (
    PayloadTooLargeError,
    ProviderAmbiguousError,
    ProviderError,
    ProviderRefusedError,
)
from sandkeeper.domain.files.manifest import Kind, Manifest, ManifestEntry, NotKept
from sandkeeper.services.files.agent.client import AgentClient, CaptureLimits, NoPythonError
from sandkeeper.services.files.agent.collector import Parcel, collecting
from sandkeeper.services.files.agent.inside.common import describe
from sandkeeper.services.files.agent.read_ahead import read_ahead
from sandkeeper.services.files.agent.replies import Piece, SeenEntry, SentFile
from sandkeeper.services.files.contract import SkippedFile
from sandkeeper.services.files.diff import is_ahead, is_under, to_entry
from sandkeeper.services.files.pack_writer import PackWriter, cut_pieces
from sandkeeper.services.files.versions import VersionHandle
from sandkeeper.store import BlobLocation


@dataclass(frozen=True, slots=True)
class CapturedTree:
    """The manifest after a capture, and what is new in it."""

    manifest: Manifest
    changed: int
    removed: int
    travelled_bytes: int
    unkept: Sequence[SkippedFile]


class CaptureIntake:
    """Takes what changed since the version that was opened. To be thrown away after it."""

    def __init__(
        self,
        handle: VersionHandle,
        packing: PackWriter,
        remote: AgentClient,
        limits: CaptureLimits,
    ) -> None:
        self._old = handle.manifest.entries
        self._packing = packing
        self._remote = remote
        self._limits = limits
        # What was deleted through the API is in the new manifest only while it is seen inside.
        self._entries = {p: one for p, one in self._old.items() if one.kind is not Kind.GONE}
        self._touched: set[str] = set()
        self._unkept: list[SkippedFile] = []
        self._travelled_bytes = 0

    async def take_all(self, transfers: asyncio.Semaphore, *, with_secrets: bool) -> CapturedTree:
        """Capture everything inside that is not as it is known."""
        try:
            not_kept = await self._take_parcels(transfers, with_secrets=with_secrets)
        except NoPythonError:
            async with transfers:
                not_kept = await self._take_plainly(with_secrets=with_secrets)
        return await asyncio.to_thread(self._sum_up, not_kept)

    async def _take_parcels(self, transfers: asyncio.Semaphore, *, with_secrets: bool) -> NotKept:
        known = await asyncio.to_thread(_make_known, self._entries)
        async with (
            collecting(self._remote, transfers, known, with_secrets=with_secrets) as collector,
            aclosing(collector.read_parcels()) as parcels,
        ):
            async for parcel in parcels:
                rows = await self._take_large(parcel, parcels)
                await self._take_rows(rows)
                await self._packing.write_full()
        assert collector.answer is not None
        self._remove(collector.answer.gone, collector.answer.problems)
        return collector.answer.not_kept

    async def _take_plainly(self, *, with_secrets: bool) -> NotKept:
        """Capture where there is no Python inside: every file that changed is read by itself."""
        tree = await self._remote.list_plainly(with_secrets=with_secrets)
        rows = []
        for path, seen in tree.seen.items():
            kept = self._entries.get(path)
            is_same = kept is not None and kept.sha256 == seen.sha256
            how = "seen" if seen.kind is not Kind.FILE else "same" if is_same else "apart"
            rows.append(SentFile(how, seen))
        await self._take_rows(rows)
        self._remove([path for path in self._old if path not in tree.seen], tree.problems)
        return tree.not_kept

    async def _take_rows(self, rows: Sequence[SentFile]) -> None:
        await self._packing.look_up([one.seen.sha256 for one in rows if one.how == "here"])
        apart = await asyncio.to_thread(self._sort, rows)
        for one in apart:
            await self._take_apart(one.seen)

    def _sort(self, rows: Sequence[SentFile]) -> list[SentFile]:
        """Take what is here, and return what has to be read by itself."""
        apart = []
        for one in rows:
            seen = one.seen
            self._touched.add(seen.path)
            self._travelled_bytes += len(one.data)
            kept = self._old.get(seen.path)
            if one.how == "error":
                self._unkept.append(SkippedFile(seen.path[:4000], one.reason))
                if kept is not None:
                    self._entries[seen.path] = kept
            elif kept is not None and kept.is_pending and is_ahead(kept, seen):
                self._entries[seen.path] = kept
            elif one.how == "seen" and seen.kind is not Kind.FILE:
                self._entries[seen.path] = to_entry(seen)
            elif one.how == "same" and kept is not None and kept.sha256 == seen.sha256:
                self._entries[seen.path] = kept.evolve(
                    is_pending=False, mode=seen.mode, mtime_ns=seen.mtime_ns, stamp=seen.stamp
                )
            elif one.how == "proof":
                self._prove(seen)
            elif one.how == "here":
                self._put(seen, self._packing.add(seen.sha256, one.data))
            elif one.how == "apart":
                apart.append(one)
            else:
                raise ProviderAmbiguousError("The sandbox sent a file in an unknown way.")
        self._remote.check_limits(
            is_too_long=len(self._touched) > 2 * self._limits.entries,
            total_bytes=self._travelled_bytes,
        )
        return apart

    async def _take_large(
        self, parcel: Parcel, parcels: AsyncGenerator[Parcel, None]
    ) -> list[SentFile]:
        """Keep the large file that begins in this parcel, if one does; return the rows after it."""
        first = parcel[0] if parcel else None
        if not isinstance(first, Piece) and (first is None or first.how != "end"):
            return _check_rows(parcel)
        rest: Parcel = []
        place = await self._packing.add_stream(
            _join(parcel, parcels, rest), size_max=self._limits.file_bytes
        )
        end, *rows = _check_rows(rest)
        if end.how != "end":
            return [end, *rows]
        if (place.sha256, place.size) != (end.seen.sha256, end.seen.size):
            raise ProviderAmbiguousError("A large file arrived with other content than was sent.")
        self._touched.add(end.seen.path)
        self._travelled_bytes += place.size - sum(length for _, length in place.holes)
        self._put(end.seen, place)
        return rows

    def _prove(self, seen: SeenEntry) -> None:
        """Note how a large file looks whose content arrived as it was hashed inside."""
        entry = self._entries.get(seen.path)
        if entry is not None and (entry.sha256, entry.size) == (seen.sha256, seen.size):
            self._entries[seen.path] = entry.evolve(stamp=seen.stamp)

    async def _take_apart(self, seen: SeenEntry) -> None:
        try:
            try:
                place = await self._read_apart(seen.path)
            except ProviderRefusedError:
                raise
            except ProviderError:
                # It may have been cut off while it was read.
                place = await self._read_apart(seen.path)
        except (PayloadTooLargeError, ProviderRefusedError) as error:
            self._unkept.append(SkippedFile(seen.path, error.message))
            return
        self._travelled_bytes += place.size - sum(length for _, length in place.holes)
        self._put(seen, place)

    async def _read_apart(self, path: str) -> BlobLocation:
        async with (
            self._remote.read(path) as chunks,
            aclosing(read_ahead(cut_pieces(chunks))) as pieces,
        ):
            return await self._packing.add_stream(pieces, size_max=self._limits.file_bytes)

    def _put(self, seen: SeenEntry, place: BlobLocation) -> None:
        kept = self._old.get(seen.path)
        if kept is not None and kept.is_pending and seen.mtime_ns < kept.mtime_ns:
            self._entries[seen.path] = kept
            return
        self._entries[seen.path] = ManifestEntry(
            path=seen.path,
            kind=Kind.FILE,
            mode=seen.mode,
            size=place.size,
            sha256=place.sha256,
            mtime_ns=seen.mtime_ns,
            # It changed between the two looks: the next capture reads it again.
            stamp=seen.stamp if place.sha256 == seen.sha256 else "",
            pack=place.pack,
            offset=place.start,
            holes=place.holes,
        )

    def _remove(self, gone: Sequence[str], problems: Sequence[SkippedFile]) -> None:
        """Drop what is gone inside; not what waits for its way in, or lies where none can look."""
        self._unkept += problems
        blind = [problem.path for problem in problems]
        for path in gone:
            kept = self._entries.get(path)
            if kept is not None and not kept.is_pending and not is_under(path, blind):
                del self._entries[path]

    def _sum_up(self, not_kept: NotKept) -> CapturedTree:
        manifest = Manifest.of(self._entries.values(), not_kept)
        touched = [(self._entries.get(path), self._old.get(path)) for path in self._touched]
        changed = sum(new is not None and not new.is_same_as(old) for new, old in touched)
        removed = sum(path not in self._entries for path in self._old)
        return CapturedTree(manifest, changed, removed, self._travelled_bytes, self._unkept)


def _make_known(entries: Mapping[str, ManifestEntry]) -> dict[str, tuple[str, str]]:
    """Return the look and the hash of each path, by which the script sees what has changed."""
    return {
        path: (
            ""
            if one.is_pending
            else describe(one.kind.value, one.mode, one.mtime_ns, one.stamp, one.target),
            one.sha256,
        )
        for path, one in entries.items()
    }


def _check_rows(parcel: Parcel) -> list[SentFile]:
    rows = [one for one in parcel if isinstance(one, SentFile)]
    if len(rows) != len(parcel):
        raise ProviderAmbiguousError("The sandbox sent pieces of a file among others.")
    return rows


async def _join(
    parcel: Parcel, parcels: AsyncGenerator[Parcel, None], rest: Parcel
) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the pieces of one large file, and leave the rows from its last one on in `rest`."""
    path = ""
    while parcel:
        for number, one in enumerate(parcel):
            if not isinstance(one, Piece):
                rest += parcel[number:]
                yield one.seen.size, b""
                return
            if one.path != (path or one.path):
                break
            path = one.path
            yield one.offset, one.data
        parcel = await anext(parcels, [])
    raise ProviderAmbiguousError("A large file did not arrive as a whole.")
