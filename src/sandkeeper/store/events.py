"""The event log: what happened, in the order in which it was committed.

Numbers increase strictly and become visible in order on both databases: a reader that has seen
``n`` has seen everything below ``n``. So a reader only needs the last number it saw. SQLite has one
writer. On PostgreSQL one transaction at a time assigns numbers, under a lock; the lock, the rows
and the commit are one message to the server, so no replica can hold the lock while it stands still.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg  # type: ignore[import-untyped]  # It ships no types.
import orjson
from sqlalchemy import BigInteger, ColumnElement, func, insert, or_, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.common.tracing import TRACING
from sandkeeper.domain.events import Event, render_data
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.store.cooperative import yielding
from sandkeeper.store.database import Database
from sandkeeper.store.tables.sandboxes import EVENTS
from sandkeeper.store.types import UtcMillis, to_epoch_ms

CHANNEL: Final = "sandkeeper_events"
LIMIT_MAX: Final = 1000
SIFTED_MAX: Final = 20_000
"""Entries that one search reads. More hold a connection for longer than a page is worth; fewer need
more pages to reach something rare."""
CLOSE_S: Final = 2.0
"""How long to wait for a polite end of the listening connection."""
_ORDER_LOCK: Final = 0x5A4D_0001

_TYPES: Final = {
    column.name: "bigint" if isinstance(column.type, UtcMillis | BigInteger) else "text"
    for column in EVENTS.c
    if column.name != "seq"
}
_COMMIT_ROWS: Final = f"""
SELECT pg_advisory_xact_lock({_ORDER_LOCK});
INSERT INTO events ({", ".join(_TYPES)})
SELECT {", ".join(_TYPES)} FROM ROWS FROM (json_to_recordset('%s')
AS ({", ".join(f"{name} {kind}" for name, kind in _TYPES.items())})) WITH ORDINALITY
ORDER BY ordinality;
"""  # noqa: S608  # Our own names; the value is quoted.


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One entry of the log. ``at`` is when it happened, ``recorded_at`` when we recorded it."""

    seq: int
    type: str
    sandbox_id: str
    owner: Owner
    at: datetime
    recorded_at: datetime
    version: int
    actor: str
    reason: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Filters of the log, joined by "and"; an empty one filters nothing.

    ``since`` and ``until`` are compared with when an entry was recorded, by which the log is in
    order. ``text`` finds a part of the reason, the data or the owner's id, in either case.
    """

    types: tuple[str, ...] = ()
    owner: Owner | None = None
    actor: str = ""
    text: str = ""
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_sifting(self) -> bool:
        """Return True if entries are read that are not returned."""
        return bool(self.types or self.owner or self.actor or self.text)


@dataclass(frozen=True, slots=True)
class EventPage:
    """Entries, newest first, and the number before which the next page begins; None at the end."""

    events: list[LoggedEvent]
    next_before: int | None


class EventStore:
    """Read the log, and notify this process and other replicas that it grew."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._has_notices = not database.is_sqlite and not database.is_pooled
        self._listeners: list[Callable[[], None]] = []

    def on_append(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after each commit of this process that wrote sandboxes or events.

        Return the function that removes the listener. A listener must be quick and must not raise.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def append(
        self,
        connection: AsyncConnection,
        sandbox: Sandbox,
        events: Sequence[Event],
        *,
        now: datetime,
    ) -> None:
        """Write events into the caller's transaction, and end it: nothing may be written after."""
        await self.append_all(connection, [(sandbox, events)], now=now)

    async def append_all(
        self,
        connection: AsyncConnection,
        changes: Sequence[tuple[Sandbox, Sequence[Event]]],
        *,
        now: datetime,
    ) -> None:
        """Write the events of several sandboxes, as ``append`` does for one."""
        if not any(events for _, events in changes):
            return
        trace_id = TRACING.find_trace_id()
        traced = {} if trace_id is None else {"trace_id": trace_id}
        rows = [
            {
                "sandbox_id": event.sandbox_id,
                "owner_kind": event.owner.kind.value,
                "owner_id": event.owner.id,
                "type": event.type,
                "at": event.at,
                "recorded_at": now,
                "version": sandbox.version,
                "actor": event.actor,
                "reason": event.reason,
                "data": orjson.dumps(render_data(event) | traced).decode(),
            }
            for sandbox, events in changes
            for event in events
        ]
        if self._database.is_sqlite:
            await connection.execute(insert(EVENTS), rows)
        else:
            await _commit_rows(connection, rows)

    def announce_locally(self) -> None:
        """Notify this process's listeners; called after the commit."""
        for listener in tuple(self._listeners):
            listener()

    async def after(self, seq: int, *, limit: int = LIMIT_MAX) -> list[LoggedEvent]:
        """Return events numbered above ``seq``, oldest first, at most ``limit``."""
        statement = (
            select(EVENTS)
            .where(EVENTS.c.seq > seq)
            .order_by(EVENTS.c.seq)
            .limit(min(limit, LIMIT_MAX))
        )
        return await self._read(statement)

    async def of(
        self, sandbox_id: str, *, before: int | None = None, after: int = 0, limit: int = 100
    ) -> list[LoggedEvent]:
        """Return one sandbox's events numbered above ``after``, newest first.

        ``before`` is the last number of the previous page.
        """
        statement = select(EVENTS).where(EVENTS.c.sandbox_id == sandbox_id, EVENTS.c.seq > after)
        if before is not None:
            statement = statement.where(EVENTS.c.seq < before)
        return await self._read(
            statement.order_by(EVENTS.c.seq.desc()).limit(min(limit, LIMIT_MAX))
        )

    async def find_last(self, sandbox_id: str, kind: str) -> LoggedEvent | None:
        """Return the newest event of this type of one sandbox."""
        statement = select(EVENTS).where(EVENTS.c.sandbox_id == sandbox_id, EVENTS.c.type == kind)
        found = await self._read(statement.order_by(EVENTS.c.seq.desc()).limit(1))
        return found[0] if found else None

    async def latest(
        self, *, types: Sequence[str] = (), before: int | None = None, limit: int = 100
    ) -> list[LoggedEvent]:
        """Return the fleet's newest events, newest first."""
        statement = select(EVENTS)
        if types:
            statement = statement.where(EVENTS.c.type.in_(list(types)))
        if before is not None:
            statement = statement.where(EVENTS.c.seq < before)
        return await self._read(
            statement.order_by(EVENTS.c.seq.desc()).limit(min(limit, LIMIT_MAX))
        )

    async def search(
        self, query: EventFilter, *, before: int | None = None, limit: int = 100
    ) -> EventPage:
        """Return the newest entries that match, of at most ``SIFTED_MAX`` that are read.

        A page may therefore be short, even empty, and have a next one.
        """
        limit = min(limit, LIMIT_MAX)
        last = await self._find_seq_at(query.until) if query.until is not None else None
        if last is not None:
            before = last + 1 if before is None else min(before, last + 1)
        read = SIFTED_MAX if query.is_sifting else limit
        window = select(EVENTS).order_by(EVENTS.c.seq.desc()).limit(read)
        if before is not None:
            window = window.where(EVENTS.c.seq < before)
        if query.since is not None:
            window = window.where(EVENTS.c.seq > await self._find_seq_at(query.since))
        rows = window.subquery()
        async with self._database.reading() as connection:
            span = select(func.min(rows.c.seq), func.count())
            first, count = (await connection.execute(span)).one()
        found = await self._read(
            select(rows).where(*_match(rows.c, query)).order_by(rows.c.seq.desc()).limit(limit)
        )
        if len(found) == limit:
            return EventPage(found, found[-1].seq)
        return EventPage(found, int(first) if count == read else None)

    async def _find_seq_at(self, at: datetime) -> int:
        """Return the last number recorded before a time; 0 if there is none.

        Numbers are recorded in order, so halving finds it without an index by time.
        """
        low, high = 0, await self.latest_seq() + 1
        async with self._database.reading() as connection:
            while high - low > 1:
                middle = (low + high) // 2
                nearest = (
                    select(EVENTS.c.recorded_at)
                    .where(EVENTS.c.seq <= middle)
                    .order_by(EVENTS.c.seq.desc())
                    .limit(1)
                )
                recorded_at = await connection.scalar(nearest)
                if recorded_at is None or recorded_at < at:
                    low = middle
                else:
                    high = middle
        return low

    async def latest_seq(self) -> int:
        """Return the number of the newest event, 0 before the first."""
        async with self._database.reading() as connection:
            return int(await connection.scalar(select(func.max(EVENTS.c.seq))) or 0)

    async def notify(self, payload: str) -> None:
        """Send a notice to all replicas on PostgreSQL; no-op on SQLite and behind PgBouncer.

        Best effort. Batch the calls: such commits wait for each other, and readers also poll
        slowly.
        """
        if not self._has_notices:
            return
        async with self._database.writing() as connection:
            await connection.execute(
                text("SELECT pg_notify(:channel, :payload)"),
                {"channel": CHANNEL, "payload": payload},
            )

    @asynccontextmanager
    async def listening(self, listener: Callable[[str], None]) -> AsyncIterator[None]:
        """Call ``listener`` with each notice of any replica while the context is open.

        On SQLite there are none, nor behind PgBouncer, where no session is ours. A lost connection
        is not repaired here: the slow poll covers it, and the caller opens the context again.
        """
        if not self._has_notices:
            yield
            return
        connection = await self._database.connect_directly()

        def on_notice(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            listener(str(payload))

        try:
            await connection.add_listener(CHANNEL, on_notice)
            yield
        finally:
            try:
                await connection.close(timeout=CLOSE_S)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()

    async def _read(self, statement: Any) -> list[LoggedEvent]:
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement)).mappings()
            return [_from_row(row) async for row in yielding(rows)]


