"""What is kept stays whole: under many writers, in a bucket, past its retention, after damage."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from e2b import AsyncSandbox

from sandkeeper.background.checkpoint import Checkpoint, DueCaptures
from sandkeeper.domain.errors import (
    CaptureUnsupportedError,
    FilesUnavailableError,
    PayloadTooLargeError,
    SavedFileNotFoundError,
)
from sandkeeper.domain.files.manifest import ManifestEntry
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.states import State
from sandkeeper.services.files.capture import FileCapture
from sandkeeper.services.files.file_api import FileApi
from sandkeeper.services.files.folder_watches import FolderWatches
from sandkeeper.services.files.pack_writer import PackWriter
from sandkeeper.services.files.retention import FileRetention
from sandkeeper.services.files.versions import FileVersions
from support.deps import MovableClock
from support.eventually import eventually
from support.file_fixtures import HOME, Filing, digest, now
from support.s3_bucket import serving

OWNER = Owner.project("kept")
# The file with the number of the last work inside stays: it refuses older work.
FIND_OURS = "find / -name '*sandkeeper-*' ! -name '*sandkeeper-fence-*' 2>/dev/null || true"


@pytest.fixture
def bucket_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving() as bucket:
        monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield "s3://bucket/some/prefix"


def edit(filing: Filing, **limits: int) -> FileApi:
    settings = filing.deps.settings.model_copy(update=limits)
    return FileApi(replace(filing.deps, settings=settings), filing.versions, filing.files)


def make_retention(filing: Filing, *, days: float, **settings: int) -> FileRetention:
    """Retention as it runs that many days from now."""
    clock = MovableClock()
    clock.advance(days=days)
    chosen = filing.deps.settings.model_copy(update=settings)
    return FileRetention(replace(filing.deps, clock=clock, settings=chosen), filing.packs)


async def body(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def read(editing: FileApi, path: str, number: int | None = None) -> bytes:
    entry = await editing.find(OWNER, path, number)
    return b"".join([piece async for piece in editing.stream(entry)])


async def test_of_many_writers_at_once_none_is_lost(filing: Filing) -> None:
    editing = edit(filing)
    await asyncio.gather(*(editing.put(OWNER, f"f{n}", body(b"%d" % n)) for n in range(4)))
    assert [await read(editing, f"f{n}") for n in range(4)] == [b"%d" % n for n in range(4)]
    assert (await filing.versions.open(OWNER)).number == 4


async def test_a_file_beyond_the_limit_leaves_the_last_good_version(filing: Filing) -> None:
    editing = edit(filing, files_file_bytes_max=6 * 2**20)
    await editing.put(OWNER, "a", body(b"good"))
    for size in (2**20, 3):
        pieces = [b"x" * 2**20] * 5 + [b"y" * size, b"z" * 2**20]
        with pytest.raises(PayloadTooLargeError):
            await editing.put(OWNER, "a", body(*pieces))
    assert await read(editing, "a") == b"good"
    assert (await filing.versions.open(OWNER)).number == 1


async def test_any_bucket_keeps_small_and_large_alike(filing: Filing, bucket_url: str) -> None:
    there = Filing.over(filing.store, filing.provider, filing.folder, url=bucket_url)
    sandbox, native = await there.boot()
    await native.commands.run(
        f"cd {HOME} && echo small > small && : > empty && head -c 20000000 /dev/urandom > large"
    )
    captured = await there.files.capture(sandbox, native)
    assert (captured.files, captured.unreadable) == (3, ())
    await native.kill()
    again, native = await there.boot(sandbox)
    # Nothing of it is in this machine's memory.
    fresh = Filing.over(filing.store, filing.provider, filing.folder, url=bucket_url)
    assert (await fresh.files.restore(again, native)).lost == ()
    assert (await fresh.files.verify(again, native, everything=True)).is_whole
    retention = make_retention(there, days=99, files_versions_kept=1, retention_ended_s=1)
    await there.store.files.prune_versions(keep=1, abandoned_before=now())
    assert (await retention.prune()).packs == 0


async def test_an_edit_while_the_bucket_is_down_is_refused_and_the_last_version_stays(
    filing: Filing, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as bucket:
        monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        there = Filing.over(filing.store, filing.provider, filing.folder, url="s3://bucket/files")
        editing = edit(there)
        await editing.put(OWNER, "a", body(b"good"))
        bucket.is_down = True
        for size in (3, 5 * 2**20):
            with pytest.raises(FilesUnavailableError):
                await editing.put(OWNER, "a", body(b"x" * size))
        bucket.is_down = False
        assert await read(editing, "a") == b"good"
        assert (await there.versions.open(OWNER)).number == 1


async def test_the_same_content_is_kept_once_and_goes_with_its_last_use(filing: Filing) -> None:
    editing = edit(filing)
    content = os.urandom(100_000)
    for owner in (OWNER, Owner.project("another")):
        await editing.put(owner, "a", body(content))
    assert stored(filing.folder) < 150_000
    for number in range(5):
        await editing.put(OWNER, "b", body(b"%d" % number))
    await editing.delete(OWNER, "a")

    def later(days: float) -> FileRetention:
        return make_retention(
            filing, days=days, files_versions_kept=2, retention_ended_s=30 * 86400
        )

    assert (await later(2).prune()).versions == 5
    assert await read(editing, "b") == b"4"
    with pytest.raises(SavedFileNotFoundError):
        await editing.find(OWNER, "a", 1)
    assert stored(filing.folder) > 100_000
    await later(40).prune()
    assert stored(filing.folder) == 0
    assert (await filing.versions.open(OWNER)).version is None


def stored(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def test_a_damaged_content_is_named_and_the_rest_comes_back(filing: Filing) -> None:
    sandbox, native = await filing.boot()
    # Larger than a chunk, so that the other file is in another one.
    await native.commands.run(f"cd {HOME} && head -c 200000 /dev/urandom > a && echo two > b")
    await filing.files.capture(sandbox, native)
    manifest = (await filing.versions.open(sandbox.owner)).manifest
    assert manifest.entries["a"].offset == 0
    pack = next(path for path in filing.folder.rglob("*") if path.stem in manifest.packs)
    raw = bytearray(pack.read_bytes())
    raw[1000] ^= 1
    pack.write_bytes(bytes(raw))
    await native.commands.run(f"rm {HOME}/a {HOME}/b")
    restored = await filing.files.restore(sandbox, native)
    assert [one.path for one in restored.lost] == ["a"]
    assert (await native.commands.run(f"cat {HOME}/b")).stdout == "two\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="the host's programs are root's to take away")
async def test_a_sandbox_without_python_is_served_by_plain_tools(filing: Filing) -> None:
    missing = "rm -f /usr/bin/python3 /usr/local/bin/python3"
    sandbox, native = await filing.boot()
    await native.commands.run(missing, user="root")
    await native.commands.run(
        f"""cd {HOME} && mkdir -p src/deep empty node_modules && echo 1 > 'src/grüße $x' &&
        : > nothing && echo '#!/bin/sh' > run && chmod 750 run && ln -s run link &&
        echo no > node_modules/x && head -c 5000000 /dev/urandom > large && chmod 700 src/deep"""
    )
    first = await filing.files.capture(sandbox, native)
    assert (first.files, first.unreadable) == (5, ())
    await native.commands.run(f"cd {HOME} && echo 2 > run && rm -r node_modules")
    second = await filing.files.capture(sandbox, native)
    assert (second.version, second.travelled_bytes) == (2, 2)
    before = await digest(native)
    await native.kill()

    again, native = await filing.boot(sandbox)
    await native.commands.run(missing, user="root")
    assert (await filing.files.restore(again, native)).lost == ()
    assert await digest(native) == before
    await native.commands.run(f"rm {HOME}/run")
    found = await filing.files.verify(again, native, everything=True)
    assert (found.missing, found.hashed) == (("run",), 3)
    await filing.files.restore(again, native, paths=found.lost)
    assert (await filing.files.verify(again, native, everything=True)).is_whole


class LapsingLibrary(FileVersions):
    """Reads one batch of contents; then the bucket is down, while the script writes a file."""

    is_lapsed = False
    native: AsyncSandbox

    async def read(self, entries: Sequence[ManifestEntry]) -> dict[str, bytes]:
        if self.is_lapsed:
            half_written = f"{HOME}/.$(basename /tmp/.sandkeeper-*/ | cut -d- -f2).sandkeeper-part"
            await self.native.commands.run(f"touch {half_written}")
            raise FilesUnavailableError
        self.is_lapsed = True
        return await super().read(entries)


async def test_a_bucket_that_goes_down_half_way_leaves_nothing_of_ours_inside(
    filing: Filing,
) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(
        f"cd {HOME} && for i in 1 2 3 4 5 6; do head -c 3000000 /dev/urandom > $i; done"
    )
    await filing.files.capture(sandbox, native)
    await native.commands.run(f"rm {HOME}/*")
    lapsing = LapsingLibrary(filing.deps, filing.packs)
    lapsing.native = native
    working = FileCapture(filing.deps, lapsing)
    with pytest.raises(FilesUnavailableError):
        await working.restore(sandbox, native)
    look = f"pgrep -fc '^python3 -I' || true; {FIND_OURS}"

    async def is_clean() -> bool:
        return (await native.commands.run(look)).stdout == "0\n"

    await eventually(is_clean)
    assert (await filing.files.restore(sandbox, native)).lost == ()
    assert (await filing.files.verify(sandbox, native, everything=True)).is_whole


async def test_a_script_that_dies_half_way_is_an_error_and_leaves_nothing_of_ours(
    filing: Filing,
) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(
        f"cd {HOME} && for i in 1 2 3 4 5 6; do head -c 3000000 /dev/urandom > $i; done"
        " && head -c 5000000 /dev/urandom > large"
    )
    await filing.files.capture(sandbox, native)
    await native.commands.run(
        f"rm {HOME}/* && cd /usr/local/bin && echo '#!/bin/sh' > python3 && chmod 755 python3"
        " && echo 'read line; echo it fell over >&2; exit 3' >> python3",
        user="root",
    )
    with pytest.raises(CaptureUnsupportedError, match="it fell over"):
        await filing.files.restore(sandbox, native)
    await native.commands.run("rm /usr/local/bin/python3", user="root")
    left = await native.commands.run(FIND_OURS)
    assert left.stdout == ""
    assert (await filing.files.restore(sandbox, native)).lost == ()


async def test_a_sandbox_that_cannot_be_captured_is_still_paused(filing: Filing) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(f"cd {HOME} && touch a b c")
    few = Filing.over(filing.store, filing.provider, filing.folder, files_count_max=2)
    with pytest.raises(CaptureUnsupportedError, match="more than 2 files"):
        await few.files.capture(sandbox, native)
    await few.files.capture_before_pause(sandbox)


async def test_a_pause_waits_while_its_files_cannot_be_kept(
    filing: Filing, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(f"echo 1 > {HOME}/a")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "unknown")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    down = Filing.over(filing.store, filing.provider, filing.folder, url="s3://bucket/files")
    with pytest.raises(FilesUnavailableError):
        await down.files.capture_before_pause(sandbox)
    await native.kill()
    await filing.files.capture_before_pause(sandbox)


async def test_a_checkpoint_keeps_what_changed_and_brings_in_what_waits(filing: Filing) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(f"echo 1 > {HOME}/a")
    clock = MovableClock()
    settings = filing.deps.settings.model_copy(update={"files_checkpoint_s": 300})
    deps = replace(filing.deps, clock=clock, settings=settings)
    watches = FolderWatches(deps)
    checkpoint = Checkpoint(deps, DueCaptures(deps, filing.files, watches))
    assert dict((await checkpoint.run()).detail) == {"captured": 1}
    assert dict((await checkpoint.run()).detail) == {"fresh": 1}
    clock.advance(seconds=301)
    await native.commands.run("sleep 0.2")
    assert dict((await checkpoint.run()).detail) == {"unchanged": 1}

    record = await filing.store.sandboxes.get(sandbox.id)
    asleep = await filing.store.sandboxes.save(
        record.evolve(state=State.PAUSED), expect_version=record.version, now=now()
    )
    assert dict((await checkpoint.run()).detail) == {}
    edited = await edit(filing).put(sandbox.owner, "b", body(b"2"))
    assert not edited.is_inside
    await filing.store.sandboxes.save(
        asleep.evolve(state=State.RUNNING), expect_version=asleep.version, now=now()
    )
    await native.commands.run(f"echo 3 > {HOME}/c")
    clock.advance(seconds=301)
    assert dict((await checkpoint.run()).detail) == {"captured": 1}
    assert (await native.commands.run(f"cat {HOME}/a {HOME}/b {HOME}/c")).stdout == "1\n23\n"
    kept = (await filing.versions.open(sandbox.owner)).manifest
    assert [(one.path, one.is_pending) for one in kept.files] == [
        ("a", False),
        ("b", False),
        ("c", False),
    ]
    await watches.close()


async def test_a_version_is_as_old_as_the_look_and_an_edit_makes_it_no_younger(
    filing: Filing, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, native = await filing.boot()
    await native.files.write(f"{HOME}/a", "1")
    clock = MovableClock()
    deps = replace(filing.deps, clock=clock)
    versions = FileVersions(deps, filing.packs)
    files = FileCapture(deps, versions)
    pack = versions.pack

    def pack_slowly() -> PackWriter:
        clock.advance(seconds=60)
        return pack()

    monkeypatch.setattr(versions, "pack", pack_slowly)
    looked_at = clock()
    await files.capture(sandbox)
    version = await filing.store.files.find_latest(sandbox.owner)
    assert version is not None
    assert abs(version.seen_at - looked_at) < timedelta(seconds=30)
    clock.advance(seconds=60)
    await edit(filing).put(sandbox.owner, "b", body(b"2"))
    edited = await filing.store.files.find_latest(sandbox.owner)
    assert edited is not None
    assert (edited.number, edited.seen_at) == (version.number + 1, version.seen_at)
