"""The status cache over a plain table of records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from sandkeeper.api.status import cache
from sandkeeper.api.status.cache import REFRESH_BATCH, StatusCache
from sandkeeper.api.status.serializers import PresentationTable
from sandkeeper.domain.activity import Activity, ActivityClass, Touch
from sandkeeper.domain.errors import StoreUnavailableError
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from support.eventually import eventually

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = PresentationTable(poll_running_ms=5000, poll_starting_ms=1000, poll_waking_ms=500)


class Table:
    """Records in memory, and the queries that were made."""

    def __init__(self, *records: Sandbox) -> None:
        self.records = {record.owner: record for record in records}
        self.queries: list[list[Owner]] = []
        self.is_away = False

    async def find_by_owner(self, owner: Owner) -> Sandbox | None:
        found = await self.list_by_owner([owner])
        return found[0] if found else None

    async def list_by_owner(self, owners: Sequence[Owner]) -> list[Sandbox]:
        self.queries.append(list(owners))
        await asyncio.sleep(0)
        if self.is_away:
            raise StoreUnavailableError("away")
        return [self.records[owner] for owner in owners if owner in self.records]


def record(name: str = "shop", *, version: int = 1, state: State = State.RUNNING) -> Sandbox:
    return Sandbox(
        id=f"sandbox-{name}",
        owner=Owner.project(name),
        provider="e2b",
        created_at=NOW,
        updated_at=NOW,
        state_since=NOW,
        state=state,
        version=version,
    )


def make_cache(table: Table, *, entries_max: int = 1000) -> StatusCache:
    return StatusCache(sandboxes=table, words=WORDS, entries_max=entries_max, clock=lambda: NOW)


async def test_concurrent_first_reads_share_one_query() -> None:
    table = Table(record())
    statuses = make_cache(table)
    found = await asyncio.gather(*[statuses.get(Owner.project("shop")) for _ in range(50)])
    assert {entry and entry.sandbox.id for entry in found} == {"sandbox-shop"}
    assert len(table.queries) == 1


async def test_a_cancelled_reader_does_not_fail_the_others() -> None:
    statuses = make_cache(Table(record()))
    one, other = (asyncio.create_task(statuses.get(Owner.project("shop"))) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    assert (await other) is not None


async def test_an_unknown_owner_has_no_entry_and_is_queried_each_time() -> None:
    table = Table()
    statuses = make_cache(table)
    for _ in range(2):
        assert await statuses.get(Owner.project("none")) is None
    assert len(table.queries) == 2


async def test_the_least_recently_read_entry_is_evicted() -> None:
    statuses = make_cache(Table(), entries_max=2)
    for name in ("one", "two"):
        statuses.put(record(name))
    assert statuses.peek(Owner.project("one")) is not None
    statuses.put(record("three"))
    present = [name for name in ("one", "two", "three") if statuses.peek(Owner.project(name))]
    assert present == ["one", "three"]


async def test_an_older_version_never_replaces_a_newer_one() -> None:
    statuses = make_cache(Table())
    statuses.put(record(version=3, state=State.PAUSED))
    kept = statuses.put(record(version=2))
    assert (kept.sandbox.version, kept.sandbox.state) == (3, State.PAUSED)
    assert statuses.put(record(version=4)).etag == b'"v4"'


async def test_a_new_sandbox_of_the_owner_replaces_one_with_a_greater_version() -> None:
    statuses = make_cache(Table())
    statuses.put(record(version=9))
    assert statuses.put(record(version=1).evolve(id="another")).sandbox.id == "another"


async def test_a_sandbox_that_changes_its_owner_leaves_no_entry_behind() -> None:
    statuses = make_cache(Table())
    statuses.put(record())
    statuses.put(record(version=2).evolve(owner=Owner.project("new")))
    assert statuses.peek(Owner.project("shop")) is None
    assert statuses.peek(Owner.project("new")) is not None


async def test_activity_is_shown_and_changes_the_etag_but_not_the_version() -> None:
    statuses = make_cache(Table())
    before = statuses.put(record())
    active = Activity(at=NOW + timedelta(seconds=5), kind=ActivityClass.INTENT, source="test")
    after = statuses.touch(Touch("sandbox-shop", active=active, passive=None))
    assert after is not None
    assert after.sandbox.activity.last_active_at == NOW + timedelta(seconds=5)
    assert (after.sandbox.version, after.loaded_at) == (1, before.loaded_at)
    assert after.etag != before.etag
    assert statuses.touch(Touch("unknown", active=active, passive=None)) is None


async def test_old_entries_are_refreshed_in_batches_behind_their_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache, "REFRESH_AFTER_S", -1.0)
    names = [f"project-{number}" for number in range(REFRESH_BATCH + 10)]
    table = Table(*[record(name, version=2) for name in names])
    statuses = make_cache(table)
    for name in names:
        statuses.put(record(name))
    for name in names:
        entry = statuses.peek(Owner.project(name))
        assert entry is not None
        assert entry.sandbox.version == 1
    await eventually(lambda: sum(map(len, table.queries)) == len(names))
    assert [len(owners) for owners in table.queries] == [REFRESH_BATCH, 10]
    monkeypatch.setattr(cache, "REFRESH_AFTER_S", 1000.0)
    await eventually(
        lambda: all(
            (entry := statuses.peek(Owner.project(name))) and entry.sandbox.version == 2
            for name in names
        )
    )


async def test_a_refresh_removes_what_the_database_no_longer_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache, "REFRESH_AFTER_S", -1.0)
    statuses = make_cache(Table())
    statuses.put(record())
    statuses.peek(Owner.project("shop"))
    await eventually(lambda: statuses.peek(Owner.project("shop")) is None)


async def test_a_very_old_entry_waits_for_the_database_unless_it_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache, "RELOAD_AFTER_S", -1.0)
    table = Table(record(version=2))
    statuses = make_cache(table)
    statuses.put(record(version=1))
    table.is_away = True
    old = await statuses.get(Owner.project("shop"))
    table.is_away = False
    new = await statuses.get(Owner.project("shop"))
    assert (old and old.sandbox.version, new and new.sandbox.version) == (1, 2)
