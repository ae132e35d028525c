"""The status cache over a plain table of records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sandkeeper.api.status.cache import StatusCache
from sandkeeper.api.status.serializers import PresentationTable
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Claim, ClaimKind, Sandbox
from sandkeeper.domain.states import State
from support.eventually import eventually

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = PresentationTable(poll_running_ms=5000, poll_starting_ms=1000, poll_waking_ms=500)


class Table:
    """Records in memory, and the queries that were made."""

    def __init__(self, *records: Sandbox) -> None:
        self.records = {record.owner: record for record in records}
        self.queries: list[list[str]] = []

    async def find_by_owner(self, owner: Owner) -> Sandbox | None:
        self.queries.append([str(owner)])
        found = self.records.get(owner)
        await asyncio.sleep(0)
        return found

    async def list_by_id(self, sandbox_ids: Sequence[str]) -> list[Sandbox]:
        self.queries.append(list(sandbox_ids))
        await asyncio.sleep(0)
        return [one for one in self.records.values() if one.id in sandbox_ids]


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


async def test_activity_and_checks_change_the_etag_but_not_the_version() -> None:
    statuses = make_cache(Table())
    later = NOW + timedelta(seconds=5)
    entries = [
        statuses.put(record()),
        statuses.put(record().evolve(last_active_at=later)),
        statuses.put(record().evolve(last_active_at=later, observed_at=NOW + timedelta(seconds=9))),
    ]
    assert len({entry.etag for entry in entries}) == 3
    assert [entry.sandbox.version for entry in entries] == [1, 1, 1]


async def test_a_record_read_before_newer_activity_changes_nothing() -> None:
    statuses = make_cache(Table())
    newest = statuses.put(record(version=5).evolve(last_active_at=NOW + timedelta(seconds=9)))
    assert statuses.put(record(version=4)) is newest
    assert statuses.put(record(version=5)) is newest


async def test_what_was_written_is_loaded_again_and_reported_once() -> None:
    table = Table(record(version=2))
    statuses = make_cache(table)
    statuses.put(record())
    changed = await statuses.refresh(["sandbox-shop", "sandbox-unread"])
    assert [entry.sandbox.version for entry in changed] == [2]
    assert table.queries == [["sandbox-shop"]]
    assert await statuses.refresh(["sandbox-shop"]) == []


async def test_what_was_put_here_is_still_reported_to_streams() -> None:
    statuses = make_cache(Table(record(version=2)))
    statuses.put(record(version=2))
    assert len(await statuses.refresh(["sandbox-shop"])) == 1


async def test_what_the_database_no_longer_has_is_removed() -> None:
    statuses = make_cache(Table())
    statuses.put(record())
    await statuses.refresh(["sandbox-shop"])
    assert statuses.peek(Owner.project("shop")) is None


async def test_a_load_that_a_write_overtakes_is_repeated() -> None:
    table = Table(record())
    statuses = make_cache(table)
    reading = asyncio.create_task(statuses.get(Owner.project("shop")))
    await asyncio.sleep(0)
    table.records[Owner.project("shop")] = record(version=2)
    await statuses.refresh(["sandbox-shop"])
    entry = await reading
    assert entry is not None
    assert entry.sandbox.version == 2


async def test_a_wake_whose_claim_ran_out_is_no_longer_shown_as_one() -> None:
    now = NOW
    statuses = StatusCache(sandboxes=Table(), words=WORDS, entries_max=9, clock=lambda: now)
    claim = Claim(ClaimKind.WAKE, "someone", until=NOW + timedelta(microseconds=1))
    shown = statuses.put(record(state=State.PAUSED).evolve(claim=claim))
    assert b'"waking":{' in shown.body
    now = NOW + timedelta(seconds=1)
    await eventually(lambda: b'"waking":null' in statuses.peek(shown.sandbox.owner).body)  # type: ignore[union-attr]
