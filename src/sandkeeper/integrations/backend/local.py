"""The backend on a local engine: one that runs already, or one that is started.

An engine started here serves all backends of this process on the same data folder, and stops with
the last of them or with the process. Sandboxes outlive it: the next engine on the folder finds
them, so `connect_backend` works later from another process.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from sandkeeper.common.user_folders import user_data_folder
from sandkeeper.hosting.local_engine import engine_context
from sandkeeper.integrations.backend.contract import BackendConfig
from sandkeeper.integrations.backend.e2b import E2BBackend


class LocalBackend(E2BBackend):
    """One sandbox of the local engine. See `contract`."""

    def __init__(
        self, config: BackendConfig | None = None, *, sandbox_id: str | None = None
    ) -> None:
        super().__init__(config, sandbox_id=sandbox_id)
        self._engine = AsyncExitStack()

    async def _acquire_options(self) -> dict[str, Any]:
        data = self.config.data or user_data_folder() / "engine"
        engine = await self._engine.enter_async_context(engine_context(data))
        return engine.sdk_options()

    async def _release(self) -> None:
        await self._engine.aclose()
