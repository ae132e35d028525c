"""Putting kept files into a sandbox: read here, sent, and unpacked inside, all three at once.

Small files travel in tars, each of which begins with the list of what is in it; a large one travels
by itself, beside its place. One script inside unpacks the tars as they arrive: it writes each file
beside its place, proves it by hash, and moves it there. While it is at one tar, the next is sent,
and the one after that is read here; so no more than a few tars are ever in memory or on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import e2b
import orjson

from sandkeeper.domain.errors import FilesDamagedError, SandboxDiskFullError, SandkeeperError
from sandkeeper.domain.files.manifest import Kind, ManifestEntry
from sandkeeper.services.files.agent.agent_script import make_header
from sandkeeper.services.files.agent.client import (
    SMALL_BYTES,
    TAR_BYTES,
    AgentClient,
    NoPythonError,
)
from sandkeeper.services.files.agent.posix_fallback import BATCH, make_finish_line, read_lost
from sandkeeper.services.files.agent.replies import distrust, read_unkept
from sandkeeper.services.files.contract import SkippedFile
from sandkeeper.services.files.diff import split_batches
from sandkeeper.services.files.versions import FileVersions

BATCH_ITEMS: Final = 4000
AHEAD: Final = 2
"""Tars that wait inside at most: more take more room on its disk, fewer let the script wait."""
PATIENCE_S: Final = 600
"""The script stops after this time without a message: its client has died."""
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


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, its small contents in memory, and what of it is damaged here."""

    entries: Sequence[ManifestEntry]
    contents: Mapping[str, bytes]
    damaged: tuple[SkippedFile, ...]


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
        self._parts: list[str] = []

    async def restore(
        self, entries: Sequence[ManifestEntry], remove: Sequence[Removal] = ()
    ) -> RestoreResult:
        """Put them in place, and delete what was not changed since the given time.

        Raises SandboxDiskFullError when there is no room; what was put in place by then stays.
        """
        batches = list(
            split_batches(
                entries, small_bytes=SMALL_BYTES, tar_bytes=TAR_BYTES, items_max=BATCH_ITEMS
            )
        )
        if not batches and not remove:
            return RestoreResult((), 0, is_proven=True)
        try:
            if len(batches) <= 1:
                return await self._restore_one(batches[0] if batches else [], remove)
            return await self._restore_many(batches, remove)
        except NoPythonError:
            await self._remote.forget(self._remote.folder, *self._parts)
            return await self._restore_without_agent(batches, remove)
        except SandkeeperError:
            await self._remote.forget(self._remote.folder, *self._parts)
            await self._remote.forget_parts()
            raise

    async def _restore_one(
        self, batch: Sequence[ManifestEntry], remove: Sequence[Removal]
    ) -> RestoreResult:
        load = await self._load(batch)
        tar, damaged = await self._send(0, load, remove)
        folder = self._remote.folder
        answer = await self._remote.request(
            "put_back",
            folder=folder,
            part_name=self._remote.part_name,
            tars=[tar],
            patience_s=0,
        )
        return _read_placed(answer, damaged)

    async def _restore_many(
        self, batches: Sequence[Sequence[ManifestEntry]], remove: Sequence[Removal]
    ) -> RestoreResult:
        damaged: list[SkippedFile] = []
        async with unpacking(self._remote) as unpacker, aclosing(self._ahead(batches)) as loads:
            async for number, load in loads:
                if not await unpacker.has_room():
                    break
                is_last = number == len(batches) - 1
                tar, bad = await self._send(number, load, remove if is_last else ())
                unpacker.send(tar)
                damaged += bad
            return _read_placed(await unpacker.finish(), damaged)

    async def _restore_without_agent(
        self, batches: Sequence[Sequence[ManifestEntry]], remove: Sequence[Removal]
    ) -> RestoreResult:
        """Write file by file through the SDK beside its place; the shell then moves it there."""
        lost: list[SkippedFile] = []
        for batch in batches or [[]]:
            load = await self._load(batch)
            parts, damaged = await self._send_parts(load, small_too=True)
            lost += damaged
            bad = {one.path for one in damaged}
            whole = [one for one in load.entries if one.path not in bad]
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
        return RestoreResult(tuple(lost), len(remove), is_proven=False)

    async def _ahead(
        self, batches: Sequence[Sequence[ManifestEntry]]
    ) -> AsyncGenerator[tuple[int, Batch], None]:
        """Yield every batch in turn; the next one is read while the caller is at work."""
        coming = asyncio.create_task(self._load(batches[0]))
        try:
            for number in range(len(batches)):
                load = await coming
                if number + 1 < len(batches):
                    coming = asyncio.create_task(self._load(batches[number + 1]))
                yield number, load
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)

    async def _load(self, batch: Sequence[ManifestEntry]) -> Batch:
        small = [one for one in batch if one.kind is Kind.FILE and one.size <= SMALL_BYTES]
        try:
            return Batch(batch, await self._versions.read(small), ())
        except FilesDamagedError:
            contents: dict[str, bytes] = {}
            damaged: list[SkippedFile] = []
            for one in small:
                try:
                    contents |= await self._versions.read([one])
                except FilesDamagedError as error:
                    damaged.append(SkippedFile(one.path, error.message))
            bad = {one.path for one in damaged}
            return Batch([one for one in batch if one.path not in bad], contents, tuple(damaged))

    async def _send(
        self, number: int, load: Batch, remove: Sequence[Removal]
    ) -> tuple[str, list[SkippedFile]]:
        """Return the tar inside, and what is damaged; large files go beside their place."""
        parts, damaged = await self._send_parts(load)
        bad = {one.path for one in damaged}
        whole = [one for one in load.entries if one.path not in bad]
        items = [
            (
                one.path,
                one.kind,
                one.mode,
                one.mtime_ns,
                one.sha256,
                one.target,
                parts.get(one.path),
                self._seen_as.get(one.path),
            )
            for one in whole
        ]
        small = [one for one in whole if one.kind is Kind.FILE and one.path not in parts]
        order = orjson.dumps({"items": items, "remove": remove})
        tar = f"{self._remote.folder}/{number}.tar"
        contents = (load.contents[one.sha256] for one in small)
        await self._remote.upload(tar, _make_tar([order], contents))
        return tar, damaged

    async def _send_parts(
        self, load: Batch, *, small_too: bool = False
    ) -> tuple[dict[str, str], list[SkippedFile]]:
        parts: dict[str, str] = {}
        damaged = list(load.damaged)
        for one in load.entries:
            is_small = one.sha256 in load.contents
            if one.kind is not Kind.FILE or (is_small and not small_too):
                continue
            chunks = _once(load.contents[one.sha256]) if is_small else self._versions.stream(one)
            try:
                parts[one.path] = await self._remote.upload_part(one.path, chunks)
                self._parts.append(parts[one.path])
            except FilesDamagedError as error:
                damaged.append(SkippedFile(one.path, error.message))
        return parts, damaged


