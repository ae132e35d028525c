"""Receive what the provider pushes.

The signature is checked over the raw body before anything in it is trusted. A delivery is accepted
when it is recorded, seen before, of an unknown type or of an unknown sandbox: sending it again
would change nothing. It is refused only if it may succeed later (our own database is away), so that
the provider sends it again. Catch-up and reconcile find whatever is lost for good.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from sandkeeper.domain.clock import AHEAD_MAX
from sandkeeper.domain.errors import (
    InvalidRequestError,
    InvalidSignatureError,
    PayloadTooLargeError,
)
from sandkeeper.domain.observe.observation import Observation, Source
from sandkeeper.providers.base import EventKind, LifecycleEvent
from sandkeeper.services.deps import Deps
from sandkeeper.services.observe.adoption import Adoption
from sandkeeper.services.observe.observations import Observations, Recorded, RecordOutcome
from sandkeeper.services.observe.webhook_registration import WebhookRegistration
from sandkeeper.store import Delivery

log = structlog.get_logger(__name__)

#: Of an unknown type: accepted, so that it is not sent again.
IGNORED = "ignored"

#: It could not be recorded, for example while our database is away: the provider sends it again.
FAILED = "failed"

REFUSALS = (InvalidSignatureError, PayloadTooLargeError, InvalidRequestError)

#: The outcomes whose sender got an error; the alert on webhook failures selects them.
FAILURE_OUTCOMES = frozenset({FAILED, *(error.code for error in REFUSALS)})

#: Every value of the label `outcome` of the deliveries' metric.
DELIVERY_OUTCOMES = FAILURE_OUTCOMES | {IGNORED, *(outcome.value for outcome in RecordOutcome)}

#: E2B's deliveries are a few hundred bytes. Higher lets an unknown sender fill our memory; lower
#: could one day refuse a sandbox with much metadata.
BODY_MAX = 128 * 1024
# Characters of a header value that are stored.
DELIVERY_ID_MAX = 128

#: Deliveries per transaction. Higher keeps other writers waiting; lower costs more transactions in
#: a burst.
BATCH_MAX = 64

#: Refused deliveries written to the inbox per second. Higher lets an unknown sender fill the
#: database; lower hides from an operator that many arrive (the metric counts all of them).
REFUSED_KEPT_PER_S = 10


@dataclass(frozen=True, slots=True)
class PendingWebhook:
    """A delivery to be recorded, and the future of the caller that waits for it."""

    seen: Observation
    delivery: Delivery
    done: asyncio.Future[Recorded]


@dataclass(frozen=True, slots=True)
class WebhookResult:
    """The result of a delivery."""

    outcome: str
    event_id: str | None = None
    sandbox_id: str | None = None


class WebhookBatcher:
    """Write deliveries that arrive during a write together in the next transaction.

    Nothing is delayed on purpose: a single delivery is written at once, alone.
    """

    def __init__(self, observations: Observations) -> None:
        self._observations = observations
        self._waiting: deque[PendingWebhook] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def record(self, seen: Observation, delivery: Delivery) -> Recorded:
        """Record a pushed event, even if the caller disconnects."""
        done: asyncio.Future[Recorded] = asyncio.get_running_loop().create_future()
        self._waiting.append(PendingWebhook(seen, delivery, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return await done

    async def _write(self) -> None:
        while self._waiting:
            size = min(BATCH_MAX, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(size)]
            if len(batch) > 1 and await self._write_together(batch):
                continue
            for one in batch:
                await self._write_alone(one)

    async def _write_together(self, batch: Sequence[PendingWebhook]) -> bool:
        """Write the batch; return False if it conflicts or contains one that cannot be written.

        Each delivery is then written alone, and its caller gets only its own error.
        """
        try:
            recorded = await self._observations.record_all(
                [(one.seen, one.delivery) for one in batch]
            )
        except Exception as error:  # noqa: BLE001 - The write of each alone raises it again.
            log.info("webhook_batch_split", deliveries=len(batch), error=repr(error))
            return False
        for one, result in zip(batch, recorded, strict=True):
            _answer(one.done, result)
        return True

    async def _write_alone(self, one: PendingWebhook) -> None:
        try:
            result = await self._observations.record(one.seen, delivery=one.delivery)
        except Exception as error:  # noqa: BLE001 - Raised in the waiting caller.
            if not one.done.done():
                one.done.set_exception(error)
        else:
            _answer(one.done, result)


def _answer(done: asyncio.Future[Recorded], result: Recorded) -> None:
    """Set the caller's result, unless the caller disconnected."""
    if not done.done():
        done.set_result(result)


