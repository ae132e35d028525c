"""The engine's background work: end runs on time, sample metrics, repair, collect garbage.

All of it is level-triggered: each pass acts on the current state, so the next pass makes up for one
that failed or was missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from sandkeeper.engine.images.store import remove_old_blobs
from sandkeeper.engine.runtime.contract import NotAliveError, RuntimeFaultError
from sandkeeper.engine.runtime.egress.names import has_names
from sandkeeper.engine.sandboxes.events import EventLog
from sandkeeper.engine.sandboxes.lifecycle import SandboxLifecycle
from sandkeeper.engine.sandboxes.records import EngineState, PauseMode
from sandkeeper.engine.sandboxes.registry import EVICTION_POLL_S

_log = logging.getLogger("sandkeeper.engine")

SAMPLE_S = 5.0
WATCH_S = 1.0
RESOLVE_S = 15.0  # How long a new address of a name in an allow list stays unreachable.
HIBERNATE_S = 1.0
COLLECT_GARBAGE_S = 30.0
PRUNE_S = 3600.0
_ENDINGS_AT_ONCE = 16  # More would crowd out requests; fewer would make a mass expiry slow.
_RETRY_S = 5.0


class Maintenance:
    """The tasks of one engine that run until it ends."""

    def __init__(
        self, lifecycle: SandboxLifecycle, event_log: EventLog, hibernate_after_s: float | None
    ) -> None:
        self._lifecycle = lifecycle
        self._hibernate_after_s = hibernate_after_s
        self._registry = lifecycle.registry
        self._event_log = event_log
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._evict())
            tasks.create_task(_repeat(SAMPLE_S, self._sample))
            tasks.create_task(_repeat(WATCH_S, self._watch))
            tasks.create_task(_repeat(RESOLVE_S, self._resolve_names))
            tasks.create_task(_repeat(COLLECT_GARBAGE_S, self._collect_garbage))
            if self._hibernate_after_s is not None:
                tasks.create_task(_repeat(HIBERNATE_S, self._hibernate))
            tasks.create_task(_repeat(PRUNE_S, lambda: self._event_log.prune(time.time())))

    async def _evict(self) -> None:
        """End each run on time: sleep until the earliest end or a change."""
        while True:
            self._registry.changed.clear()
            now = time.time()
            earliest = now + EVICTION_POLL_S
            for sandbox_id, entry in self._registry.list_entries():
                if not entry.is_running:
                    continue
                end_at = max(entry.record.end_at, self._not_before.get(sandbox_id, 0))
                if end_at > now:
                    earliest = min(earliest, end_at)
                elif sandbox_id not in self._ending and len(self._ending) < _ENDINGS_AT_ONCE:
                    self._ending[sandbox_id] = asyncio.create_task(self._end(sandbox_id))
            try:
                # Not `wait_for`: in Python 3.11 it can swallow a cancellation that meets a change.
                async with asyncio.timeout(max(0.001, earliest - time.time())):
                    await self._registry.changed.wait()
            except TimeoutError:
                continue

    async def _end(self, sandbox_id: str) -> None:
        try:
            await self._lifecycle.expire(sandbox_id)
            self._not_before.pop(sandbox_id, None)
        except Exception:  # noqa: BLE001 - any failure must not keep a run alive for good
            _log.exception("a sandbox could not be ended on time; trying again")
            self._not_before[sandbox_id] = time.time() + _RETRY_S
        finally:
            self._ending.pop(sandbox_id, None)
            self._registry.changed.set()

    async def _sample(self) -> None:
        """Measure every running sandbox."""
        for sandbox_id, entry in self._registry.list_entries():
            if not entry.takes_traffic:
                continue
            try:
                usage = await self._lifecycle.runtime.usage(sandbox_id)
            except RuntimeFaultError:
                continue
            entry.metrics.add(time.time(), usage)

    async def _resolve_names(self) -> None:
        """Allow the addresses that the names in allow lists have now."""
        for sandbox_id, entry in self._registry.list_entries():
            if entry.takes_traffic and has_names(entry.record.allow_out):
                try:
                    await self._lifecycle.refresh_names(sandbox_id)
                except RuntimeFaultError:
                    _log.exception("the allow list of %s could not be resolved", sandbox_id)

    async def _watch(self) -> None:
        """Restart from their disks the sandboxes whose first process ended unexpectedly."""
        runtime = self._lifecycle.runtime
        for sandbox_id, entry in self._registry.list_entries():
            gone = entry.record.state == EngineState.RUNNING and not runtime.is_alive(sandbox_id)
            if gone and entry.transition is None:
                _log.warning("the processes of %s ended; starting it from its disk", sandbox_id)
                await self._lifecycle.revive(sandbox_id)
        await self._lifecycle.repair_egress()

    async def _hibernate(self) -> None:
        """Move the memory of sandboxes that have been paused for long to swap, one by one."""
        assert self._hibernate_after_s is not None
        latest = time.time() - self._hibernate_after_s
        for sandbox_id, entry in self._registry.list_entries():
            record = entry.record
            is_due = record.pause_mode == PauseMode.FULL and record.end_at <= latest
            if not is_due or entry.transition or entry.hibernated == record.execution_id:
                continue
            with contextlib.suppress(NotAliveError):
                moved = await self._lifecycle.runtime.move_to_swap(sandbox_id)
                entry.hibernated = record.execution_id
                _log.info("%s sleeps: %d MB of its memory are in swap", sandbox_id, moved >> 20)

    async def _collect_garbage(self) -> None:
        """Remove what no record names, and restore the packet filter."""
        await self._lifecycle.runtime.guard()
        await sweep(self._lifecycle)


async def sweep(lifecycle: SandboxLifecycle) -> None:
    """Halt sandboxes and delete disks and layers that no record names."""
    data_dir, runtime = lifecycle.data_dir, lifecycle.runtime

    def is_stray(name: str) -> bool:
        return name not in lifecycle.registry and not data_dir.is_reserved(name)

    for sandbox_id in runtime.living():
        if is_stray(sandbox_id):
            await runtime.halt(sandbox_id)
    for folder in await asyncio.to_thread(lambda: list(data_dir.sandboxes.iterdir())):
        if is_stray(folder.name):
            await runtime.halt(folder.name)
            await runtime.discard(folder)
    await lifecycle.sweep_layers()
    await asyncio.to_thread(remove_old_blobs, data_dir, time.time())


async def _repeat(period_s: float, work: Callable[[], Awaitable[None]]) -> None:
    """Run periodically; a failure is logged, and the next period retries."""
    while True:
        await asyncio.sleep(period_s)
        try:
            await work()
        except Exception:  # noqa: BLE001 - one failed pass must not end the task
            _log.exception("a maintenance pass failed")
