"""Instances that carry our mark and belong to no record: found, reported, and carefully removed.

An instance is a *leak* if and only if its metadata names this keeper and the record that it names
does not have it. It may be one whose record is being written at this moment, so one sighting is a
rumour. It is removed when it was seen twice with some time between, is still there and still ours
when looked at again, and fewer than the hourly cap were removed before it: a mistake of ours must
cost a handful of sandboxes at most. What does not carry our mark is reported and never touched.

Beside `lifecycle` this is the one place that changes anything at the provider: a leak has no record
that could be claimed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from sandkeeper.domain.errors import InstanceGoneError, ProviderError
from sandkeeper.store.leaks import Leak

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sandkeeper.providers.base import Instance, Provider
    from sandkeeper.store import Store
    from sandkeeper.telemetry import Metrics

log = structlog.get_logger(__name__)


class Leaks:
    """Counts sightings and removes what has been seen often enough.

    `grace_s` is the least time between the first sighting and the removal. `removals_per_hour_max`:
    too high and a mistake costs much, too low and a crash's leaks cost money for long.
    """

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        clock: Callable[[], datetime],
        removals_per_hour_max: int = 20,
        grace_s: float = 60.0,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._removals_per_hour_max = removals_per_hour_max
        self._grace = timedelta(seconds=grace_s)

    async def sight(self, provider: Provider, instance: Instance, *, kind: str = "leak") -> Leak:
        """Count one sighting of an instance that no record has."""
        tag = instance.tag
        return await self._store.leaks.sight(
            Leak(
                instance_id=instance.instance_id,
                provider=provider.name,
                kind=kind,
                first_seen_at=instance.seen_at,
                last_seen_at=instance.seen_at,
                region=provider.region,
                owner=None if tag is None else f"{tag.owner_kind}:{tag.owner_id}",
                metadata=instance.metadata,
            )
        )

    async def remove(self, provider: Provider, leak: Leak) -> bool:
        """Remove a leak if everything speaks for it. False leaves it for a later pass."""
        now = self._clock()
        if leak.sightings < 2 or now - leak.first_seen_at < self._grace:
            return False
        removed = await self._store.leaks.count_removed(since=now - timedelta(hours=1))
        if removed >= self._removals_per_hour_max:
            log.warning(
                "leak_kept_by_hourly_cap",
                instance_id=leak.instance_id,
                removals_per_hour_max=self._removals_per_hour_max,
            )
            return False
        try:
            found = await provider.look(leak.instance_id)
            if found.tag is None or found.tag.keeper != provider.keeper:
                return False
            await provider.kill(leak.instance_id)
        except InstanceGoneError:
            pass  # Somebody was faster; it is noted as removed all the same.
        except ProviderError as error:
            log.warning("leak_not_removed", instance_id=leak.instance_id, error=str(error))
            return False
        await self._store.leaks.mark_removed(leak.instance_id, at=now)
        self._metrics.drift.labels("leak_removed").inc()
        log.warning("leak_removed", instance_id=leak.instance_id, owner=leak.owner)
        return True
