"""Count, report, pause and carefully remove second instances beside a recorded one.

An instance is a *leak* if and only if a live record of the same owner has another instance, which
the provider lists as well. Its record may be in the middle of being written, so one sighting is not
enough. After two sightings with some time between it is paused, which can be undone; a day later it
is removed. Before both, record and list are read again and must still show the other instance, no
record has this one, and it still carries our mark. Fewer instances than the hourly cap were removed
before it: a mistake of ours must cost a handful of sandboxes at most. One that was resumed since is
in use and left alone. What was removed stays in the table with who, when and why.

An instance of ours that belongs to no record and cannot be adopted is paused in the same way, and
never removed: an operator decides.

Besides `lifecycle` this is the only place that changes anything at the provider: a leak has no
record that could be claimed. So a check counts only for a moment: a process that stood still since
does neither.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog

from sandkeeper.domain.errors import InstanceGoneError, ProviderError, SandboxBusyError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.acting_claim import acting_for
from sandkeeper.providers.base import Instance, InstanceState, Provider
from sandkeeper.services.deps import Deps
from sandkeeper.store.sandboxes.leaks import Leak

log = structlog.get_logger(__name__)

GONE_BY_ITSELF = "provider"
"""The recorded remover of an instance that was gone before we could remove it."""

KEPT: Final = timedelta(days=1)
"""How long a leak waits for its removal, paused where the provider can pause. Longer costs money;
shorter leaves an operator less time to undo a mistake."""


LOOKED_S: Final = 10.0
"""How old the check may be on which a pause or a removal is based. Lower never acts where the
provider is slow; higher acts on what another replica has adopted since.
"""


class LeakHandler:
    """Count sightings, and pause and remove instances that were seen often enough.

    `replica` is recorded as the remover when no person asked. `grace_s` is the minimum time between
    the first sighting and the pause. `removals_per_hour_max`: too high and a mistake costs much,
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

    async def pause(
        self, provider: Provider, leak: Leak, instance: Instance, *, beside: Sandbox | None = None
    ) -> bool:
        """Pause an instance that was seen often enough; return whether that was done now.

        `beside` is the record that has another instance; without one, an unowned instance.
        """
        now = self._clock()
        is_new = leak.sightings < 2 or now - leak.first_seen_at < self._grace
        if is_new or leak.paused_at is not None:
            return False
        try:
            with acting_for(LOOKED_S):
                if not await self._is_still_ours(provider, leak, beside):
                    return False
                if instance.state is InstanceState.RUNNING:
                    await provider.pause(leak.instance_id)
        except InstanceGoneError:
            return False  # The next list is without it.
        except (ProviderError, SandboxBusyError) as error:
            log.warning("leak_not_paused", instance_id=leak.instance_id, error=str(error))
            return False
        await self._store.leaks.mark_paused(leak.instance_id, at=now)
        self._metrics.drift.labels("leak_paused").inc()
        log.warning(
            "leak_paused",
            instance_id=leak.instance_id,
            kind=leak.kind,
            owner=leak.owner,
            reason=leak.reason,
        )
        return True

    async def remove(
        self,
        provider: Provider,
        leak: Leak,
        instance: Instance,
        *,
        beside: Sandbox,
        actor: str | None,
    ) -> bool:
        """Remove a leak if every check allows it; return False to leave it for a later pass.

        `actor` is the person who asked, if any.
        """
        now = self._clock()
        was_resumed = leak.paused_at is not None and instance.state is InstanceState.RUNNING
        if was_resumed or now - (leak.paused_at or leak.first_seen_at) < KEPT:
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
            with acting_for(LOOKED_S):
                if not await self._is_still_ours(provider, leak, beside):
                    return False
                await provider.kill(leak.instance_id)
        except InstanceGoneError:
            by = GONE_BY_ITSELF
        except (ProviderError, SandboxBusyError) as error:
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

    async def _is_still_ours(self, provider: Provider, leak: Leak, beside: Sandbox | None) -> bool:
        """Return whether the instance, read now, has our mark and no record has it.

        For a leak, record and list, both read now, must show another instance for the record.
        """
        recorded = await self._store.sandboxes.find_by_instance(leak.instance_id)
        if recorded is not None and recorded.state.is_live:
            return False
        if beside is not None and not await self._has_another(provider, beside):
            return False
        found = await provider.get(leak.instance_id)
        return found.tag is not None and found.tag.keeper == provider.keeper

    async def _has_another(self, provider: Provider, beside: Sandbox) -> bool:
        fresh = await self._store.sandboxes.find(beside.id)
        if fresh is None or fresh.state.is_ended or fresh.instance_id != beside.instance_id:
            return False
        cursor: str | None = None
        while True:
            page = await provider.list_instances(sandbox_id=beside.id, cursor=cursor)
            if any(one.instance_id == beside.instance_id for one in page.instances):
                return True
            cursor = page.next_cursor
            if cursor is None:
                return False
