"""One wrong event costs nothing: the provider's list and its answers correct the record."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandkeeper.domain.events import StateChanged
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers.base import EventKind, LifecycleEvent
from sandkeeper.testing.providers import MisbehavingProvider
from support.observing_keeper import ObservingKeeper

FAR = datetime(2999, 1, 1, tzinfo=UTC)
LATER = timedelta(seconds=90)


def wrong(sandbox: Sandbox, kind: EventKind, at: datetime | None = None) -> LifecycleEvent:
    """An event that tells what did not happen."""
    return LifecycleEvent(
        event_id=str(uuid.uuid4()),
        kind=kind,
        instance_id=sandbox.instance_id or "",
        run_id=None,
        at=at or datetime.now(UTC),
        kill_reason="request" if kind is EventKind.KILLED else None,
    )


def count_ahead(keeper: ObservingKeeper, source: str) -> float:
    labels = {"source": source}
    return keeper.metrics.registry.get_sample_value("sandkeeper_events_ahead_total", labels) or 0.0


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_record_that_a_wrong_event_ended_comes_back_with_the_next_reconcile(
    keeper: ObservingKeeper, is_paused: bool
) -> None:
    sandbox = await keeper.launch()
    if is_paused:
        await keeper.recorded(await keeper.provider.pause(sandbox.instance_id or ""))
    before = await keeper.read(sandbox)
    assert await keeper.deliver(wrong(sandbox, EventKind.KILLED)) == "changed"
    assert (await keeper.read(sandbox)).state is State.KILLED

    dry = (await keeper.reconciliation.run(dry_run=True))[0]
    assert [(one.kind, one.ours) for one in dry.corrections] == [("state", "KILLED")]
    assert (await keeper.read(sandbox)).state is State.KILLED
    report = (await keeper.reconciliation.run())[0]
    assert (report.counts["state"], report.counts["leak"], report.counts["unowned"]) == (1, 0, 0)
    after = await keeper.read(sandbox)
    assert (after.state, after.instance_id) == (before.state, before.instance_id)
    assert (after.last_end.killed_at, after.last_end.killed_reason) == (None, None)
    log = await keeper.store.events.after(0, limit=100)
    last = [one for one in log if one.type == StateChanged.type][-1]
    assert "contradicts its end" in last.reason

    for passes in range(1, 4):
        keeper.clock.ahead = passes * LATER
        assert (await keeper.reconciliation.run())[0].corrections == []
    assert list(keeper.provider.instances) == [sandbox.instance_id]
    assert await keeper.store.leaks.list(since=sandbox.created_at) == []


async def test_a_verification_takes_a_wrong_end_back(keeper: ObservingKeeper) -> None:
    sandbox = await keeper.launch()
    await keeper.deliver(wrong(sandbox, EventKind.KILLED))
    assert (await keeper.verification.verify(sandbox.id)).state is State.RUNNING
    await keeper.provider.pause(sandbox.instance_id or "")
    assert await keeper.deliver(keeper.provider.events[-1]) == "changed"
    assert (await keeper.read(sandbox)).state is State.PAUSED
    keeper.provider.end(sandbox.instance_id or "", reason="timeout")
    assert await keeper.deliver(keeper.provider.events[-1]) == "changed"
    assert (await keeper.verification.verify(sandbox.id)).state is State.EXPIRED


@pytest.mark.parametrize("kind", [EventKind.RESUMED, EventKind.PAUSED, EventKind.KILLED])
@pytest.mark.parametrize("way", ["verify", "reconcile"])
async def test_an_event_of_the_year_2999_is_bounded_counted_and_corrected(
    keeper: ObservingKeeper, kind: EventKind, way: str
) -> None:
    sandbox = await keeper.launch()
    assert await keeper.deliver(wrong(sandbox, kind, FAR)) == "changed"
    assert count_ahead(keeper, "webhook") == 1
    [delivery] = await keeper.store.deliveries.latest()
    assert "2999" in delivery.detail
    assert delivery.event_at is not None
    assert delivery.event_at < FAR
    told = await keeper.read(sandbox)
    assert max(told.state_since, told.sightings.last_event_at or told.state_since) <= keeper.clock()
    if way == "verify":
        await keeper.verification.verify(sandbox.id)
    else:
        await keeper.reconciliation.run()
    assert (await keeper.read(sandbox)).state is State.RUNNING
    await keeper.provider.pause(sandbox.instance_id or "")
    await keeper.deliver(keeper.provider.events[-1])
    assert (await keeper.read(sandbox)).state is State.PAUSED


@pytest.mark.parametrize("state", [State.RUNNING, State.PAUSED, State.KILLED])
@pytest.mark.parametrize("way", ["verify", "reconcile"])
async def test_dates_of_the_future_that_are_stored_already_heal(
    keeper: ObservingKeeper, state: State, way: str
) -> None:
    sandbox = await keeper.launch()
    stored = sandbox.evolve(
        state=state,
        state_since=FAR,
        run_started_at=FAR if state is State.RUNNING else None,
        observed_at=FAR,
        state_as_of=FAR,
        state_received_at=None,
        acted_at=None,
        last_event_at=FAR,
    )
    await keeper.store.sandboxes.save(stored, expect_version=sandbox.version, now=keeper.clock())
    if way == "verify":
        await keeper.verification.verify(sandbox.id)
    else:
        await keeper.reconciliation.run()
    healed = await keeper.read(sandbox)
    assert healed.state is State.RUNNING
    times = (
        healed.state_since,
        healed.run.run_started_at,
        healed.sightings.state_as_of,
        healed.as_of,
    )
    assert all(one is not None and one <= keeper.clock() for one in times)
    await keeper.provider.pause(sandbox.instance_id or "")
    await keeper.deliver(keeper.provider.events[-1])
    assert (await keeper.read(sandbox)).state is State.PAUSED


async def test_an_event_of_the_future_in_the_log_does_not_stop_the_reading_of_it(
    keeper: ObservingKeeper,
) -> None:
    sandbox = await keeper.launch()
    keeper.provider.events.append(wrong(sandbox, EventKind.RESUMED, FAR))
    await keeper.event_polling.run()
    assert count_ahead(keeper, "catch_up") == 1
    await keeper.provider.pause(sandbox.instance_id or "")
    await keeper.event_polling.run()
    assert (await keeper.read(sandbox)).state is State.PAUSED


async def test_a_bookmark_of_the_future_heals(keeper: ObservingKeeper) -> None:
    sandbox = await keeper.launch()
    name = f"catch_up.{keeper.provider.name}.{keeper.provider.region}"
    await keeper.store.key_values.put(name, FAR.isoformat(), now=keeper.clock())
    await keeper.provider.pause(sandbox.instance_id or "")
    await keeper.event_polling.run()
    assert (await keeper.read(sandbox)).state is State.PAUSED
    text = await keeper.store.key_values.find(name)
    assert datetime.fromisoformat(str(text)) <= keeper.clock()


class InterruptedProvider(MisbehavingProvider):
    """Has something happen after a look was answered and before the answer is known."""

    then: Callable[[], Awaitable[Any]] | None = None

    async def inject_fault(self, call: Callable[[], Awaitable[Any]]) -> Any:
        answer = await call()
        if self.then is not None:
            then, self.then = self.then, None
            await then()
        return answer


async def test_a_look_that_an_event_overtook_is_repeated_and_does_not_undo_it(
    keeper: ObservingKeeper,
) -> None:
    sandbox = await keeper.launch()
    provider = InterruptedProvider(keeper.provider, "get")
    keeper.use(provider)  # type: ignore[arg-type]

    async def pause() -> None:
        await keeper.provider.pause(sandbox.instance_id or "")
        # The provider's clock is behind ours: by its date the event is older than the look.
        told = keeper.provider.events[-1]
        told = LifecycleEvent(
            event_id=told.event_id,
            kind=told.kind,
            instance_id=told.instance_id,
            run_id=told.run_id,
            at=told.at - timedelta(milliseconds=200),
        )
        await keeper.deliver(told)

    await keeper.provider.connect(sandbox.instance_id or "", timeout_s=600)
    await keeper.store.sandboxes.save(
        (await keeper.read(sandbox)).evolve(state_as_of=None, state_received_at=None),
        expect_version=(await keeper.read(sandbox)).version,
        now=keeper.clock(),
    )
    provider.then = pause
    assert (await keeper.verification.verify(sandbox.id)).state is State.PAUSED
    assert (await keeper.read(sandbox)).state is State.PAUSED


async def test_a_silent_loss_after_a_wrong_end_still_ends_the_record(
    keeper: ObservingKeeper,
) -> None:
    sandbox = await keeper.launch()
    told = wrong(sandbox, EventKind.KILLED)
    keeper.provider.events.append(told)
    await keeper.deliver(told)
    await keeper.reconciliation.run()
    assert (await keeper.read(sandbox)).state is State.RUNNING
    keeper.provider.vanish(sandbox.instance_id or "")
    await keeper.reconciliation.run()
    assert (await keeper.read(sandbox)).state is State.KILLED
