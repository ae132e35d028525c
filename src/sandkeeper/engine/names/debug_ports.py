"""The ports that clients with `E2B_DEBUG=true` expect on this machine, and the sandbox behind them.

Such a client creates nothing. It assumes one sandbox, on whose envd it finds at port 49983 without
a token. So the first request creates that sandbox, and later ones use it.
"""

from __future__ import annotations

import asyncio

from sandkeeper.engine.sandboxes.isolation import IsolationPolicy
from sandkeeper.engine.sandboxes.lifecycle import SandboxLifecycle
from sandkeeper.engine.sandboxes.model import RUN_MAX_S, CreateRequest
from sandkeeper.engine.sandboxes.records import EngineState, SandboxRecord
from sandkeeper.engine.templates.catalogue import TemplateCatalog

API_PORT = 3000
VOLUMES_PORT = 8080
SANDBOX_PORTS = (49983, 49999)
"""Envd and the code interpreter."""
DEBUG_PORTS = (API_PORT, VOLUMES_PORT, *SANDBOX_PORTS)
TEMPLATE = "code-interpreter-v1"
_MARK = {"sandkeeper": "debug"}


class DebugSandbox:
    """Finds the sandbox of debug clients, and creates or resumes it where it has to."""

    def __init__(
        self, lifecycle: SandboxLifecycle, catalogue: TemplateCatalog, isolation: IsolationPolicy
    ) -> None:
        self._lifecycle = lifecycle
        self._catalogue = catalogue
        self._isolation = isolation
        self._known: str | None = None
        self._lock = asyncio.Lock()

    async def find(self) -> SandboxRecord:
        """Return it running. Raises EngineError if it cannot be created."""
        async with self._lock:
            record = self._look()
            if record is None:
                record = await self._create()
            elif record.state == EngineState.PAUSED:
                record, _ = await self._lifecycle.connect(record.id, RUN_MAX_S)
            self._known = record.id
            return record

    def _look(self) -> SandboxRecord | None:
        entry = self._known and self._lifecycle.registry.find_entry(self._known)
        if entry and not entry.is_hidden:
            return entry.record
        marked = (one for one in self._lifecycle.list_records() if one.metadata == _MARK)
        return next(marked, None)

    async def _create(self) -> SandboxRecord:
        origin = self._catalogue.resolve(TEMPLATE)
        return await self._lifecycle.create(
            CreateRequest(
                origin=origin,
                timeout_s=RUN_MAX_S,
                auto_pause=True,
                auto_resume=True,
                metadata=dict(_MARK),
                isolation=self._isolation.choose(origin.template, origin.blueprint),
            )
        )
