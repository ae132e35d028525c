"""Putting kept files into a sandbox: read here, sent, and unpacked inside, all three at once.

Files travel in parcels, each of which begins with the list of what is in it. A script inside
unpacks the parcels as they arrive: it writes each file beside its place, proves it by hash, and
moves it there. While it is at one parcel, the next is sent, and the one after that is read here; so
no more than a few parcels are ever in memory or on the way. Two such lanes work side by side. A
large file arrives beside its place by itself, and the script hashes it while it arrives; one with
holes comes in pieces, in parcels.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import e2b
import orjson

from sandkeeper.domain.errors import FilesDamagedError, SandboxDiskFullError, SandkeeperError
from sandkeeper.domain.files.manifest import Kind, ManifestEntry
from sandkeeper.services.files.agent.client import (
    PARCEL_BYTES,
    PATIENCE_S,
    SMALL_BYTES,
    AgentClient,
    NoPythonError,
)
from sandkeeper.services.files.agent.posix_fallback import BATCH, make_finish_line, read_lost
from sandkeeper.services.files.agent.read_ahead import read_ahead, run_together
from sandkeeper.services.files.agent.replies import distrust, read_unkept
from sandkeeper.services.files.contract import SkippedFile
from sandkeeper.services.files.diff import split_batches
from sandkeeper.services.files.versions import FileVersions

AHEAD: Final = 2
"""Parcels that wait inside at most: more take more room on its disk, fewer let the script wait."""
LANES: Final = 2
"""Scripts that unpack side by side: to make files is most of the work, for which a sandbox usually
has two processors. More hold more in memory."""
ROWS_MAX: Final = 1000
"""Files of one parcel. More leave one lane without work while the other has several parcels; fewer
cost more requests."""
LAST_WORDS_S: Final = 5
PIECE_BYTES: Final = 64 * 1024
"""Contents from this size on are sent as they are; smaller ones are gathered up to it."""

Removal = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What could not be put in place, how much was removed, and whether contents were hashed."""

    lost: tuple[SkippedFile, ...]
    removed: int
    is_proven: bool


@dataclass(slots=True)
class OutgoingParcel:
    """What one parcel tells the script to do, and the contents that it needs for that."""

    items: list[tuple[object, ...]] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    remove: Sequence[Removal] = ()
    part: str = ""
    """Where a large file arrives by itself, and its content."""
    stream: AsyncIterator[bytes] | None = None

    async def write(self) -> AsyncIterator[bytes]:
        """Yield it in pieces of a good size for the network; what is large is not copied."""
        waiting = bytearray(orjson.dumps({"items": self.items, "remove": self.remove}) + b"\n")
        for data in self.contents:
            if len(data) >= PIECE_BYTES:
                yield bytes(waiting)
                yield data
                waiting.clear()
            else:
                waiting += data
            if len(waiting) >= PIECE_BYTES:
                yield bytes(waiting)
                waiting.clear()
        yield bytes(waiting)