def _match(columns: Any, query: EventFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if query.types:
        found.append(columns.type.in_(query.types))
    if query.owner is not None:
        found.append(columns.owner_kind == query.owner.kind.value)
        found.append(columns.owner_id == query.owner.id)
    if query.actor:
        found.append(_contains(columns.actor, query.actor))
    if query.text:
        places = (columns.reason, columns.data, columns.owner_id)
        found.append(or_(*(_contains(place, query.text) for place in places)))
    return found


def _contains(column: ColumnElement[str], part: str) -> ColumnElement[bool]:
    return column.icontains(part, autoescape=True)


async def _commit_rows(connection: AsyncConnection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows with their numbers and commit, in one message to PostgreSQL.

    The driver then believes to be in the same transaction; it is a new one, and empty.
    """
    given = [
        {
            name: to_epoch_ms(value) if isinstance(value, datetime) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    statements = _COMMIT_ROWS % orjson.dumps(given).decode().replace("'", "''")
    driver = (await connection.get_raw_connection()).driver_connection
    assert driver is not None
    if driver.is_in_transaction():
        statements += "COMMIT AND CHAIN"
    try:
        await driver.execute(statements)
    except BaseException:
        # Its state is not known, and SQLAlchemy did not see the error.
        await connection.invalidate()
        raise


def _from_row(row: Mapping[Any, Any]) -> LoggedEvent:
    return LoggedEvent(
        seq=row["seq"],
        type=row["type"],
        sandbox_id=row["sandbox_id"],
        owner=Owner(OwnerKind(row["owner_kind"]), row["owner_id"]),
        at=row["at"],
        recorded_at=row["recorded_at"],
        version=row["version"],
        actor=row["actor"],
        reason=row["reason"],
        data=orjson.loads(row["data"]),
    )
