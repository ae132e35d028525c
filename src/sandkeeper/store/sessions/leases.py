"""Leases on sandboxes. A new lease and the sweep that would end the sandbox compete for its row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Text,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.lease import Lease
from sandkeeper.domain.sessions.session import Session
from sandkeeper.domain.states import State
from sandkeeper.store.database import Database
from sandkeeper.store.sandboxes.gaps_sql import build_gaps
from sandkeeper.store.sandboxes.mapping import from_row
from sandkeeper.store.sessions.repository import add_count, mark_used
from sandkeeper.store.tables.sandboxes import SANDBOXES
from sandkeeper.store.tables.sessions import LEASES
from sandkeeper.store.types import UtcMillis, to_epoch_ms

_T = LEASES.c
_S = SANDBOXES.c
_NAMES = tuple(item.name for item in fields(Lease))


class _SessionClosedError(Exception):
    """Roll the transaction back; never leaves this module."""


class LeaseStore:
    """Reads and writes of the leases."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def acquire(
        self, lease: Lease, *, source: str, session: Session | None = None, count: str = ""
    ) -> Sandbox | None:
        """Write the lease and mark its sandbox and session as used; None if that is not possible.

        It is not possible while the sandbox does not run, while its row is claimed (perhaps to
        pause or end it), or when the session was closed: read again. So a sweep that decides on the
        row either sees the lease or finishes before it. `count` is a further counter of the session
        to increase.
        """
        now = lease.taken_at
        given = {
            "of": lease.sandbox_id,
            "now": now,
            "now_ms": to_epoch_ms(now),
            "lasts": lease.until,
            "source": source,
        }
        try:
            async with self._database.writing() as connection:
                row = (await connection.execute(_MARK, given)).mappings().first()
                if row is None:
                    return None
                if session is not None:
                    if not await mark_used(connection, session.id, session.idle_timeout_s, now):
                        raise _SessionClosedError  # noqa: TRY301  # It undoes the transaction.
                    if count:
                        await add_count(self._database, connection, session.kind, count)
                await connection.execute(_INSERT, asdict(lease))
        except _SessionClosedError:
            return None
        return from_row(row, self._database.keyring)

    async def renew(self, lease_id: str, *, until: datetime, now: datetime) -> Lease | None:
        """Extend a lease that has not expired; None for one that has, or is unknown."""
        renew = (
            update(LEASES)
            .where(_T.id == lease_id, _T.until > now)
            .values(until=_later(_T.until, literal(until, UtcMillis)))
            .returning(LEASES)
        )
        async with self._database.writing() as connection:
            row = (await connection.execute(renew)).mappings().first()
            if row is None:
                return None
            lease = _read(row)
            mark = update(SANDBOXES).where(_S.id == lease.sandbox_id)
            values = _active(literal(now, UtcMillis), literal("lease"), ActivityClass.WORK)
            later = _later(_S.leased_until, literal(lease.until, UtcMillis))
            await connection.execute(mark.values(leased_until=later, **values))
        return lease

    async def release(self, lease_id: str, *, now: datetime) -> Lease | None:
        """Release a lease; None if it no longer existed. Idle time counts from now."""
        async with self._database.writing() as connection:
            gone = delete(LEASES).where(_T.id == lease_id).returning(LEASES)
            row = (await connection.execute(gone)).mappings().first()
            if row is None:
                return None
            lease = _read(row)
            await self._unmark(connection, lease.sandbox_id, now)
        return lease

    async def list(self, sandbox_id: str, *, now: datetime, limit: int = 100) -> list[Lease]:
        """Return the leases of this sandbox, the longest first."""
        statement = (
            select(LEASES)
            .where(_T.sandbox_id == sandbox_id, _T.until > now)
            .order_by(_T.until.desc(), _T.id)
            .limit(limit)
        )
        async with self._database.reading() as connection:
            return [_read(row) for row in (await connection.execute(statement)).mappings()]

    async def prune(self, *, now: datetime) -> int:
        """Remove the expired leases; they no longer had any effect."""
        async with self._database.writing() as connection:
            return (await connection.execute(delete(LEASES).where(_T.until <= now))).rowcount

    async def _unmark(self, connection: AsyncConnection, sandbox_id: str, now: datetime) -> None:
        longest = select(func.max(_T.until)).where(_T.sandbox_id == sandbox_id).scalar_subquery()
        # The deadline may come earlier than the lease had said: the sweep checks again at once.
        at = literal(now, UtcMillis)
        due = case((_S.next_check_at > at, at), else_=_S.next_check_at)
        await connection.execute(
            update(SANDBOXES)
            .where(_S.id == sandbox_id)
            .values(leased_until=longest, next_check_at=due, **_active(at, literal("lease")))
        )


def _later(known: ColumnElement[Any], new: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((or_(known.is_(None), known < new), new), else_=known)


def _active(
    now: ColumnElement[Any],
    source: ColumnElement[Any],
    kind: ActivityClass = ActivityClass.INTENT,
) -> dict[str, ColumnElement[Any]]:
    """Return the values that write activity, only where it is newer."""
    newer = or_(_S.last_active_at.is_(None), _S.last_active_at < now)
    given = {
        "last_active_at": now,
        "last_active_class": literal(kind.value),
        "last_active_source": source,
    }
    return {name: case((newer, value), else_=_S[name]) for name, value in given.items()}


def _render_mark() -> ReturningUpdate[Any]:
    """Return what a new lease does to its sandbox. Every use runs it, so it is built once."""
    now = bindparam("now", type_=UtcMillis)
    free = or_(_S.claim_until.is_(None), _S.claim_until <= now)
    return (
        update(SANDBOXES)
        .where(_S.id == bindparam("of"), _S.state == State.RUNNING.value, free)
        .values(
            leased_until=_later(_S.leased_until, bindparam("lasts", type_=UtcMillis)),
            gaps=build_gaps(bindparam("now_ms", type_=BigInteger)),
            **_active(now, bindparam("source", type_=Text)),
        )
        .returning(SANDBOXES)
    )


_MARK = _render_mark()
_INSERT = insert(LEASES)


def _read(row: Mapping[Any, Any]) -> Lease:
    return Lease(**{name: row[name] for name in _NAMES})
