"""A replica without its API: services over a real database and any provider, in this process or in
one of its own (`python -m support.sweep_replica URL NAME FOLDER`), so that a test can kill it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sandkeeper.background.scheduler import Scheduler
from sandkeeper.background.tasks import make_sweep
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.tasks import TaskName
from sandkeeper.providers.base import Instance, InstanceState
from sandkeeper.services.composition import Overrides, Services
from sandkeeper.services.deps import Deps
from sandkeeper.store import open_store
from sandkeeper.testing.providers import SimulatedProvider
from support.deps import make_deps

QUICK = Policy(idle_timeout_s=60, newborn_grace_s=0, woken_grace_s=0)


class Replica(Services):
    """The shipped services of one replica, and its sweep."""

    def __init__(self, deps: Deps, **overrides: Any) -> None:
        overrides.setdefault("verify_retries_s", (0.01, 0.02, 0.04))
        super().__init__(deps, Overrides(**overrides))
        self.store = deps.store
        self.clock = deps.clock
        self.metrics = deps.metrics
        self.sweep = make_sweep(self)
        self.scheduler = Scheduler()
        self.scheduler.register(TaskName.IDLE_SWEEP, self.sweep.run, period_s=30)

    async def create(self, project: str, policy: Policy = QUICK, **launch: Any) -> Sandbox:
        made = await self.creation.create(
            Owner.project(project), launch=Launch(**launch), policy=policy, actor="test"
        )
        return made.sandbox

    async def get(self, sandbox: Sandbox) -> Sandbox:
        return await self.store.sandboxes.get(sandbox.id)

    async def list_types(self, sandbox: Sandbox) -> list[str]:
        """Return the kinds of its events, oldest first."""
        return [event.type for event in reversed(await self.store.events.of(sandbox.id))]


class NotingProvider(SimulatedProvider):
    """Pauses anything after a moment, and notes each call in a file that processes share."""

    def __init__(self, notes: Path) -> None:
        super().__init__(latency_s=0.05)
        self._notes = notes

    async def pause(self, instance_id: str) -> Instance:
        with self._notes.open("a") as notes:
            notes.write(f"{instance_id}\n")
        await self._wait_latency()
        return Instance(instance_id, InstanceState.PAUSED, datetime.now(UTC))


async def run_replica(url: str, name: str, folder: Path) -> None:
    """Sweep until killed."""
    async with open_store(url, migrate=False) as store:
        provider = NotingProvider(folder / "pauses")
        replica = Replica(make_deps(store, provider, replica=name, lease_s=8, keep_files=False))
        (folder / f"{name}.ready").write_text(str(os.getpid()))
        async with replica.scheduler:
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run_replica(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
