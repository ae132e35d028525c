"""A wake that waits in line for a slot, and shows its place there."""

from __future__ import annotations

from typing import Final

from sandkeeper.common.elapsed import now_s
from sandkeeper.domain.decisions.prewarm import PREWARM_ACTOR
from sandkeeper.domain.decisions.priority import Priority
from sandkeeper.domain.receipt import WakeMethod
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.capacity.line import Line
from sandkeeper.services.wake.progress import WakeProgress
from sandkeeper.store import Store

# How often a change of the place is written, at the front of the line and further back. Shorter
# writes more while many wait; longer shows an old place.
SHOW_EVERY_S: Final = 1.0
SHOW_FAR_EVERY_S: Final = 10.0
FRONT: Final = 20


async def wait_for_slot(run: WakeProgress, line: Line, store: Store) -> None:
    """Return when the sandbox has a slot. Raise CapacityFullError if it gets none in time."""
    sandbox = await store.sandboxes.get(run.wake.sandbox_id)
    needs_new = sandbox.state.is_ended
    method = WakeMethod.RECREATE if needs_new else WakeMethod.RESUME
    shown_s = -SHOW_FAR_EVERY_S

    async def show(position: int, wait_s: float | None) -> None:
        nonlocal shown_s
        every_s = SHOW_EVERY_S if position <= FRONT else SHOW_FAR_EVERY_S
        if now_s() - shown_s >= every_s:
            shown_s = now_s()
            await run.show_line(method, position, wait_s)

    await line.admit(
        sandbox,
        generation=sandbox.generation + needs_new,
        priority=run.wake.priority or _find_priority(run, sandbox),
        overflow=run.wake.overflow,
        on_place=show,
    )


def _find_priority(run: WakeProgress, sandbox: Sandbox) -> Priority | None:
    """Return the priority that follows from who asked; None leaves it to policy and owner."""
    is_spare = run.wake.actor == PREWARM_ACTOR and sandbox.policy.priority is None
    return Priority.WARM_UP if is_spare else None
