"""Versions of kept files and the packs they need, on both databases."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from sandkeeper.domain.errors import (
    CheckpointExistsError,
    CheckpointLimitError,
    SavedFileNotFoundError,
    VersionConflictError,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.store import BlobLocation, FileCheckpoint, FileVersion, Store
from sandkeeper.store.file_checkpoints import CHECKPOINTS_MAX

T0 = datetime(2026, 1, 2, tzinfo=UTC)
OWNER = Owner.project("p")


def at(hours: float) -> datetime:
    return T0 + timedelta(hours=hours)


def version(number: int, *, owner: Owner = OWNER, manifest: str = "") -> FileVersion:
    name = manifest or f"m{number}"
    return FileVersion(owner, number, name, f"tree{number}", 1, 5, "capture", T0, T0)


async def commit(store: Store, number: int, *packs: str, owner: Owner = OWNER) -> FileVersion:
    """A version with its list `m<number>` and these packs, which are new or known."""
    made = version(number, owner=owner, manifest=f"{owner.id}-m{number}")
    await store.files.add_packs([(made.manifest, 1)], data_key="k", now=T0)
    await store.files.commit(made, packs=[made.manifest, *packs], blobs=[], now=T0)
    return made


async def test_of_two_next_versions_one_is_in_force(store: Store) -> None:
    await commit(store, 1)
    names = [f"n{number}" for number in range(8)]
    await store.files.add_packs([(name, 1) for name in names], data_key="k", now=T0)

    async def attempt(name: str) -> str | None:
        try:
            await store.files.commit(version(2, manifest=name), packs=[name], blobs=[], now=T0)
        except VersionConflictError:
            return None
        return name

    won = [name for name in await asyncio.gather(*map(attempt, names)) if name]
    assert len(won) == 1
    latest = await store.files.find_latest(OWNER)
    assert latest is not None
    assert (latest.number, latest.manifest) == (2, won[0])
    assert [one.number for one in await store.files.list_versions(OWNER)] == [2, 1]
    with pytest.raises(VersionConflictError):
        await store.files.commit(version(9), packs=[], blobs=[], now=T0)


async def test_content_is_found_by_its_hash_and_kept_once(store: Store) -> None:
    await store.files.add_packs([("one", 9), ("two", 9)], data_key="k", now=T0)
    first = [BlobLocation(f"h{number}", "one", number, 1) for number in range(1200)]
    await store.files.commit(version(1), packs=["one"], blobs=first, now=T0)
    again = [BlobLocation("h7", "two", 0, 1), BlobLocation("new", "two", 1, 1)]
    await store.files.commit(version(2), packs=["one", "two"], blobs=again, now=T0)
    found = await store.files.find_locations(
        [f"h{number}" for number in range(1200)] + ["new", "no"]
    )
    assert len(found) == 1201
    assert found["h7"] == BlobLocation("h7", "one", 7, 1)


async def test_a_list_is_replaced_only_under_the_version_in_force(store: Store) -> None:
    first = await commit(store, 1)
    await store.files.add_packs([("other", 1)], data_key="k", now=T0)
    await store.files.replace_manifest(first, "other", packs=["other"], seen_at=at(1), now=at(1))
    latest = await store.files.find_latest(OWNER)
    assert latest is not None
    assert (latest.manifest, latest.seen_at) == ("other", at(1))
    with pytest.raises(VersionConflictError):
        await store.files.replace_manifest(
            first, "other", packs=["other"], seen_at=at(1), now=at(1)
        )
    await commit(store, 2)
    with pytest.raises(VersionConflictError):
        await store.files.replace_manifest(latest, "third", packs=[], seen_at=at(1), now=at(1))


async def test_retention_keeps_the_newest_and_drops_what_nothing_needs(store: Store) -> None:
    made = Sandbox(
        id="sb", owner=OWNER, provider="e2b", created_at=T0, updated_at=T0, state_since=T0
    )
    await store.sandboxes.insert(made)
    await store.files.add_packs(
        [("shared", 1), ("old", 1), ("unfinished", 1)], data_key="k", now=T0
    )
    await commit(store, 1, "shared", "old")
    for number in (2, 3, 4):
        await commit(store, number, "shared")
    lost = Owner.project("left")
    await commit(store, 1, owner=lost)

    async def prune(now: datetime) -> list[str]:
        await store.files.prune_versions(keep=3, abandoned_before=now - timedelta(days=30))
        return await store.files.mark_packs_unused(
            unused_before=now - timedelta(hours=1),
            unfinished_before=now - timedelta(days=1),
            now=now,
        )

    # What a commit under way may count on is left alone.
    assert await prune(at(0.5)) == []
    assert [one.number for one in await store.files.list_versions(OWNER)] == [4, 3, 2]
    assert sorted(await prune(at(2))) == ["old", "p-m1"]
    await store.files.delete_packs(["p-m1"])
    # One whose object could not be deleted is named again, and takes part in nothing new.
    assert await prune(at(2)) == ["old"]
    with pytest.raises(VersionConflictError):
        await store.files.commit(version(5), packs=["old"], blobs=[], now=at(2))
    assert sorted(await prune(at(30))) == ["old", "unfinished"]
    await prune(at(24 * 40))
    assert await store.files.list_versions(lost) == []
    assert len(await store.files.list_versions(OWNER)) == 3


def checkpoint(name: str, number: int, *, owner: Owner = OWNER) -> FileCheckpoint:
    return FileCheckpoint(owner, name, number, T0, "ada")


async def test_a_version_with_a_name_is_not_pruned_until_its_last_name_is_removed(
    store: Store,
) -> None:
    await store.files.add_packs([("first", 1), ("second", 1)], data_key="k", now=T0)
    await commit(store, 1, "first")
    await commit(store, 2, "second")
    for number in (3, 4):
        await commit(store, number)
    for name in ("before the move", "also this"):
        await store.checkpoints.add(checkpoint(name, 1))

    async def prune() -> list[str]:
        # No sandbox has this name any more, and nothing was saved for long.
        now = at(24 * 400)
        await store.files.prune_versions(keep=1, abandoned_before=now)
        dying = await store.files.mark_packs_unused(
            unused_before=now, unfinished_before=now, now=now
        )
        await store.files.delete_packs(dying)
        return sorted(dying)

    assert await prune() == ["p-m2", "p-m3", "second"]
    assert [one.number for one in await store.files.list_versions(OWNER)] == [4, 1]
    await store.checkpoints.remove(OWNER, "also this")
    assert await prune() == []
    await store.checkpoints.remove(OWNER, "before the move")
    assert await prune() == ["first", "p-m1", "p-m4"]
    with pytest.raises(SavedFileNotFoundError):
        await store.checkpoints.add(checkpoint("too late", 1))


async def test_a_name_is_of_one_version_and_a_version_has_many_names_up_to_the_limit(
    store: Store,
) -> None:
    await commit(store, 1)
    await commit(store, 2)
    first = await store.checkpoints.add(checkpoint("a", 1))
    assert await store.checkpoints.add(checkpoint("a", 1)) == first
    with pytest.raises(CheckpointExistsError):
        await store.checkpoints.add(checkpoint("a", 2))
    for number in range(CHECKPOINTS_MAX - 1):
        await store.checkpoints.add(checkpoint(f"n{number}", 2))
    with pytest.raises(CheckpointLimitError):
        await store.checkpoints.add(checkpoint("one more", 2))
    assert len(await store.checkpoints.list(OWNER)) == CHECKPOINTS_MAX
    assert await store.checkpoints.remove(OWNER, "a")
    assert not await store.checkpoints.remove(OWNER, "a")


async def test_a_version_that_is_named_while_it_is_pruned_is_either_kept_or_refused(
    store: Store,
) -> None:
    owners = [Owner.project(f"racing-{number}") for number in range(12)]
    for owner in owners:
        await commit(store, 1, owner=owner)
        await commit(store, 2, owner=owner)

    async def name(owner: Owner) -> bool:
        try:
            await store.checkpoints.add(checkpoint("kept", 1, owner=owner))
        except SavedFileNotFoundError:
            return False
        return True

    pruning = asyncio.create_task(store.files.prune_versions(keep=1, abandoned_before=T0))
    named = await asyncio.gather(*map(name, owners))
    await pruning
    for owner, is_named in zip(owners, named, strict=True):
        assert (await store.files.find(owner, 1) is not None) is is_named
