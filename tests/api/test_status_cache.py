"""What the status cache shows is never older than what it has shown."""

from __future__ import annotations

from collections.abc import Sequence

from sandkeeper.api.status.cache import StatusCache
from sandkeeper.api.status.serializers import PresentationTable
from sandkeeper.domain.activity import Activity, ActivityClass, Touch
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from support.records import T0, at, record


class NoDatabase:
    """These tests put every record in themselves."""

    async def find_by_owner(self, owner: Owner) -> Sandbox | None:
        raise NotImplementedError

    async def list_by_owner(self, owners: Sequence[Owner]) -> Sequence[Sandbox]:
        raise NotImplementedError


def make_cache() -> StatusCache:
    words = PresentationTable(poll_running_ms=1, poll_starting_ms=1, poll_waking_ms=1)
    return StatusCache(sandboxes=NoDatabase(), words=words, entries_max=10, clock=lambda: T0)


def test_a_version_that_was_read_before_an_act_does_not_hide_the_act() -> None:
    cache = make_cache()
    first = record(version=4, last_active_at=at(1), last_active_source="tab")
    cache.put(first)
    cache.touch(Touch(first.id, Activity(at(9), ActivityClass.INTENT, "wake"), None))
    shown = cache.put(first.evolve(version=5, ready=True)).sandbox
    assert (shown.version, shown.run.ready) == (5, True)
    assert (shown.activity.last_active_at, shown.activity.last_active_source) == (at(9), "wake")


def test_an_older_version_or_an_older_act_changes_nothing() -> None:
    cache = make_cache()
    newest = cache.put(record(version=5, last_active_at=at(9)))
    assert cache.put(record(version=4, last_active_at=at(10))) is newest
    assert cache.put(record(version=5, last_active_at=at(8))) is newest


def test_another_sandbox_of_the_owner_inherits_no_activity() -> None:
    cache = make_cache()
    cache.put(record(version=5, last_active_at=at(9)))
    replaced = record(id="sb-2", version=1, last_active_at=None)
    assert cache.put(replaced).sandbox == replaced
