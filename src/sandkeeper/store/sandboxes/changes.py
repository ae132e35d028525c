"""Which sandboxes were written since a position: every write counts, with an event or without.

Triggers note each write in the same transaction, one row for each sandbox. On PostgreSQL the
position is the number of the writing transaction, and transactions become visible out of order; a
reader therefore continues at the oldest one that was still open, and may see a change twice, but
misses none. A note also copies what lists are sorted by and what is counted as stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import text

from sandkeeper.store.database import Database

_SINCE: Final = {
    True: text(
        "SELECT (SELECT coalesce(max(position), 0) FROM sandbox_changes),"
        " (SELECT group_concat(sandbox_id) FROM sandbox_changes WHERE position > :position)"
    ),
    # The upper bound leaves out positions that were restored from another server's dump.
    False: text(
        "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint,"
        " (SELECT string_agg(sandbox_id, ',') FROM sandbox_changes"
        " WHERE position >= :position"
        " AND position < pg_snapshot_xmax(pg_current_snapshot())::text::bigint)"
    ),
}
_FORGET: Final = {
    is_sqlite: text(
        "DELETE FROM sandbox_changes WHERE sandbox_id IN (SELECT sandbox_id FROM sandbox_changes"  # noqa: S608  # Our own words.
        " WHERE removed AND position < (SELECT max(position) FROM sandbox_changes)"
        f" ORDER BY position LIMIT :at_most{'' if is_sqlite else ' FOR UPDATE SKIP LOCKED'})"
    )
    for is_sqlite in (True, False)
}
# Larger than any position: asks only where to begin.
_END: Final = 2**62


@dataclass(frozen=True, slots=True)
class Changes:
    """The sandboxes that were written, and the position to continue at."""

    sandbox_ids: Sequence[str]
    position: int


class ChangeStore:
    """Reads the positions of writes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_position(self) -> int:
        """Return the position from which every later write is found."""
        return (await self.since(_END)).position

    async def since(self, position: int) -> Changes:
        """Return the sandboxes written, or removed, since ``position``."""
        async with self._database.reading() as connection:
            found = await connection.execute(
                _SINCE[self._database.is_sqlite], {"position": position}
            )
            reached, ids = found.one()
        return Changes(ids.split(",") if ids else (), reached)

    async def forget_removed(self, *, at_most: int) -> int:
        """Remove the notes of records that no longer exist; readers have had them for long.

        The newest note stays, because positions on SQLite continue after it.
        """
        async with self._database.writing() as connection:
            statement = _FORGET[self._database.is_sqlite]
            return (await connection.execute(statement, {"at_most": at_most})).rowcount
