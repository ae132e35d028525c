"""Find sandboxes by a part of their text, or by their states.

The text consists of id, instance, owner, metadata and tenant. It begins each of them after two line
breaks, so that a search of one or two characters, which have no trigram of their own, finds
beginnings by the same index. Letters match in either case.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, Select, TextClause, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.store.database import Database
from sandkeeper.store.sandboxes.query import SandboxQuery
from sandkeeper.store.tables.sandboxes import SANDBOX_SEARCH, SANDBOXES

MATCHES_MAX: Final = 10_000
"""Matches that are read before they are sorted. More are so frequent that reading the sandboxes in
their order finds a page of them soon. Higher makes a frequent word or state slower; lower a rare
one."""

_GAP: Final = "\n\n"
_TRIGRAM: Final = 3
_T = SANDBOX_SEARCH.c
_HAS_INDEX: Final = {
    True: text("SELECT count(*) FROM sqlite_master WHERE name = 'sandbox_search_index'"),
    False: text("SELECT count(*) FROM pg_indexes WHERE indexname = 'ix_sandbox_search_text'"),
}
_MATCH: Final = text(
    "SELECT sandbox_id FROM sandbox_search WHERE number IN"
    " (SELECT rowid FROM sandbox_search_index WHERE sandbox_search_index MATCH :phrase"
    " LIMIT :at_most)"
)


class Search:
    """Searches of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_indexed: bool | None = None

    async def list_conditions(
        self, connection: AsyncConnection, query: SandboxQuery
    ) -> list[ColumnElement[bool]]:
        """Return the conditions of a query that no index has together with its order.

        What few rows match is read first. What many match is tested for each row of the list, with
        an expression that no planner takes for a reason to read them all.
        """
        found: list[ColumnElement[bool]] = []
        if query.search:
            part = query.search if len(query.search) >= _TRIGRAM else _GAP + query.search
            few = await self._find_few(connection, await self._render(connection, part))
            text_of_row = select(_contains(part)).where(_T.sandbox_id == SANDBOXES.c.id)
            found.append(text_of_row.scalar_subquery() if few is None else few)
        if query.has_many_states:
            states = [state.value for state in query.states]
            wanted = select(SANDBOXES.c.id).where(SANDBOXES.c.state.in_(states))
            few = await self._find_few(connection, wanted.limit(MATCHES_MAX + 1))
            hidden = func.coalesce(SANDBOXES.c.state, "")
            found.append(hidden.in_(states) if few is None else few)
        return found

    async def _find_few(
        self, connection: AsyncConnection, statement: Select[Any] | TextClause
    ) -> ColumnElement[bool] | None:
        """Return the condition to be one of these rows; None if they are many."""
        found = (await connection.scalars(statement)).all()
        return self._database.in_list(SANDBOXES.c.id, found) if len(found) <= MATCHES_MAX else None

    async def has_index(self, connection: AsyncConnection) -> bool:
        """Return False if a search reads every text, because the database has no trigrams."""
        if self._is_indexed is None:
            found = await connection.scalar(_HAS_INDEX[self._database.is_sqlite])
            self._is_indexed = bool(found)
        return self._is_indexed

    async def _render(self, connection: AsyncConnection, part: str) -> Select[Any] | TextClause:
        at_most = MATCHES_MAX + 1
        if self._database.is_sqlite and await self.has_index(connection):
            phrase = '"{}"'.format(part.replace('"', '""'))
            return _MATCH.bindparams(phrase=phrase, at_most=at_most)
        return select(_T.sandbox_id).where(_contains(part)).limit(at_most)


def _contains(part: str) -> ColumnElement[bool]:
    for special in ("\\", "%", "_"):
        part = part.replace(special, f"\\{special}")
    return _T.text.ilike(f"%{part}%", escape="\\")
