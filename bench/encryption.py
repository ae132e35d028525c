"""Measure what encryption adds to a capture: keeping the contents of many files, and reading them.

Both sides are the keeper's own code, in this process, over a SQLite database and a folder: the
writer that a capture uses, once with encrypted packs and once with plain ones, in turns. What runs
inside a sandbox, and the network, are the same for both and are left out, so the ratio is the worst
case. It is processor time, which other programs on the machine change little.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.processes import folder_of_its_own
from bench.report import Report, Row
from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.services.clock import ProcessClock
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.blobs import Blobs, open_blobs
from sandkeeper.services.files.pack_writer import PackWriter
from sandkeeper.services.files.sealed_packs import SealedPacks
from sandkeeper.settings import Settings
from sandkeeper.store import BlobLocation, open_store
from sandkeeper.telemetry import Metrics
from sandkeeper.testing.providers import SimulatedProvider

PART = "encryption"
FILES = 1000
FILE_BYTES = 10_000
ROUNDS = 15


class PlainPacks(SealedPacks):
    """The same without encryption; only this benchmark writes such packs."""

    def __init__(self, deps: Deps, blobs: Blobs) -> None:
        super().__init__(deps, blobs)
        self._objects = blobs

    async def put(self, name: str, data: bytes) -> None:
        await self._objects.put(name, data)

    async def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return await self._objects.get_ranges(name, ranges)


def run(report: Report) -> None:
    asyncio.run(_measure(report))


async def _measure(report: Report) -> None:
    with folder_of_its_own() as folder:
        folder.mkdir(exist_ok=True)
        async with _open_deps(folder) as deps:
            blobs = open_blobs("", folder / "files")
            plain, sealed = PlainPacks(deps, blobs), SealedPacks(deps, blobs)
            times: dict[SealedPacks, tuple[list[float], list[float]]] = {
                plain: ([], []),
                sealed: ([], []),
            }
            for _ in range(ROUNDS):
                for packs, (kept_s, read_s) in times.items():
                    contents = [os.urandom(FILE_BYTES) for _ in range(FILES)]
                    began = time.process_time()
                    places = await _keep(deps, packs, contents)
                    kept_s.append(time.process_time() - began)
                    began = time.process_time()
                    await _read(packs, places)
                    read_s.append(time.process_time() - began)
    for position, verb in enumerate(("keeping", "reading")):
        name = f"{verb} {FILES} files of {FILE_BYTES // 1000} KB"
        floor = report.add_times(PART, f"floor: {name}, plain", times[plain][position])
        found = report.add_times(PART, f"{name}, encrypted", times[sealed][position])
        report.add(Row(PART, f"{name}, encrypted / plain", found / floor, "times"))


@asynccontextmanager
async def _open_deps(folder: Path) -> AsyncIterator[Deps]:
    provider = SimulatedProvider()
    async with open_store(f"sqlite:///{folder / 'bench.db'}") as store:
        store.database.keyring.hold({"00000000": bytes(32)}, current="00000000")
        yield Deps(
            settings=Settings(data=folder),
            store=store,
            providers=ProviderRegistry([provider]),
            metrics=Metrics(),
            clock=ProcessClock(),
            keeper_id=provider.keeper,
            replica="bench",
        )


async def _keep(deps: Deps, packs: SealedPacks, contents: Sequence[bytes]) -> list[BlobLocation]:
    writer = PackWriter(deps, packs)
    hashes = [hashlib.sha256(content).hexdigest() for content in contents]
    places = [writer.add(*one) for one in zip(hashes, contents, strict=True)]
    await writer.flush()
    return places


async def _read(packs: SealedPacks, places: Sequence[BlobLocation]) -> None:
    by_pack: dict[str, list[tuple[int, int]]] = {}
    for place in places:
        by_pack.setdefault(place.pack, []).append((place.start, place.size))
    for name, ranges in by_pack.items():
        await packs.get_ranges(name, ranges)
