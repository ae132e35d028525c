"""Check a sandbox before it is paused for being idle: does something run in it?

The check is a read: it wakes nothing and prolongs nothing. It costs one request per due sandbox
(the list of its commands), and one for all that are due together (their processor use). It is
bounded in time; where a provider cannot answer, the sandbox is paused as if nothing ran.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping

import structlog

from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.work import RunningCommand, Work, observe_work
from sandkeeper.providers.base import Provider, SdkConnectionInfo
from sandkeeper.services.deps import Deps

log = structlog.get_logger(__name__)

# A check takes at most this long. Longer delays the pause of a sandbox that does not answer;
# shorter misses the work of one that is busy.
CHECK_S = 3.0
# Sandboxes that are due within this time share one question about their processor use.
GATHER_S = 0.02
# The provider answers about this many at once.
MEASURED_MAX = 100
# Connections kept; each saves one request at the next check.
CONNECTIONS_MAX = 10_000


class WorkCheck:
    """Find what runs in sandboxes that are due for a pause."""

    def __init__(self, deps: Deps) -> None:
        self._providers = deps.providers
        self._metrics = deps.metrics
        self._clock = deps.clock
        self._connections: OrderedDict[str, SdkConnectionInfo] = OrderedDict()
        self._gathered: dict[Provider, tuple[list[str], asyncio.Task[Mapping[str, float]]]] = {}

    async def find(self, sandbox: Sandbox) -> Work | None:
        """Return what runs in it; None if that cannot be found out."""
        if sandbox.policy.work_max_s <= 0 or sandbox.instance_id is None:
            return None
        provider = self._providers.get(sandbox)
        measuring = asyncio.create_task(self._measure(provider, sandbox.instance_id))
        try:
            async with asyncio.timeout(CHECK_S):
                commands = await self._list_commands(provider, sandbox.instance_id)
                cpu_pct = await measuring
        except (SandkeeperError, TimeoutError) as error:
            self._connections.pop(sandbox.instance_id, None)
            log.info("work_not_seen", sandbox_id=sandbox.id, error=repr(error))
            self._metrics.work_checks.labels("unknown").inc()
            return None
        finally:
            measuring.cancel()
        max_s = sandbox.policy.work_max_s
        found = observe_work(sandbox.work, commands, cpu_pct, now=self._clock(), max_s=max_s)
        counts = found.find_counting(max_s) is not None
        self._metrics.work_checks.labels("work" if counts else "idle").inc()
        return found

    async def _list_commands(self, provider: Provider, instance_id: str) -> list[RunningCommand]:
        access = self._connections.get(instance_id)
        if access is None:
            access = await provider.get_connection_info(instance_id)
            self._connections[instance_id] = access
            while len(self._connections) > CONNECTIONS_MAX:
                self._connections.popitem(last=False)
        self._connections.move_to_end(instance_id)
        return [*await provider.list_commands(access)]

    async def _measure(self, provider: Provider, instance_id: str) -> float | None:
        """Return the processor use in percent, asked together with others; None if unknown."""
        ids, asking = self._gathered.get(provider, ([], None))
        if asking is None or len(ids) >= MEASURED_MAX:
            ids = []
            asking = asyncio.create_task(self._ask(provider, ids))
            self._gathered[provider] = ids, asking
        ids.append(instance_id)
        return (await asyncio.shield(asking)).get(instance_id)

    async def _ask(self, provider: Provider, ids: list[str]) -> Mapping[str, float]:
        await asyncio.sleep(GATHER_S)
        if (gathered := self._gathered.get(provider)) is not None and gathered[0] is ids:
            del self._gathered[provider]
        try:
            async with asyncio.timeout(CHECK_S):
                return await provider.measure_cpu_pct(ids)
        except (SandkeeperError, TimeoutError) as error:
            log.info("processor_use_not_seen", error=repr(error))
            return {}
