"""Record observations: the only way in which observed state enters the record.

A webhook, an entry of the event log, a get, a list and the answer to our own act are all
*observations*; `record` folds each into the row with the pure `absorb` and writes row and events in
one transaction. Nothing else writes an observed state. It may be called twice with the same
observation, in any order and from several replicas: the version of the row resolves races, and the
loser reads the row and absorbs the observation again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

import structlog

from sandkeeper.common.tracing import TRACING, set_attributes
from sandkeeper.domain.clock import AHEAD_MAX
from sandkeeper.domain.decisions.wake import Wake
from sandkeeper.domain.errors import VersionConflictError
from sandkeeper.domain.events import Event, StateChanged
from sandkeeper.domain.observe.observation import Observation, Source
from sandkeeper.domain.observe.transitions import Unchanged, UnchangedReason, absorb
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.base import LifecycleEvent
from sandkeeper.providers.observations import observe_event
from sandkeeper.services.deps import Deps
from sandkeeper.store import Delivery

log = structlog.get_logger(__name__)

#: How often a lost race is retried. Each loss means that another writer made progress on this row.
RACES_MAX = 20


class RecordOutcome(StrEnum):
    """The result of an observation."""

    #: The record changed.
    CHANGED = "changed"
    #: It matched the record; only the time of the last check changed.
    CONFIRMED = "confirmed"
    #: A newer observation was absorbed before.
    OLDER = "older"
    #: It is about an instance that is not the record's current one.
    FOREIGN = "foreign"
    #: The end of the instance is known; nothing comes after it.
    ENDED = "ended"
    #: No record is known for this instance.
    UNKNOWN = "unknown"
    #: This same delivery was recorded before.
    DUPLICATE = "duplicate"


OUTCOMES = {
    UnchangedReason.CONFIRMED: RecordOutcome.CONFIRMED,
    UnchangedReason.OLDER: RecordOutcome.OLDER,
    UnchangedReason.FOREIGN: RecordOutcome.FOREIGN,
    UnchangedReason.ENDED: RecordOutcome.ENDED,
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """The result of an observation, and the current record (None if there is none)."""

    outcome: RecordOutcome
    sandbox: Sandbox | None
    events: tuple[Event, ...] = ()

    def is_to_save(self, *, is_forced: bool) -> bool:
        """Return whether to write the row; `is_forced` if the caller has its own changes to it."""
        if self.outcome in (RecordOutcome.UNKNOWN, RecordOutcome.DUPLICATE):
            return False
        return is_forced or self.outcome is RecordOutcome.CHANGED


class Observations:
    """Write observations to the store."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store
        self._metrics = deps.metrics
        self._clock = deps.clock

    async def record(
        self,
        seen: Observation,
        *,
        finish: Callable[[Sandbox], Sandbox] | None = None,
        events: Sequence[Event] = (),
        delivery: Delivery | None = None,
        known: Sandbox | None = None,
        wake: Wake | None = None,
    ) -> Recorded:
        """Fold one observation into its record.

        `finish` is for the holder of the claim: it is applied to the record after the observation,
        in the same transaction (to release the claim, to set what only the act knows). The row is
        then written even if the observation changed nothing. It may be called several times.
        `events` are published with the row. `delivery` is the webhook that carried it; it is
        written with the row, its outcome filled in, so that it counts as seen exactly if it is.
        `known` is the row as the caller has it and saves a read, unless it was written since.
        `wake` is written with the row.
        """
        for _ in range(RACES_MAX):
            sandbox, known = known or await self._find(seen), None
            # Checked after the row was read: if another replica records the event in between, our
            # version is too old and the save fails.
            is_duplicate = sandbox is not None and await self._is_seen(seen)
            folded = fold(sandbox, seen, is_duplicate=is_duplicate, now=self._clock())
            if not folded.is_to_save(is_forced=finish is not None or bool(events)):
                return await self._pass_over(folded, seen, delivery)
            try:
                return await self._save(sandbox, folded, seen, finish, events, delivery, wake)
            except VersionConflictError:
                continue
        raise VersionConflictError(instance_id=seen.instance_id)

    def observe(self, event: LifecycleEvent, *, source: Source) -> Observation:
        """Return an entry of the provider's log as an observation; count one from the future."""
        seen = observe_event(event, source=source, received_at=self._clock())
        if event.at - seen.at > AHEAD_MAX:
            self._metrics.events_ahead.labels(source.value).inc()
            log.warning(
                "event_time_ahead",
                event_id=event.event_id,
                instance_id=event.instance_id,
                type=event.kind.value,
                event_at=event.at.isoformat(),
                taken_as=seen.at.isoformat(),
            )
        return seen

    async def record_all(self, pushed: Sequence[tuple[Observation, Delivery]]) -> list[Recorded]:
        """Fold several pushed events into their records, in one transaction.

        Raise VersionConflictError if another writer changed one of the rows since the read. Then
        nothing is recorded, and each may be recorded alone.
        """
        known = await self._store.bulk.list_by_instance([seen.instance_id for seen, _ in pushed])
        rows = {sandbox.instance_id: sandbox for sandbox in known}
        taken = await self._store.deliveries.find_seen(
            [seen.event_id for seen, _ in pushed if seen.event_id is not None]
        )
        # An instance without a record may be one whose create call was never answered.
        is_alone = [
            seen.instance_id not in rows and seen.sandbox_id is not None for seen, _ in pushed
        ]
        now = self._clock()
        events: dict[str, tuple[Event, ...]] = {}
        outcomes: list[RecordOutcome] = []
        deliveries: list[Delivery] = []
        for (seen, delivery), alone in zip(pushed, is_alone, strict=True):
            if alone:
                outcomes.append(RecordOutcome.UNKNOWN)
                continue
            row = rows.get(seen.instance_id)
            folded = fold(row, seen, is_duplicate=seen.event_id in taken, now=now)
            if seen.event_id is not None:
                taken.add(seen.event_id)
            if folded.outcome is RecordOutcome.CHANGED and folded.sandbox is not None:
                rows[seen.instance_id] = folded.sandbox
                published = (*events.get(folded.sandbox.id, ()), *folded.events)
                events[folded.sandbox.id] = published
            outcomes.append(folded.outcome)
            deliveries.append(replace(delivery, outcome=folded.outcome.value))
        changed = [(row, events[row.id]) for row in rows.values() if row.id in events]
        saved = await self._store.bulk.save(changed, deliveries=deliveries, now=now)
        rows |= {row.instance_id: row for row in saved}
        early = sum(row.idle_stats.early_pauses for row in saved)
        early -= sum(row.idle_stats.early_pauses for row in known if row.id in events)
        self._metrics.idle_pauses_early.inc(early)
        for published in events.values():
            self._log_and_count(published)
        return [
            await self.record(seen, delivery=delivery)
            if alone
            else Recorded(outcome, rows.get(seen.instance_id))
            for (seen, delivery), alone, outcome in zip(pushed, is_alone, outcomes, strict=True)
        ]

    async def record_held(
        self, held: Sequence[tuple[Sandbox, Observation, Callable[[Sandbox], Sandbox]]]
    ) -> list[Recorded]:
        """Fold replies to several acts into the rows that their callers hold, in one transaction.

        Raise VersionConflictError if another writer changed one of the rows: then nothing is
        recorded, and each may be recorded alone. The records come with the activity of their rows.
        """
        now = self._clock()
        folded = [fold(known, seen, is_duplicate=False, now=now) for known, seen, _ in held]
        rows = [
            (finish(one.sandbox or known), one.events)
            for one, (known, _, finish) in zip(folded, held, strict=True)
        ]
        saved = await self._store.bulk.save(rows, deliveries=(), now=now)
        fresh = await self._store.sandboxes.list_by_id([one.id for one in saved])
        activity = {one.id: one.activity for one in fresh}
        for one in folded:
            self._log_and_count(one.events)
        return [
            Recorded(
                RecordOutcome.CHANGED,
                replace(one, activity=activity.get(one.id, one.activity)),
                events,
            )
            for one, (_, events) in zip(saved, rows, strict=True)
        ]

    async def _save(
        self,
        before: Sandbox | None,
        folded: Recorded,
        seen: Observation,
        finish: Callable[[Sandbox], Sandbox] | None,
        events: Sequence[Event],
        delivery: Delivery | None,
        wake: Wake | None,
    ) -> Recorded:
        assert before is not None
        assert folded.sandbox is not None
        published = (*folded.events, *events)
        with TRACING.span("record", sandkeeper__sandbox_id=before.id) as span:
            saved = await self._store.sandboxes.save(
                folded.sandbox if finish is None else finish(folded.sandbox),
                published,
                expect_version=before.version,
                now=self._clock(),
                delivery=delivery and replace(delivery, outcome=RecordOutcome.CHANGED.value),
                event_id=seen.event_id,
                wake=wake,
            )
            set_attributes(
                span,
                sandkeeper__state=saved.state.value,
                sandkeeper__version=saved.version,
                sandkeeper__events=[event.type for event in published],
            )
        self._log_and_count(published)
        self._metrics.idle_pauses_early.inc(
            saved.idle_stats.early_pauses - before.idle_stats.early_pauses
        )
        return Recorded(RecordOutcome.CHANGED, saved, published)

    async def _pass_over(
        self, recorded: Recorded, seen: Observation, delivery: Delivery | None
    ) -> Recorded:
        """Write nothing to the row except, where the provider was asked, the time of the check."""
        if (
            recorded.outcome is RecordOutcome.CONFIRMED
            and seen.is_verification
            and recorded.sandbox
        ):
            await self._store.sandboxes.confirm([recorded.sandbox.id], at=seen.at)
        if delivery is not None:
            await self._store.deliveries.record(replace(delivery, outcome=recorded.outcome.value))
        return recorded

    async def _is_seen(self, seen: Observation) -> bool:
        """Return whether this event was recorded before."""
        if seen.event_id is None:
            return False
        return bool(await self._store.deliveries.find_seen([seen.event_id]))

    async def _find(self, seen: Observation) -> Sandbox | None:
        """Return the record of this instance, or the one that its metadata names."""
        found = await self._store.sandboxes.find_by_instance(seen.instance_id)
        if found is None and seen.sandbox_id is not None:
            found = await self._store.sandboxes.find(seen.sandbox_id)
        return found

    def _log_and_count(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, StateChanged):
                self._metrics.transitions.labels(
                    event.old_state.value, event.new_state.value, event.source
                ).inc()
                log.info(
                    "state_changed",
                    sandbox_id=event.sandbox_id,
                    old_state=event.old_state.value,
                    new_state=event.new_state.value,
                    reason=event.reason,
                    actor=event.actor,
                    source=event.source,
                )


def fold(
    sandbox: Sandbox | None, seen: Observation, *, is_duplicate: bool, now: datetime
) -> Recorded:
    """Return what an observation makes of its row, for one observation and for each of a batch."""
    if sandbox is None:
        return Recorded(RecordOutcome.UNKNOWN, None)
    if is_duplicate:
        return Recorded(RecordOutcome.DUPLICATE, sandbox)
    result = absorb(sandbox, seen, now=now)
    if isinstance(result, Unchanged):
        return Recorded(OUTCOMES[result.why], sandbox)
    return Recorded(RecordOutcome.CHANGED, result.sandbox, result.events)
