"""Count, report and carefully remove second instances beside a recorded one.

An instance is a *leak* if and only if the record that its metadata names is live and has another
instance, which the provider lists as well. Its record may be in the middle of being written, so one
sighting is not enough. It is removed only if all of these hold: it was seen as a leak twice with
some time between, the provider's list of that record's instances has both, a second check finds it
still there and still ours, no record has it, and fewer instances than the hourly cap were removed
before it. A mistake of ours must cost a handful of sandboxes at most. What was removed stays in the
table with who, when and why. Everything else that no record knows is only recorded, never touched.

Besides `lifecycle` this is the only place that changes anything at the provider: a leak has no
record that could be claimed.
"""

from __future__ import annotations

from datetime import timedelta

import structlog

from sandkeeper.domain.errors import InstanceGoneError, ProviderError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.base import Instance, Provider
from sandkeeper.services.deps import Deps
from sandkeeper.store.sandboxes.leaks import Leak

log = structlog.get_logger(__name__)

GONE_BY_ITSELF = "provider"
"""The recorded remover of an instance that was gone before we could remove it."""


class LeakHandler:
    """Count sightings and remove instances that were seen often enough.

    `replica` is recorded as the remover when no person asked. `grace_s` is the minimum time between
    the first sighting and the removal. `removals_per_hour_max`: too high and a mistake costs much,
    too low and the leaks of a crash cost money for long.
    """

    def __init__(self, deps: Deps, *, grace_s: float = 60.0) -> None:
        self._store = deps.store
        self._metrics = deps.metrics
        self._clock = deps.clock
        self._replica = deps.replica
        self._removals_per_hour_max = deps.settings.leaks_removed_per_hour
        self._grace = timedelta(seconds=grace_s)

    async def record(
        self, provider: Provider, instance: Instance, *, kind: str, reason: str
    ) -> Leak:
        """Count one sighting of an instance that is not the current one of any record."""
        tag = instance.tag
        return await self._store.leaks.record(
            Leak(
                instance_id=instance.instance_id,
                provider=provider.name,
                kind=kind,
                first_seen_at=instance.seen_at,
                last_seen_at=instance.seen_at,
                region=provider.region,
                owner=None if tag is None else f"{tag.owner_kind}:{tag.owner_id}",
                metadata=instance.metadata,
                reason=reason,
            )
        )

    async def remove(
        self, provider: Provider, leak: Leak, *, beside: Sandbox, actor: str | None
    ) -> bool:
        """Remove a leak if every check allows it; return False to leave it for a later pass.

        `beside` is the record that has another instance; `actor` the person who asked, if any.
        """
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
        by = actor or self._replica
        try:
            if not await self._is_still_second(provider, leak, beside):
                return False
            found = await provider.get(leak.instance_id)
            if found.tag is None or found.tag.keeper != provider.keeper:
                return False
            await provider.kill(leak.instance_id)
        except InstanceGoneError:
            by = GONE_BY_ITSELF
        except ProviderError as error:
            log.warning("leak_not_removed", instance_id=leak.instance_id, error=str(error))
            return False
        await self._store.leaks.mark_removed(leak.instance_id, at=now, by=by, reason=leak.reason)
        self._metrics.drift.labels("leak_removed").inc()
        log.warning(
            "leak_removed",
            instance_id=leak.instance_id,
            owner=leak.owner,
            removed_by=by,
            reason=leak.reason,
        )
        return True

    async def _is_still_second(self, provider: Provider, leak: Leak, beside: Sandbox) -> bool:
        """Return whether record and list, both read now, show another instance for the record."""
        fresh = await self._store.sandboxes.find(beside.id)
        if fresh is None or fresh.state.is_ended or fresh.instance_id != beside.instance_id:
            return False
        if await self._store.sandboxes.find_by_instance(leak.instance_id) is not None:
            return False
        cursor: str | None = None
        while True:
            page = await provider.list_instances(sandbox_id=beside.id, cursor=cursor)
            if any(one.instance_id == beside.instance_id for one in page.instances):
                return True
            cursor = page.next_cursor
            if cursor is None:
                return False