class FileRestorer:
    """Puts entries whose contents are kept into one sandbox."""

    def __init__(
        self,
        remote: AgentClient,
        versions: FileVersions,
        seen_as: Mapping[str, str] | None = None,
    ) -> None:
        self._remote = remote
        self._versions = versions
        self._seen_as = seen_as or {}
        self._damaged: list[SkippedFile] = []
        self._lanes = [remote]
        self._parts: list[str] = []

    async def restore(
        self, entries: Sequence[ManifestEntry], remove: Sequence[Removal] = ()
    ) -> RestoreResult:
        """Put them in place, and delete what was not changed since the given time.

        Raises SandboxDiskFullError when there is no room; what was put in place by then stays.
        """
        batches = list(
            split_batches(
                entries, small_bytes=SMALL_BYTES, parcel_bytes=PARCEL_BYTES, items_max=ROWS_MAX
            )
        )
        if not batches and not remove:
            return RestoreResult((), 0, is_proven=True)
        try:
            if len(batches) <= 1 and not any(map(_is_large, entries)):
                return await self._restore_one(batches[0] if batches else [], remove)
            return await self._restore_many(batches, remove)
        except NoPythonError:
            await self._remote.forget(*(lane.folder for lane in self._lanes), *self._parts)
            self._damaged.clear()
            return await self._restore_without_agent(batches, remove)
        except SandkeeperError:
            await self._remote.forget(*(lane.folder for lane in self._lanes), *self._parts)
            for lane in self._lanes:
                await lane.forget_parts()
            raise

    async def _restore_one(
        self, batch: Sequence[ManifestEntry], remove: Sequence[Removal]
    ) -> RestoreResult:
        parcel = await self._fill(batch)
        parcel.remove = remove
        name = f"{self._remote.folder}/0"
        await self._remote.upload(name, parcel.write())
        answer = await self._remote.request(
            "put_back",
            folder=self._remote.folder,
            part_name=self._remote.part_name,
            parcels=[name],
            patience_s=0,
        )
        placed = _read_placed(answer)
        return replace(placed, lost=(*self._damaged, *placed.lost))

    async def _restore_many(
        self, batches: Sequence[Sequence[ManifestEntry]], remove: Sequence[Removal]
    ) -> RestoreResult:
        """Put everything but folders in place in lanes, and then folders, which may forbid it."""
        is_last = [any(one.kind is Kind.FOLDER for one in batch) for batch in batches]
        first_last = is_last.index(True) if True in is_last else len(batches)
        waiting = iter(batches[:first_last])
        self._lanes += [self._remote.open_lane() for _ in range(min(LANES, first_last) - 1)]
        async with unpacking(self._remote) as unpacker:
            beside = [self._run_lane(lane, waiting) for lane in self._lanes[1:]]
            _, *answers = await run_together(self._feed(unpacker, waiting), *beside)
            await self._feed(unpacker, batches[first_last:], remove)
            answers.append(await unpacker.finish())
        placed = [_read_placed(answer) for answer in answers]
        lost = (*self._damaged, *(loss for one in placed for loss in one.lost))
        return RestoreResult(lost, sum(one.removed for one in placed), is_proven=True)

    async def _run_lane(
        self, remote: AgentClient, batches: Iterator[Sequence[ManifestEntry]]
    ) -> dict[str, Any]:
        async with unpacking(remote) as unpacker:
            await self._feed(unpacker, batches)
            return await unpacker.finish()

    async def _feed(
        self,
        unpacker: Unpacker,
        batches: Iterable[Sequence[ManifestEntry]],
        remove: Sequence[Removal] = (),
    ) -> dict[str, Any]:
        """Send batches as long as there are any; lanes share them."""
        async with aclosing(read_ahead(self._fill_all(batches, remove))) as parcels:
            async for parcel in parcels:
                if not await unpacker.has_room():
                    break
                await unpacker.send(parcel)
        return {}

    async def _fill_all(
        self, batches: Iterable[Sequence[ManifestEntry]], remove: Sequence[Removal]
    ) -> AsyncGenerator[OutgoingParcel, None]:
        for batch in batches:
            if _is_large(batch[0]) and not batch[0].holes:
                yield self._stream_large(batch[0])
            elif _is_large(batch[0]):
                async for parcel in self._fill_large(batch[0]):
                    yield parcel
            else:
                yield await self._fill(batch)
        if remove:
            yield OutgoingParcel(remove=remove)

    def _stream_large(self, entry: ManifestEntry) -> OutgoingParcel:
        """Return a parcel that announces a large file, with the content that follows it."""
        part = self._remote.name_part(entry.path)
        self._parts.append(part)

        async def read() -> AsyncIterator[bytes]:
            try:
                async for chunk in self._versions.stream(entry):
                    yield chunk
            except FilesDamagedError as error:
                self._damaged.append(SkippedFile(entry.path, error.message))
                raise

        items = [("follow", *self._describe(entry), part)]
        return OutgoingParcel(items=items, part=part, stream=read())

    async def _fill(self, batch: Sequence[ManifestEntry]) -> OutgoingParcel:
        contents = await self._load([one for one in batch if one.kind is Kind.FILE])
        parcel = OutgoingParcel()
        for one in batch:
            if one.kind is not Kind.FILE:
                parcel.items.append(("put", *self._describe(one)))
            elif one.sha256 in contents:
                parcel.items.append(("put", *self._describe(one)))
                parcel.contents.append(contents[one.sha256])
        return parcel

    async def _fill_large(self, entry: ManifestEntry) -> AsyncIterator[OutgoingParcel]:
        """Yield its pieces in parcels, the last of which says that it is whole, or is not to be."""
        parcel, size = OutgoingParcel(), 0
        try:
            async for offset, data in self._versions.read_pieces(entry):
                parcel.items.append(("piece", entry.path, offset, len(data)))
                parcel.contents.append(data)
                size += len(data)
                if size >= PARCEL_BYTES:
                    yield parcel
                    parcel, size = OutgoingParcel(), 0
        except FilesDamagedError as error:
            self._damaged.append(SkippedFile(entry.path, error.message))
            yield OutgoingParcel([("drop", entry.path)])
        else:
            parcel.items.append(("end", *self._describe(entry)))
            yield parcel

    def _describe(self, one: ManifestEntry) -> tuple[object, ...]:
        look = self._seen_as.get(one.path)
        return one.path, one.kind, one.mode, one.mtime_ns, one.sha256, one.target, one.size, look

    async def _load(self, small: Sequence[ManifestEntry]) -> Mapping[str, bytes]:
        try:
            return await self._versions.read(small)
        except FilesDamagedError:
            contents: dict[str, bytes] = {}
            for one in small:
                try:
                    contents |= await self._versions.read([one])
                except FilesDamagedError as error:
                    self._damaged.append(SkippedFile(one.path, error.message))
            return contents

    async def _restore_without_agent(
        self, batches: Sequence[Sequence[ManifestEntry]], remove: Sequence[Removal]
    ) -> RestoreResult:
        """Write file by file through the SDK beside its place; the shell then moves it there."""
        lost: list[SkippedFile] = []
        for batch in batches:
            parts = await self._send_parts(batch)
            whole = [one for one in batch if one.kind is not Kind.FILE or one.path in parts]
            for start in range(0, len(whole), BATCH):
                line = make_finish_line(
                    self._remote.root.rstrip("/"),
                    whole[start : start + BATCH],
                    parts,
                    (),
                    self._seen_as,
                )
                lost += [read_unkept(row) for row in read_lost(await self._remote.run(line))]
        if remove:
            await self._remote.run(make_finish_line(self._remote.root.rstrip("/"), [], {}, remove))
        return RestoreResult((*self._damaged, *lost), len(remove), is_proven=False)

    async def _send_parts(self, batch: Sequence[ManifestEntry]) -> dict[str, str]:
        parts: dict[str, str] = {}
        for one in batch:
            if one.kind is not Kind.FILE:
                continue
            try:
                part = self._remote.name_part(one.path)
                self._parts.append(part)
                await self._remote.upload_part(part, self._versions.stream(one))
                parts[one.path] = part
            except FilesDamagedError as error:
                self._damaged.append(SkippedFile(one.path, error.message))
        return parts