class WebhookReceiver:
    """Receive deliveries. The secret is read for each one: a new registration counts at once."""

    def __init__(
        self,
        deps: Deps,
        observations: Observations,
        registration: WebhookRegistration,
        adoption: Adoption,
    ) -> None:
        self._adoption = adoption
        self._store = deps.store
        self._providers = deps.providers
        self._registration = registration
        self._metrics = deps.metrics
        self._clock = deps.clock
        self._kept_refused: deque[datetime] = deque()
        self._observations = observations
        self._intake = WebhookBatcher(observations)

    async def receive(self, body: bytes, headers: Mapping[str, str]) -> WebhookResult:
        """Accept one delivery. Header names are lower case.

        Raise `InvalidSignatureError`, `PayloadTooLargeError` or `InvalidRequestError` for what is
        refused; it is in the inbox as well. Whatever happens, the delivery is counted: one that
        could not be recorded counts as failed.
        """
        delivery_id = headers.get("e2b-delivery-id")
        delivery = Delivery(
            received_at=self._clock(),
            outcome=FAILED,
            delivery_id=delivery_id and delivery_id[:DELIVERY_ID_MAX],
        )
        try:
            event = await self._parse(body, headers)
            if event is None:
                ignored = replace(delivery, outcome=IGNORED, detail="a type that is not known")
                await self._store.deliveries.record(ignored)
                delivery = ignored
                return WebhookResult(IGNORED)
            seen = self._observations.observe(event, source=Source.WEBHOOK)
            delivery = _describe(delivery, event, seen)
            recorded = await self._intake.record(seen, delivery)
            delivery = replace(delivery, outcome=recorded.outcome.value)
            if recorded.outcome is RecordOutcome.UNKNOWN and event.kind is EventKind.CREATED:
                self._adoption.adopt_soon(event.instance_id)
        except REFUSALS as error:
            delivery = replace(delivery, outcome=error.code, detail=str(error))
            if self._may_keep_refused(delivery.received_at):
                await self._store.deliveries.record(delivery)
            raise
        finally:
            self._log_and_count(delivery)
        sandbox_id = None if recorded.sandbox is None else recorded.sandbox.id
        return WebhookResult(recorded.outcome.value, event.event_id, sandbox_id)

    async def _parse(self, body: bytes, headers: Mapping[str, str]) -> LifecycleEvent | None:
        if len(body) > BODY_MAX:
            raise PayloadTooLargeError(bytes_max=BODY_MAX)
        provider = next(iter(self._providers))
        return provider.parse_webhook(body, headers, secret=await self._registration.secret())

    def _may_keep_refused(self, now: datetime) -> bool:
        """Return whether to save a refused delivery; beyond the limit they are only counted.

        The limit bounds what an unknown sender can write into our database.
        """
        kept = self._kept_refused
        while kept and (now - kept[0]).total_seconds() >= 1:
            kept.popleft()
        if len(kept) >= REFUSED_KEPT_PER_S:
            return False
        kept.append(now)
        return True

    def _log_and_count(self, delivery: Delivery) -> None:
        kind = delivery.type or "unknown"
        self._metrics.webhooks_received.labels(kind, delivery.outcome).inc()
        if delivery.event_at is not None and delivery.outcome != FAILED:
            lag_s = (self._clock() - delivery.event_at).total_seconds()
            self._metrics.webhook_lag.observe(max(0.0, lag_s))
        log.info(
            "webhook_received",
            type=kind,
            delivery_id=delivery.delivery_id,
            event_id=delivery.event_id,
            instance_id=delivery.instance_id,
            outcome=delivery.outcome,
        )


def _describe(delivery: Delivery, event: LifecycleEvent, seen: Observation) -> Delivery:
    """Add the event's data; mark an event that is dated after its arrival."""
    is_ahead = event.at - seen.at > AHEAD_MAX
    return replace(
        delivery,
        event_id=event.event_id,
        type=event.kind.value,
        instance_id=event.instance_id,
        event_at=seen.at,
        detail=f"dated {event.at.isoformat()}, taken as its arrival" if is_ahead else "",
    )
