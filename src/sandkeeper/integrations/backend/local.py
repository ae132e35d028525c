"""The same backend on this machine: an engine that runs already, or one that is started for it.

An engine that was started here serves every backend of this process that names its data folder, and
ends with the last of them, or with the process. Sandboxes outlive it: the next engine over the
folder takes them back, so `connect_backend` works from another process, later.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from sandkeeper.hosting.local_engine import engine_context
from sandkeeper.integrations.backend.contract import BackendConfig
from sandkeeper.integrations.backend.e2b import E2BBackend
from sandkeeper.settings import user_data_folder


class LocalBackend(E2BBackend):
    """One sandbox of the local engine. The contract is in `contract`."""

    def __init__(
        self, config: BackendConfig | None = None, *, sandbox_id: str | None = None
    ) -> None:
        super().__init__(config, sandbox_id=sandbox_id)
        self._loan = AsyncExitStack()

    async def _find_options(self) -> dict[str, Any]:
        data = self.config.data or user_data_folder() / "engine"
        engine = await self._loan.enter_async_context(engine_context(data))
        return engine.sdk_options()

    async def _release(self) -> None:
        await self._loan.aclose()
