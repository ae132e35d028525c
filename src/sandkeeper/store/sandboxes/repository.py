"""The rows of the sandboxes. Every write is guarded: by version, by claim, or by being newer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, case, false, func, insert, literal, or_, select, update
from sqlalchemy.engine import RowMapping
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate

from sandkeeper.domain.activity import Touch
from sandkeeper.domain.decisions.wake import Wake
from sandkeeper.domain.errors import (
    SandboxExistsError,
    SandboxNotFoundError,
    VersionConflictError,
)
from sandkeeper.domain.events import Event
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.domain.states import State
from sandkeeper.store.cooperative import yielding
from sandkeeper.store.database import Database
from sandkeeper.store.deliveries import Delivery, DeliveryStore
from sandkeeper.store.events import EventStore
from sandkeeper.store.sandboxes.activity_sql import render_activity_rows, render_activity_update
from sandkeeper.store.sandboxes.conditions import is_due, is_unclaimed
from sandkeeper.store.sandboxes.mapping import from_row, from_rows, to_row
from sandkeeper.store.sandboxes.query import (
    LISTED,
    ListedRow,
    Page,
    RowPage,
    SandboxQuery,
    Sort,
    page_limit,
    render_cursor,
    render_selects,
)
from sandkeeper.store.sandboxes.search import Search
from sandkeeper.store.sandboxes.update_sql import UPDATE_IF_UNCHANGED, bind_row
from sandkeeper.store.tables.sandboxes import SANDBOXES
from sandkeeper.store.types import UtcMillis
from sandkeeper.store.wakes.repository import write_wake

_T = SANDBOXES.c
TOUCH_BATCH_MAX: Final = 1000
"""Rows per statement. Higher delays other writers; lower costs more commits."""


UNCERTAIN: Final = (State.STARTING.value, State.UNKNOWN.value)


class SandboxStore:
    """Reads and writes of the table of sandboxes."""

    def __init__(self, database: Database, events: EventStore, deliveries: DeliveryStore) -> None:
        self._database = database
        self._events = events
        self._deliveries = deliveries
        self._search = Search(database)

    # Reads.

    async def get(self, sandbox_id: str) -> Sandbox:
        """Return the sandbox with this id; raise SandboxNotFoundError."""
        found = await self.find(sandbox_id)
        if found is None:
            raise SandboxNotFoundError(sandbox_id=sandbox_id)
        return found

    async def find(self, sandbox_id: str) -> Sandbox | None:
        """Return the sandbox with this id."""
        return await self._find(_T.id == sandbox_id)

    async def get_by_owner(self, owner: Owner) -> Sandbox:
        """Return the owner's sandbox; raise SandboxNotFoundError."""
        found = await self.find_by_owner(owner)
        if found is None:
            raise SandboxNotFoundError(owner=str(owner))
        return found

    async def find_by_owner(self, owner: Owner) -> Sandbox | None:
        """Return the owner's sandbox: there is at most one."""
        return await self._find(and_(_T.owner_kind == owner.kind.value, _T.owner_id == owner.id))

    async def find_owner_by_preview_name(self, name: str) -> Owner | None:
        """Return the owner with this name in host names, if it is not its id."""
        statement = select(_T.owner_kind, _T.owner_id).where(_T.preview_name == name)
        async with self._database.reading() as connection:
            row = (await connection.execute(statement)).first()
        return None if row is None else Owner(OwnerKind(row[0]), row[1])

    async def find_by_instance(self, instance_id: str) -> Sandbox | None:
        """Return the sandbox whose current instance this is."""
        return await self._find(_T.instance_id == instance_id)

    async def list_by_id(self, sandbox_ids: Sequence[str]) -> Sequence[Sandbox]:
        """Return the existing sandboxes with these ids, in any order; pass at most hundreds."""
        return await self._list(self._database.in_list(_T.id, sandbox_ids))

    async def list_by_owner(self, owners: Sequence[Owner]) -> Sequence[Sandbox]:
        """Return the sandboxes of these owners, in any order; pass at most hundreds."""
        ids: dict[OwnerKind, list[str]] = {}
        for owner in owners:
            ids.setdefault(owner.kind, []).append(owner.id)
        of_kind = (
            and_(_T.owner_kind == kind.value, self._database.in_list(_T.owner_id, some))
            for kind, some in ids.items()
        )
        return await self._list(or_(false(), *of_kind))

    async def list(self, query: SandboxQuery, cursor: str | None = None) -> Page:
        """Return one page of a filtered, sorted list."""
        rows, more = await self._list_page(query, cursor, tuple(_T))
        found = [from_row(row, self._database.keyring) async for row in yielding(rows)]
        return Page(found, more)

    async def list_rows(self, query: SandboxQuery, cursor: str | None = None) -> RowPage:
        """Return one page of a list without the records themselves."""
        found, more = await self._list_page(query, cursor, LISTED)
        rows = [
            ListedRow(row["id"], Owner(OwnerKind(row["owner_kind"]), row["owner_id"]), *rest)
            for row in found
            for rest in [[row[column.name] for column in LISTED[3:]]]
        ]
        return RowPage(rows, more)

    async def _list_page(
        self, query: SandboxQuery, cursor: str | None, columns: Sequence[ColumnElement[Any]]
    ) -> tuple[Sequence[RowMapping], str | None]:
        """Return the rows of one page, and the cursor of the next."""
        limit = page_limit(query)
        rows: list[RowMapping] = []
        async with self._database.reading() as connection:
            found = await self._search.list_conditions(connection, query)
            for statement in render_selects(query, cursor, found=found, columns=columns):
                # One extra row, to detect another page.
                result = await connection.execute(statement.limit(limit + 1 - len(rows)))
                rows += result.mappings()
                if len(rows) > limit:
                    return rows[:limit], render_cursor(rows[limit - 1])
        return rows, None

    async def count(self, query: SandboxQuery, *, at_most: int) -> int:
        """Return how many sandboxes match, at most ``at_most``."""
        some = replace(query, sort=Sort.CREATED)
        async with self._database.reading() as connection:
            found = await self._search.list_conditions(connection, some)
            statement = render_selects(some, None, found=found, columns=(_T.id,))[0]
            matches = statement.order_by(None).limit(at_most).subquery()
            counted = await connection.scalar(select(func.count()).select_from(matches))
            return int(counted or 0)

    async def list_live(
        self,
        *,
        provider: str,
        region: str | None = None,
        after_id: str = "",
        limit: int = 1000,
    ) -> Sequence[Sandbox]:
        """Return records whose instance may exist, by id; the last id starts the next page."""
        live = [state.value for state in State if state.is_live]
        statement = select(SANDBOXES).where(
            _T.state.in_(live), _T.provider == provider, _T.id > after_id
        )
        if region is not None:
            statement = statement.where(_T.region == region)
        async with self._database.reading() as connection:
            rows = await connection.execute(statement.order_by(_T.id).limit(limit))
            return await from_rows(rows.mappings(), self._database.keyring)

    async def has_search_index(self) -> bool:
        """Return False if a search reads every text, because the database has no trigrams."""
        async with self._database.reading() as connection:
            return await self._search.has_index(connection)

    async def find_next_due_at(self, *, now: datetime) -> datetime | None:
        """Return the earliest deadline of unclaimed sandboxes: until then a sweep finds nothing."""
        statement = (
            select(_T.next_check_at)
            .where(_T.next_check_at.is_not(None), is_unclaimed(now))
            .order_by(_T.next_check_at)
            .limit(1)
        )
        async with self._database.reading() as connection:
            found: datetime | None = await connection.scalar(statement)
            return found

    # Writes.

    async def insert(self, sandbox: Sandbox, events: Sequence[Event] = ()) -> Sandbox:
        """Add a record; raise SandboxExistsError if its owner (or instance) already has one."""
        row = to_row(sandbox, self._database.keyring)
        try:
            async with self._database.writing() as connection:
                await connection.execute(insert(SANDBOXES).values(**row))
                await self._events.append(connection, sandbox, events, now=sandbox.updated_at)
        except IntegrityError as error:
            raise SandboxExistsError(owner=str(sandbox.owner)) from error
        self._events.announce_locally()
        return sandbox

    async def save(
        self,
        sandbox: Sandbox,
        events: Sequence[Event] = (),
        *,
        expect_version: int,
        now: datetime,
        delivery: Delivery | None = None,
        event_id: str | None = None,
        wake: Wake | None = None,
    ) -> Sandbox:
        """Write the record without its activity, its events, delivery and wake, or nothing.

        Raise VersionConflictError when the row has another version than ``expect_version``: read
        again and decide again. ``event_id`` marks a provider's event as absorbed in the same
        transaction. Return the record with its new version and with the activity of the row.
        """
        saved = sandbox.evolve(version=expect_version + 1, updated_at=now)
        row = bind_row(saved, self._database.keyring) | {"expected": expect_version}
        try:
            async with self._database.writing() as connection:
                written = (await connection.execute(UPDATE_IF_UNCHANGED, row)).mappings().first()
                if written is None:
                    raise VersionConflictError(sandbox_id=sandbox.id, expected=expect_version)
                if delivery is not None:
                    await self._deliveries.write(connection, delivery)
                if event_id is not None:
                    await self._deliveries.mark(connection, [event_id], now)
                if wake is not None:
                    await write_wake(connection, wake)
                await self._events.append(connection, saved, events, now=now)
        except IntegrityError as error:
            raise SandboxExistsError(
                "Another record has this instance already.", instance_id=sandbox.instance_id
            ) from error
        self._events.announce_locally()
        return from_row(written, self._database.keyring)

    async def append_events(
        self, sandbox: Sandbox, events: Sequence[Event], *, now: datetime
    ) -> None:
        """Publish something that changed no field of the record."""
        async with self._database.writing() as connection:
            await self._events.append(connection, sandbox, events, now=now)
        self._events.announce_locally()

    async def claim(
        self,
        sandbox_id: str,
        *,
        kind: ClaimKind,
        holder: str,
        until: datetime,
        now: datetime,
        renew: bool = False,
    ) -> Sandbox | None:
        """Claim the row until ``until``; None if it is already claimed or does not exist.

        With ``renew`` the current holder may extend its claim or change its kind, also an expired
        claim that no other holder has replaced; but not one that was freed. A holder's name must be
        unique to one operation, or two of one process would share a claim.
        """
        free = _T.claim_holder == holder if renew else is_unclaimed(now)
        statement = (
            update(SANDBOXES)
            .where(_T.id == sandbox_id, free)
            .values(
                claim_kind=kind.value,
                claim_holder=holder,
                claim_until=until,
                version=_T.version + 1,
                updated_at=now,
            )
            .returning(SANDBOXES)
        )
        return await self._write_one(statement)

    async def number_work(self, sandbox_id: str, *, now: datetime) -> Sandbox | None:
        """Give an unclaimed row a new version, as the number of work without a claim; else None."""
        statement = (
            update(SANDBOXES)
            .where(_T.id == sandbox_id, is_unclaimed(now))
            .values(version=_T.version + 1, updated_at=now)
            .returning(SANDBOXES)
        )
        return await self._write_one(statement)

    async def release(
        self,
        sandbox_id: str,
        *,
        holder: str,
        now: datetime,
        next_check_at: datetime | None = None,
    ) -> Sandbox | None:
        """Release a claim if ``holder`` still has it; None if not.

        ``next_check_at`` sets the next deadline; without it the row keeps the one it has.
        """
        changes: dict[str, Any] = {
            "claim_kind": None,
            "claim_holder": None,
            "claim_until": None,
            "version": _T.version + 1,
            "updated_at": now,
        }
        if next_check_at is not None:
            changes["next_check_at"] = next_check_at
        statement = (
            update(SANDBOXES)
            .where(_T.id == sandbox_id, _T.claim_holder == holder)
            .values(**changes)
            .returning(SANDBOXES)
        )
        return await self._write_one(statement)

    async def release_held_by(
        self,
        holder: str,
        sandbox_id: str | None,
        *,
        now: datetime,
        next_check_at: datetime | None = None,
    ) -> Sequence[str]:
        """Release this holder's claims, on one sandbox or on any, and return the sandboxes' ids.

        They are due at ``next_check_at``, or at once.
        """
        is_held = _T.claim_holder == holder
        statement = (
            update(SANDBOXES)
            .where(is_held if sandbox_id is None else is_held & (_T.id == sandbox_id))
            .values(
                claim_kind=None,
                claim_holder=None,
                claim_until=None,
                next_check_at=next_check_at or now,
                version=_T.version + 1,
                updated_at=now,
            )
            .returning(_T.id)
        )
        async with self._database.writing() as connection:
            return (await connection.scalars(statement)).all()

    async def claim_due(
        self,
        *,
        now: datetime,
        holder: str,
        lease_s: float,
        limit: int,
        only_uncertain: bool = False,
    ) -> Sequence[Sandbox]:
        """Claim up to ``limit`` sandboxes whose deadline has come, the most overdue first.

        With ``only_uncertain`` these are the ones whose state is not known.

        Replicas never get the same row. The lease also moves the deadline to its own end, so that
        the rows of a dead replica become due again by themselves.
        """
        until = now + timedelta(seconds=lease_s)
        due = (
            select(_T.id)
            .where(is_due(now), *([_T.state.in_(UNCERTAIN)] if only_uncertain else ()))
            .order_by(_T.next_check_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
            .cte("due")  # Evaluated once: as a plain subquery it could lock more than the limit.
        )
        statement = (
            update(SANDBOXES)
            .where(_T.id.in_(select(due.c.id)))
            .values(
                claim_kind=ClaimKind.SWEEP.value,
                claim_holder=holder,
                claim_until=until,
                next_check_at=until,
                version=_T.version + 1,
            )
            .returning(SANDBOXES)
        )
        async with self._database.writing() as connection:
            rows = (await connection.execute(statement)).mappings().all()
        if rows:
            self._events.announce_locally()
        return sorted(
            await from_rows(rows, self._database.keyring),
            key=lambda one: (one.active_at, one.id),
        )

    async def confirm(self, sandbox_ids: Sequence[str], *, at: datetime) -> int:
        """Record that the provider confirmed these records; no version, no event.

        ``at`` is when the provider was asked. Return how many rows there were.
        """
        if not sandbox_ids:
            return 0
        statement = (
            update(SANDBOXES)
            .where(self._database.in_list(_T.id, sandbox_ids))
            .values({name: _newest(_T[name], at) for name in _CONFIRMED})
        )
        async with self._database.writing() as connection:
            await self._hold(connection, sandbox_ids)
            count = (await connection.execute(statement)).rowcount
        self._events.announce_locally()
        return count

    async def touch(self, touches: Sequence[Touch]) -> set[str]:
        """Write activity, only where it is newer, in one statement per thousand sandboxes.

        Return the ids that exist. The version does not change: activity is not a state.
        """
        found: set[str] = set()
        statement = render_activity_update(is_sqlite=self._database.is_sqlite)
        for start in range(0, len(touches), TOUCH_BATCH_MAX):
            batch = touches[start : start + TOUCH_BATCH_MAX]
            given = render_activity_rows(batch)
            async with self._database.writing() as connection:
                await self._hold(connection, [touch.sandbox_id for touch in batch])
                found |= set((await connection.scalars(statement, {"given": given})).all())
        self._events.announce_locally()
        return found

    async def _write_one(self, statement: ReturningUpdate[Any]) -> Sandbox | None:
        async with self._database.writing() as connection:
            row = (await connection.execute(statement)).mappings().first()
        if row is None:
            return None
        self._events.announce_locally()
        return from_row(row, self._database.keyring)

    async def _hold(self, connection: AsyncConnection, sandbox_ids: Sequence[str]) -> None:
        """Lock many rows by id: two replicas that locked them in different orders would deadlock.

        SQLite has one writer and does not need this.
        """
        if not self._database.is_sqlite:
            some = select(_T.id).where(self._database.in_list(_T.id, sandbox_ids))
            await connection.execute(some.order_by(_T.id).with_for_update())

    async def _list(self, condition: ColumnElement[bool]) -> Sequence[Sandbox]:
        async with self._database.reading() as connection:
            rows = await connection.execute(select(SANDBOXES).where(condition))
            return await from_rows(rows.mappings(), self._database.keyring)

    async def _find(self, condition: ColumnElement[bool]) -> Sandbox | None:
        async with self._database.reading() as connection:
            row = (await connection.execute(select(SANDBOXES).where(condition))).mappings().first()
        return None if row is None else from_row(row, self._database.keyring)


_CONFIRMED: Final = ("last_verified_at", "observed_at", "state_as_of", "state_received_at")


def _newest(known: ColumnElement[Any], at: datetime) -> ColumnElement[Any]:
    new = literal(at, UtcMillis)
    return case((or_(known.is_(None), known < new), new), else_=known)
