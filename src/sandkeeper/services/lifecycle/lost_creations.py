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
from sandkeeper.services.observe.adoption import UNMARKED
from sandkeeper.store import Store

RACES_MAX = 20


async def find_instances(provider: Provider, sandbox: Sandbox) -> list[Instance]:
    """Return the provider's instances of this sandbox's current generation, oldest first."""
    found = await list_own_instances(provider, sandbox)
    return [one for one in found if one.tag and one.tag.generation == sandbox.generation]


async def list_own_instances(provider: Provider, sandbox: Sandbox) -> list[Instance]:
    """Return the provider's instances of this sandbox: newest generation first, then oldest.

    An adopted instance does not carry our mark: it is looked for among all of the account.
    """
    found = await _list(provider, sandbox_id=sandbox.id)
    if sandbox.generation == UNMARKED:
        everything = await _list(provider, foreign=True)
        found += [one for one in everything if one.instance_id == sandbox.instance_id]
    return sorted(found, key=_generation_and_age)


async def _list(
    provider: Provider, *, sandbox_id: str | None = None, foreign: bool = False
) -> list[Instance]:
    found: list[Instance] = []
    cursor: str | None = None
    while True:
        page = await provider.list_instances(sandbox_id=sandbox_id, cursor=cursor, foreign=foreign)
        found += page.instances
        cursor = page.next_cursor
        if cursor is None:
            return found


async def is_listed(provider: Provider, sandbox: Sandbox) -> bool:
    """Return whether the provider lists the instance that a get did not find.

    One answer of "not found" may be wrong. Only if the list agrees with it is the instance gone.
    """
    found = await list_own_instances(provider, sandbox)
    return any(one.instance_id == sandbox.instance_id for one in found)


def _generation_and_age(instance: Instance) -> tuple[int, datetime, str]:
    born_at = instance.started_at or instance.seen_at
    generation = instance.tag.generation if instance.tag else UNMARKED
    return (-generation, born_at, instance.instance_id)


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