class Unpacker:
    """The script running inside: it is sent each parcel, and reports when one is unpacked."""

    def __init__(self, remote: AgentClient) -> None:
        self._remote = remote
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        self._told = 0
        self._taken = 0
        self._moved = asyncio.Event()
        self._handle: e2b.AsyncCommandHandle[str] | None = None
        self._answer: asyncio.Task[dict[str, Any]] | None = None
        self._telling: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Start it."""
        self._handle = await self._remote.begin(
            "put_back",
            on_output=self._read_replies,
            folder=self._remote.folder,
            part_name=self._remote.part_name,
            parcels=[],
            patience_s=PATIENCE_S,
        )
        self._answer = asyncio.create_task(self._remote.receive(self._handle))
        self._telling = asyncio.create_task(self._send_all(self._handle))
        for task in (self._answer, self._telling):
            task.add_done_callback(lambda _: self._moved.set())

    async def has_room(self) -> bool:
        """Wait until another parcel may come; False if it makes no sense to send any."""
        assert self._answer is not None
        assert self._telling is not None
        while not self._answer.done() and not self._telling.done():
            if self._told - self._taken < AHEAD:
                return True
            self._moved.clear()
            async with self._remote.waiting():
                await self._moved.wait()
        return False

    async def send(self, parcel: OutgoingParcel) -> None:
        """Send a parcel, of which the script hears in its turn, and what it follows."""
        name = f"{self._remote.folder}/{self._told}"
        if parcel.stream is not None:
            # It is there before the script hears of it: if not, it was taken back.
            await self._remote.upload_part(parcel.part, _write_nothing())
        await self._remote.upload(name, parcel.write())
        self._told += 1
        self._lines.put_nowait(name)
        if parcel.stream is not None:
            with suppress(FilesDamagedError):  # The script sees that it was taken back.
                await self._remote.upload_part(parcel.part, parcel.stream)

    async def finish(self) -> dict[str, Any]:
        """Return its answer, after the last parcel."""
        assert self._answer is not None
        assert self._telling is not None
        self._lines.put_nowait("")
        async with self._remote.waiting():
            await asyncio.wait({self._telling})
            failure = self._telling.exception()
            if failure is not None:
                # It does not listen any more. If it came to its end, its own words say why.
                await asyncio.wait({self._answer}, timeout=LAST_WORDS_S)
                if not self._answer.done():
                    raise failure
            return await self._answer

    async def end(self) -> None:
        """Stop it, wherever it is; return when it is gone, so that nothing is written any more."""
        tasks = [one for one in (self._telling, self._answer) if one is not None]
        if self._handle is not None and self._answer is not None and not self._answer.done():
            await self._remote.stop(self._handle)
            await asyncio.wait({self._answer}, timeout=LAST_WORDS_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _read_replies(self, said: str) -> None:
        self._remote.hear(said)
        self._taken += said.count("\n")
        self._moved.set()

    async def _send_all(self, handle: e2b.AsyncCommandHandle[str]) -> None:
        line = "more"
        while line:
            line = await self._lines.get()
            await self._remote.send(handle, line)


@asynccontextmanager
async def unpacking(remote: AgentClient) -> AsyncIterator[Unpacker]:
    """Run a script that unpacks what arrives; it does not outlive the block."""
    unpacker = Unpacker(remote)
    try:
        await unpacker.begin()
        yield unpacker
    finally:
        await asyncio.shield(unpacker.end())


async def _write_nothing() -> AsyncIterator[bytes]:
    yield b""


def _read_placed(answer: dict[str, Any]) -> RestoreResult:
    with distrust():
        lost = tuple(read_unkept(row) for row in answer["lost"])
        if answer["is_full"]:
            raise SandboxDiskFullError(lost=lost[-1].path if lost else "")
        return RestoreResult(lost, int(answer["removed"]), is_proven=True)


def _is_large(entry: ManifestEntry) -> bool:
    return entry.kind is Kind.FILE and entry.size > SMALL_BYTES