class Unpacker:
    """The script running inside: it is sent each tar, and reports when one is unpacked."""

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
            tars=[],
            patience_s=PATIENCE_S,
        )
        self._answer = asyncio.create_task(self._remote.receive(self._handle))
        self._telling = asyncio.create_task(self._send_all(self._handle))
        for task in (self._answer, self._telling):
            task.add_done_callback(lambda _: self._moved.set())

    async def has_room(self) -> bool:
        """Wait until another tar may come; False if it makes no sense to send any."""
        assert self._answer is not None
        assert self._telling is not None
        while not self._answer.done() and not self._telling.done():
            if self._told - self._taken < AHEAD:
                return True
            self._moved.clear()
            async with self._remote.waiting():
                await self._moved.wait()
        return False

    def send(self, tar: str) -> None:
        """Hand over a tar that has arrived; the script hears of it in its turn."""
        self._told += 1
        self._lines.put_nowait(tar)

    async def finish(self) -> dict[str, Any]:
        """Return its answer, after the last tar."""
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


def _read_placed(answer: dict[str, Any], damaged: Sequence[SkippedFile]) -> RestoreResult:
    with distrust():
        lost = tuple(read_unkept(row) for row in answer["lost"])
        if answer["is_full"]:
            raise SandboxDiskFullError(lost=lost[-1].path if lost else "")
        return RestoreResult((*damaged, *lost), int(answer["removed"]), is_proven=True)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _make_tar(*contents: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield a tar in pieces of a good size for the network; what is large is not copied."""
    waiting = bytearray()
    number = 0
    for some in contents:
        for data in some:
            waiting += make_header(str(number), len(data))
            number += 1
            if len(data) >= PIECE_BYTES:
                yield bytes(waiting)
                yield data
                waiting.clear()
            else:
                waiting += data
            waiting += bytes(-len(data) % 512)
            if len(waiting) >= PIECE_BYTES:
                yield bytes(waiting)
                waiting.clear()
    yield bytes(waiting)
