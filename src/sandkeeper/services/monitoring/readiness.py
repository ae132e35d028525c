"""Whether the database can be used, answered within a second whatever the database does."""

from __future__ import annotations

import asyncio

from sandkeeper.domain.errors import StoreError
from sandkeeper.services.deps import Deps
from sandkeeper.store.errors import STALLED

WAIT_S = 0.7


class DatabaseProbe:
    """Ask the database, at most one question at a time, and do not wait long for the answer."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store
        self._ping: asyncio.Task[str | None] | None = None

    async def find_problem(self) -> str | None:
        """Return why the database cannot be used; None if it answers and was last written to.

        The heartbeat writes every two seconds, so a failed write is never old.
        """
        if self._ping is None or self._ping.done():
            self._ping = asyncio.create_task(self._read())
        done, _ = await asyncio.wait({self._ping}, timeout=WAIT_S)
        if not done:
            return STALLED
        return self._ping.result() or self._store.database.write_error

    async def close(self) -> None:
        if self._ping is not None:
            self._ping.cancel()
            await asyncio.gather(self._ping, return_exceptions=True)

    async def _read(self) -> str | None:
        try:
            await self._store.ping()
        except StoreError as error:
            return error.message
        return None
