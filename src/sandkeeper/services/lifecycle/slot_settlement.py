"""Settle the slots of starts that were never answered: ask the provider what runs.

A start counts from before it is sent until its result is recorded. If its process died, or the
provider gave no answer, what came of it is not known. So it goes on counting until no process works
on the sandbox any more, a late answer is out of the question, and the provider was asked.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog

from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.states import State
from sandkeeper.providers.base import InstanceState
from sandkeeper.services.capacity.slots import Slots
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.lost_creations import list_own_instances
from sandkeeper.services.lifecycle.verification import Verification
from sandkeeper.store.capacity.slots import Slot

log = structlog.get_logger(__name__)

IN_FLIGHT_S: Final = 60.0
"""How long a provider may still carry out what was sent to it. Longer frees the slots of a dead
process later; shorter may count one too few."""
SETTLED_MAX: Final = 50
"""How many slots one pass asks about; the next one continues."""


class SlotSettlement:
    """Find unanswered starts and end their reservations."""

    def __init__(self, deps: Deps, slots: Slots, verification: Verification) -> None:
        self._slots = slots
        self._store = deps.store
        self._providers = deps.providers
        self._verification = verification
        self._clock = deps.clock
        self._metrics = deps.metrics

    async def run(self) -> dict[str, int]:
        """Run one pass; return the counts."""
        await self._slots.refresh()
        now = self._clock()
        until = now + timedelta(seconds=IN_FLIGHT_S)
        orphaned = await self._store.slots.orphan(until=until, now=now, limit=SETTLED_MAX)
        orphans = await self._store.slots.list_orphans(now=now, limit=SETTLED_MAX)
        for slot in orphans:
            await self._settle(slot)
        await self._slots.measure()
        return {"orphaned": orphaned, "asked": len(orphans)}

    async def _settle(self, slot: Slot) -> None:
        try:
            is_known = await self._is_stopped_or_live(slot)
        except SandkeeperError as error:
            log.warning("slot_not_settled", sandbox_id=slot.sandbox_id, error=str(error))
            is_known = False
        later = self._clock() + timedelta(seconds=IN_FLIGHT_S)
        await self._store.slots.settle(slot, again_at=None if is_known else later)

    async def _is_stopped_or_live(self, slot: Slot) -> bool:
        """Return whether the provider says that it does not run, or the record that it does."""
        sandbox = await self._store.sandboxes.find(slot.sandbox_id)
        if sandbox is None:
            return True  # The record is written before anything is sent.
        if slot.generation != sandbox.generation or sandbox.instance_id is None:
            if sandbox.state is State.STARTING:
                return False  # Its creation goes on.
            found = await list_own_instances(self._providers.get(sandbox), sandbox)
            return not any(one.state is InstanceState.RUNNING for one in found)
        seen = await self._verification.verify(sandbox.id)
        return seen.state not in (State.UNKNOWN, State.STARTING)
