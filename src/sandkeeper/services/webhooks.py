"""Takes in what the provider pushes.

The signature is checked over the raw body before anything in it is believed. A delivery is answered
as taken when it is recorded, seen before, of an unknown type or of an unknown sandbox: repeating
that would change nothing. Only what may succeed later (our own database is away) is refused, so
that the provider sends it again. Whatever is lost for good is found by catch-up and reconcile.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from sandkeeper.domain.errors import (
    InvalidRequestError,
    InvalidSignatureError,
    PayloadTooLargeError,
)
from sandkeeper.domain.observation import Source
from sandkeeper.services.observations import observe_event
from sandkeeper.store import Delivery

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from sandkeeper.providers.base import LifecycleEvent
    from sandkeeper.services.observations import Observations
    from sandkeeper.services.regions import Regions
    from sandkeeper.store import Store
    from sandkeeper.telemetry import Metrics

log = structlog.get_logger(__name__)

IGNORED = "ignored"

#: E2B's deliveries are a few hundred bytes. Higher lets a stranger fill our memory, lower could one
#: day refuse a sandbox with much metadata.
BODY_MAX = 1024 * 1024

#: Refused deliveries written to the inbox in a second. Higher lets a stranger fill the database,
#: lower hides from an operator that many arrive (the metric counts all of them).
REFUSED_KEPT_PER_S = 10


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a delivery."""

    outcome: str
    event_id: str | None = None
    sandbox_id: str | None = None


class Webhooks:
    """Receives deliveries. `secret` is asked on each one: a new registration counts at once."""

    def __init__(
        self,
        *,
        store: Store,
        regions: Regions,
        observations: Observations,
        secret: Callable[[], Awaitable[str]],
        metrics: Metrics,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._regions = regions
        self._observations = observations
        self._secret = secret
        self._metrics = metrics
        self._clock = clock
        self._kept_refused: deque[datetime] = deque()

    async def receive(self, body: bytes, headers: Mapping[str, str]) -> Receipt:
        """Take in one delivery. Header names are lower case.

        Raises `InvalidSignatureError`, `PayloadTooLargeError` or `InvalidRequestError`; each is in
        the inbox as well.
        """
        received_at = self._clock()
        delivery = Delivery(
            received_at=received_at, outcome="", delivery_id=headers.get("e2b-delivery-id")
        )
        try:
            event = await self._parse(body, headers)
        except (InvalidSignatureError, PayloadTooLargeError, InvalidRequestError) as error:
            refused = replace(delivery, outcome=error.code, detail=str(error))
            if self._may_keep_refused(received_at):
                await self._keep(refused)
            else:
                self._tell(refused)
            raise
        if event is None:
            await self._keep(replace(delivery, outcome=IGNORED, detail="a type that is not known"))
            return Receipt(IGNORED)
        delivery = replace(
            delivery,
            event_id=event.event_id,
            type=event.kind.value,
            instance_id=event.instance_id,
            event_at=event.at,
        )
        seen = observe_event(event, source=Source.WEBHOOK, received_at=received_at)
        recorded = await self._observations.record(seen, delivery=delivery)
        self._tell(replace(delivery, outcome=recorded.outcome.value))
        sandbox_id = None if recorded.sandbox is None else recorded.sandbox.id
        return Receipt(recorded.outcome.value, event.event_id, sandbox_id)

    async def _parse(self, body: bytes, headers: Mapping[str, str]) -> LifecycleEvent | None:
        if len(body) > BODY_MAX:
            raise PayloadTooLargeError(bytes_max=BODY_MAX)
        provider = next(iter(self._regions))
        return provider.parse_webhook(body, headers, secret=await self._secret())

    def _may_keep_refused(self, now: datetime) -> bool:
        """Bounds what a stranger can write into our database: the rest is only counted."""
        kept = self._kept_refused
        while kept and (now - kept[0]).total_seconds() >= 1:
            kept.popleft()
        if len(kept) >= REFUSED_KEPT_PER_S:
            return False
        kept.append(now)
        return True

    async def _keep(self, delivery: Delivery) -> None:
        """Write a delivery that changed nothing into the inbox."""
        await self._store.deliveries.record(delivery)
        self._tell(delivery)

    def _tell(self, delivery: Delivery) -> None:
        kind = delivery.type or "unknown"
        self._metrics.webhooks_received.labels(kind, delivery.outcome).inc()
        if delivery.event_at is not None:
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
