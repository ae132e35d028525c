"""Usage history: the gaps of a user, stored while none of their sessions is open."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.decisions.adaptive_timeout import UsageHistory
from sandkeeper.store.database import Database
from sandkeeper.store.tables.sandboxes import SANDBOXES
from sandkeeper.store.tables.sessions import USAGE_HISTORY

_T = USAGE_HISTORY.c


class UsageHistoryStore:
    """Reads and writes of the table of usage histories."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, key: str) -> UsageHistory | None:
        """Return the usage history of this key."""
        async with self._database.reading() as connection:
            return await _find(connection, key)

    async def save(self, history: UsageHistory) -> None:
        """Write the usage history, unless a newer one is stored."""
        replacing = self._database.insert_replacing(
            USAGE_HISTORY, ["key"], ["gaps", "last_active_at"]
        )
        async with self._database.writing() as connection:
            known = await _find(connection, history.key)
            if known is None or known.last_active_at < history.last_active_at:
                await connection.execute(replacing, asdict(history))

    async def load(self, sandbox_id: str, gaps: str) -> None:
        """Give a sandbox the gaps to start with; one that has its own keeps them."""
        lend = update(SANDBOXES).where(SANDBOXES.c.id == sandbox_id, SANDBOXES.c.gaps == "")
        async with self._database.writing() as connection:
            await connection.execute(lend.values(gaps=gaps))


async def _find(connection: AsyncConnection, key: str) -> UsageHistory | None:
    row = (await connection.execute(select(USAGE_HISTORY).where(_T.key == key))).mappings().first()
    return None if row is None else UsageHistory(**row)
