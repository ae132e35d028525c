"""How a starting engine recovers the sandboxes of an earlier one.

The database holds the desired state, the runtime the actual one:

    record     processes       then
    running    live            adopted; thawed if a pause was interrupted
    running    gone            started from the disk (the machine was restarted)
    paused     frozen          adopted
    paused     live            frozen again: a resume was interrupted before its reply
    paused     gone            stays paused; memory of a full pause is recorded as lost
    none       any             ended and deleted
"""

from __future__ import annotations

import asyncio
import logging

from sandkeeper.engine.runtime.contract import RuntimeFaultError
from sandkeeper.engine.sandboxes.lifecycle import SandboxLifecycle
from sandkeeper.engine.sandboxes.maintenance import sweep
from sandkeeper.engine.sandboxes.records import EngineState, PauseMode, SandboxRecord
from sandkeeper.engine.storage.database import EngineDatabase

_log = logging.getLogger("sandkeeper.engine")

_AT_ONCE = 8  # Parallel boots after a reboot of the machine; more would only wait for the CPUs.


async def recover(lifecycle: SandboxLifecycle, database: EngineDatabase) -> None:
    """Reconcile records and machine. The runtime has started, nothing is served yet."""
    rows = await database.run(lambda c: c.execute("SELECT record FROM sandboxes").fetchall())
    for (text,) in rows:
        record = SandboxRecord.from_json(text)
        lifecycle.registry.add(record)
    turn = asyncio.Semaphore(_AT_ONCE)

    async def repair(sandbox_id: str) -> None:
        async with turn:
            try:
                await _repair(lifecycle, sandbox_id)
            except RuntimeFaultError:
                _log.exception("%s was not recovered; it is tried again on use", sandbox_id)

    await asyncio.gather(
        *(repair(sandbox_id) for sandbox_id, _ in lifecycle.registry.list_entries())
    )
    await sweep(lifecycle)


async def _repair(lifecycle: SandboxLifecycle, sandbox_id: str) -> None:
    runtime, record = lifecycle.runtime, lifecycle.get(sandbox_id)
    alive = runtime.is_alive(sandbox_id)
    if record.state == EngineState.RUNNING:
        if not alive:
            await lifecycle.revive(sandbox_id)
        elif runtime.is_frozen(sandbox_id):
            await runtime.thaw(sandbox_id)
    elif alive:
        if record.pause_mode == PauseMode.FILESYSTEM:
            await runtime.halt(sandbox_id)
        elif not runtime.is_frozen(sandbox_id):
            await runtime.freeze(sandbox_id)
    elif record.pause_mode != PauseMode.FILESYSTEM:
        await lifecycle.record_lost_memory(sandbox_id)
