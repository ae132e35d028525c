"""Packs on a disk and in a bucket: encrypted, read in pieces, re-encrypted while they are read."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from sandkeeper.domain.errors import FilesDamagedError
from sandkeeper.encryption.packs import CHUNK_BYTES, HEADER_BYTES, STORED_BYTES
from sandkeeper.services.deps import Deps
from sandkeeper.services.encryption.reencryption import Reencryption
from sandkeeper.services.files.blobs import Blobs, open_blobs
from sandkeeper.services.files.sealed_packs import SUFFIX, SealedPacks
from sandkeeper.store import open_store
from sandkeeper.testing.providers import SimulatedProvider
from support import s3_bucket
from support.deps import make_deps

NAME = "ab" * 16


@pytest.fixture(params=["folder", "bucket"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Where packs are stored: the URL of a folder, or of a bucket."""
    if request.param == "folder":
        yield (tmp_path / "packs").as_uri()
        return
    with s3_bucket.serving() as bucket:
        for name, value in bucket.variables.items():
            monkeypatch.setenv(name, value)
        yield "s3://kept/here"


@pytest.fixture
async def deps(sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Deps]:
    path = tmp_path / "packs.db"
    path.write_bytes(sqlite_template.read_bytes())
    async with open_store(f"sqlite:///{path}", migrate=False) as store:
        data = tmp_path / "data"
        data.mkdir()
        yield make_deps(store, SimulatedProvider(), data=data)


@pytest.fixture
def blobs(place: str, tmp_path: Path) -> Blobs:
    return open_blobs(place, tmp_path)


@pytest.fixture
def packs(deps: Deps, blobs: Blobs) -> SealedPacks:
    return SealedPacks(deps, blobs)


async def pieces(data: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def record(deps: Deps, name: str, data_key: str | None = "00000000") -> None:
    """Write the row of a pack in use."""
    await deps.store.files.add_packs([(name, 0)], data_key=data_key or "", now=deps.clock())
    async with deps.store.database.writing() as connection:
        await connection.execute(
            text("UPDATE file_packs SET state = 'live', data_key = :key WHERE id = :id"),
            {"key": data_key, "id": name},
        )


async def test_a_pack_is_encrypted_and_read_in_pieces(packs: SealedPacks, blobs: Blobs) -> None:
    content = os.urandom(5 * CHUNK_BYTES) + b"the end, in plain words"
    await packs.put(NAME, content)
    stored = b"".join([piece async for piece in blobs.read(NAME + SUFFIX)])
    assert b"plain words" not in stored
    assert await packs.get(NAME) == content
    ranges = [
        (len(content) - 11, 11),
        (0, 1),
        (CHUNK_BYTES - 1, 2),
        (10, 3 * CHUNK_BYTES),
        (0, len(content)),
        (4 * CHUNK_BYTES, 0),
    ]
    found = await packs.get_ranges(NAME, ranges)
    assert found == [content[start : start + size] for start, size in ranges]
    with pytest.raises(FilesDamagedError):
        await packs.get_ranges(NAME, [(len(content) - 1, 2)])


async def test_a_large_pack_streams_both_ways(packs: SealedPacks) -> None:
    content = os.urandom(9 * 1024 * 1024 + 5)
    await packs.put_stream(NAME, pieces(content))
    assert await packs.get(NAME) == content
    start, size = 3_000_000, 5_000_000
    found = b"".join([piece async for piece in packs.stream(NAME, start, size)])
    assert found == content[start : start + size]


async def test_an_empty_pack_is_a_pack(packs: SealedPacks) -> None:
    await packs.put_stream(NAME, pieces(b""))
    assert await packs.get(NAME) == b""


async def test_packs_that_were_changed_cut_off_or_exchanged_are_damaged(
    deps: Deps, packs: SealedPacks, blobs: Blobs
) -> None:
    other = "cd" * 16
    await packs.put(NAME, b"x" * (2 * CHUNK_BYTES))
    await packs.put(other, b"y" * (2 * CHUNK_BYTES))
    stored = b"".join([piece async for piece in blobs.read(NAME + SUFFIX)])
    exchanged = b"".join([piece async for piece in blobs.read(other + SUFFIX)])
    flipped = stored[:100] + bytes([stored[100] ^ 1]) + stored[101:]
    for changed in (
        flipped,
        stored[: HEADER_BYTES + STORED_BYTES],
        stored[:HEADER_BYTES],
        stored[:10],
        exchanged,
    ):
        await blobs.put(NAME + SUFFIX, changed)
        with pytest.raises(FilesDamagedError):
            await SealedPacks(deps, blobs).get(NAME)
        with pytest.raises(FilesDamagedError):
            await packs.get_ranges(NAME, [(5, 5)])


async def test_a_plain_object_does_not_take_the_place_of_an_encrypted_pack(
    deps: Deps, packs: SealedPacks, blobs: Blobs
) -> None:
    await record(deps, NAME)
    await blobs.put(NAME, b"forged")
    with pytest.raises(FilesDamagedError):
        await packs.get(NAME)
    with pytest.raises(FilesDamagedError):
        await packs.get_ranges(NAME, [(0, 6)])


async def test_plain_packs_of_an_older_version_are_read_and_then_encrypted(
    deps: Deps, packs: SealedPacks, blobs: Blobs
) -> None:
    contents = {f"{number:02x}" * 16: os.urandom(70_000 + number) for number in range(11)}
    for name, content in contents.items():
        await record(deps, name, None)
        await blobs.put(name, content)
        assert await packs.get(name) == content
        assert await packs.get_ranges(name, [(5, 60_000)]) == [content[5:60_005]]
    missing = "ff" * 16
    await record(deps, missing, None)
    reencryption = Reencryption(deps, packs)
    runs = [await reencryption.run() for _ in range(3)]
    assert sum(run.packs for run in runs) == len(contents)
    assert max(run.packs for run in runs) <= 8
    assert sum(run.damaged for run in runs) >= 1
    for name, content in contents.items():
        assert not await deps.store.files.is_plain(name)
        with pytest.raises(FilesDamagedError):
            await blobs.get_head(name, 1)
        assert await packs.get(name) == content
    assert await deps.store.files.is_plain(missing)


async def test_a_reader_gets_the_content_while_the_pack_is_re_encrypted(
    deps: Deps, packs: SealedPacks, blobs: Blobs
) -> None:
    content = os.urandom(6 * 1024 * 1024)
    await packs.put(NAME, content)
    reader = SealedPacks(deps, blobs)
    for number in range(5):
        found = b""
        is_rewritten = False
        async for piece in reader.stream(NAME, 7, len(content) - 7):
            found += piece
            if not is_rewritten:
                key_id = f"key-{number:04d}"
                deps.store.database.keyring.hold({key_id: os.urandom(32)}, current=key_id)
                await packs.put_stream(NAME, packs.read(NAME))
                is_rewritten = True
        assert found == content[7:]
