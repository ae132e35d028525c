"""Takes in what the provider pushes.

The signature is checked over the raw body before anything in it is believed. A delivery is answered
as taken when it is recorded, seen before, of an unknown type or of an unknown sandbox: repeating
that would change nothing. Only what may succeed later (our own database is away) is refused, so
that the provider sends it again. Whatever is lost for good is found by catch-up and reconcile.
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
from sandkeeper.domain.observation import Observation, Source
from sandkeeper.providers.base import LifecycleEvent
from sandkeeper.services.deps import Deps
from sandkeeper.services.observe.observations import Observations, Recorded, RecordOutcome
from sandkeeper.services.observe.webhook_registration import WebhookRegistration
from sandkeeper.store import Delivery

log = structlog.get_logger(__name__)

#: Of a type that is not known: accepted, so that it is not sent again.
IGNORED = "ignored"

#: It could not be recorded, as when our database is away: the provider sends it again.
FAILED = "failed"

REFUSALS = (InvalidSignatureError, PayloadTooLargeError, InvalidRequestError)

#: The outcomes whose sender got an error; the alert on webhook failures selects them.
FAILURE_OUTCOMES = frozenset({FAILED, *(error.code for error in REFUSALS)})

#: Every value of the label `outcome` of the deliveries' metric.
DELIVERY_OUTCOMES = FAILURE_OUTCOMES | {IGNORED, *(outcome.value for outcome in RecordOutcome)}

#: E2B's deliveries are a few hundred bytes. Higher lets a stranger fill our memory, lower could one
#: day refuse a sandbox with much metadata.
BODY_MAX = 1024 * 1024

#: Deliveries written in one transaction. More would keep other writers waiting, fewer would cost
#: more transactions in a burst.
BATCH_MAX = 64

#: Refused deliveries written to the inbox in a second. Higher lets a stranger fill the database,
#: lower hides from an operator that many arrive (the metric counts all of them).
REFUSED_KEPT_PER_S = 10


@dataclass(frozen=True, slots=True)
class PendingWebhook:
    """A delivery that is to be recorded, and who waits for it."""

    seen: Observation
    delivery: Delivery
    done: asyncio.Future[Recorded]


@dataclass(frozen=True, slots=True)
class WebhookResult:
    """What became of a delivery."""

    outcome: str
    event_id: str | None = None
    sandbox_id: str | None = None


class WebhookBatcher:
    """Lets deliveries that arrive while others are being written go into one transaction together.

    Nothing waits on purpose: a lone delivery is written at once, alone.
    """

    def __init__(self, observations: Observations) -> None:
        self._observations = observations
        self._waiting: deque[PendingWebhook] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def record(self, seen: Observation, delivery: Delivery) -> Recorded:
        """Record a pushed event. If the caller goes away, it is recorded all the same."""
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
        """False if the batch met somebody else's write, or holds one that cannot be written: each
        goes alone then, and hears of its own error only.
        """
        try:
            recorded = await self._observations.record_all(
                [(one.seen, one.delivery) for one in batch]
            )
        except Exception as error:  # noqa: BLE001 - It is met again by the one that it is of.
            log.info("webhook_batch_split", deliveries=len(batch), error=repr(error))
            return False
        for one, result in zip(batch, recorded, strict=True):
            _answer(one.done, result)
        return True

    async def _write_alone(self, one: PendingWebhook) -> None:
        try:
            result = await self._observations.record(one.seen, delivery=one.delivery)
        except Exception as error:  # noqa: BLE001 - It is raised where the delivery waits.
            if not one.done.done():
                one.done.set_exception(error)
        else:
            _answer(one.done, result)


def _answer(done: asyncio.Future[Recorded], result: Recorded) -> None:
    """Tell the caller, unless it went away."""
    if not done.done():
        done.set_result(result)


class WebhookReceiver:
    """Receive deliveries. The secret is read for each one: a new registration counts at once."""

    def __init__(
        self, deps: Deps, observations: Observations, registration: WebhookRegistration
    ) -> None:
        self._store = deps.store
        self._regions = deps.providers
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
        delivery = Delivery(
            received_at=self._clock(), outcome=FAILED, delivery_id=headers.get("e2b-delivery-id")
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
        provider = next(iter(self._regions))
        return provider.parse_webhook(body, headers, secret=await self._registration.secret())

    def _may_keep_refused(self, now: datetime) -> bool:
        """Bounds what a stranger can write into our database: the rest is only counted."""
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
    """Add what the event says; one that is dated ahead of its arrival says so."""
    is_ahead = event.at - seen.at > AHEAD_MAX
    return replace(
        delivery,
        event_id=event.event_id,
        type=event.kind.value,
        instance_id=event.instance_id,
        event_at=seen.at,
        detail=f"dated {event.at.isoformat()}, taken as its arrival" if is_ahead else "",
    )
