"""Find or give up a sandbox whose creation was never answered.

No observation can report an instance that never existed, so this is the one change of state that
does not go through `absorb`: STARTING to KILLED.
"""

from __future__ import annotations

from datetime import datetime

from sandkeeper.domain.errors import VersionConflictError
from sandkeeper.domain.events import StateChanged
from sandkeeper.domain.observe.observation import Source
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import KilledReason, State, check_move
from sandkeeper.providers.base import Instance, Provider
from sandkeeper.services.lifecycle.claims import without_claim
from sandkeeper.store import Store

RACES_MAX = 20


async def find_instances(provider: Provider, sandbox: Sandbox) -> list[Instance]:
    """Return the provider's instances of this sandbox's current generation, oldest first."""
    found: list[Instance] = []
    cursor: str | None = None
    while True:
        page = await provider.list_instances(sandbox_id=sandbox.id, cursor=cursor)
        found += [
            instance
            for instance in page.instances
            if instance.tag is not None and instance.tag.generation == sandbox.generation
        ]
        cursor = page.next_cursor
        if cursor is None:
            return sorted(found, key=lambda one: (one.started_at or one.seen_at, one.instance_id))


async def mark_creation_failed(
    store: Store,
    held: Sandbox,
    *,
    now: datetime,
    actor: str,
    reason: str,
    killed_reason: KilledReason = KilledReason.MANUAL,
) -> Sandbox:
    """Give up the creation, unless its instance has been found since."""
    for _ in range(RACES_MAX):
        fresh = await store.sandboxes.get(held.id)
        if fresh.state is not State.STARTING or fresh.instance_id is not None:
            return fresh
        check_move(fresh.state, State.KILLED)
        ended = without_claim(fresh, held).evolve(
            state=State.KILLED,
            state_since=now,
            killed_at=now,
            killed_reason=killed_reason,
            reason=reason,
            actor=actor,
            ready=False,
            next_check_at=None,
        )
        event = StateChanged(
            sandbox_id=held.id,
            owner=held.owner,
            at=now,
            actor=actor,
            reason=reason,
            old_state=fresh.state,
            new_state=State.KILLED,
            source=Source.REPLY.value,
        )
        try:
            return await store.sandboxes.save(ended, [event], expect_version=fresh.version, now=now)
        except VersionConflictError:
            continue
    raise VersionConflictError(sandbox_id=held.id)
