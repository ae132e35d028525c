"""Activity is folded in memory, and nothing of it is lost while the database is away."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from sandkeeper.domain.activity import ActivityClass, Touch
from sandkeeper.domain.errors import StoreUnavailableError
from sandkeeper.services.activity.buffer import ActivityBuffer

NOON = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


class Flaky:
    """Refuses to write while it is away, and keeps what it was given otherwise."""

    def __init__(self) -> None:
        self.away = False
        self.written: list[Touch] = []

    async def touch(self, touches: Sequence[Touch]) -> int:
        if self.away:
            raise StoreUnavailableError
        self.written.extend(touches)
        return len(touches)


async def test_a_thousand_touches_of_one_sandbox_are_written_as_one() -> None:
    store = Flaky()
    activities = ActivityBuffer(sandboxes=store, clock=lambda: NOON)
    for second in range(1000):
        activities.record(
            "sb-1",
            kind=ActivityClass.INTENT,
            source="tab",
            at=NOON - timedelta(seconds=second),
        )
        activities.record("sb-1", kind=ActivityClass.PASSIVE, source="poll")
    assert activities.waiting == 1
    assert await activities.flush() == 1
    [touch] = store.written
    assert touch.active is not None
    assert touch.active.at == NOON
    assert touch.passive is not None
    assert touch.passive.count == 1000
    assert await activities.flush() == 0


async def test_a_time_in_the_future_counts_as_now() -> None:
    activities = ActivityBuffer(sandboxes=Flaky(), clock=lambda: NOON)
    activities.record("sb-1", kind=ActivityClass.WORK, source="exec", at=NOON + timedelta(days=1))
    assert activities.find_active_at("sb-1") == NOON


async def test_looking_is_no_activity() -> None:
    activities = ActivityBuffer(sandboxes=Flaky(), clock=lambda: NOON)
    activities.record("sb-1", kind=ActivityClass.PASSIVE, source="poll")
    assert activities.find_active_at("sb-1") is None


async def test_sandboxes_that_were_only_looked_at_may_wait_for_a_later_flush() -> None:
    store = Flaky()
    activities = ActivityBuffer(sandboxes=store, clock=lambda: NOON)
    activities.record("watched", kind=ActivityClass.PASSIVE, source="poll")
    activities.record("used", kind=ActivityClass.PASSIVE, source="poll")
    activities.record("used", kind=ActivityClass.INTENT, source="tab")
    assert await activities.flush(passive=False) == 1
    assert [touch.sandbox_id for touch in store.written] == ["used"]
    activities.record("watched", kind=ActivityClass.PASSIVE, source="poll")
    assert await activities.flush() == 1
    assert store.written[-1].passive is not None
    assert store.written[-1].passive.count == 2


async def test_what_could_not_be_written_waits_and_folds_with_what_came_since() -> None:
    store = Flaky()
    now = [NOON]
    activities = ActivityBuffer(sandboxes=store, clock=lambda: now[0])
    activities.record("sb-1", kind=ActivityClass.PASSIVE, source="poll")
    activities.record("sb-1", kind=ActivityClass.INTENT, source="tab")
    store.away = True
    with pytest.raises(StoreUnavailableError):
        await activities.flush()
    assert activities.find_active_at("sb-1") == NOON
    now[0] = NOON + timedelta(seconds=5)
    activities.record("sb-1", kind=ActivityClass.PASSIVE, source="poll")
    store.away = False
    await activities.flush()
    [touch] = store.written
    assert touch.active is not None
    assert touch.active.at == NOON
    assert touch.passive is not None
    assert touch.passive.count == 2
    assert activities.waiting == 0
