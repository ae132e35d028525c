"""The open sessions and their counters. A closed session has no row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, bindparam, delete, exists, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.common.log_names import LOG_NAMES
from sandkeeper.domain.errors import SessionExistsError
from sandkeeper.domain.owner import OwnerKind
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.session import Session, SessionKey, SessionKind
from sandkeeper.domain.states import ENDED
from sandkeeper.store.database import Database
from sandkeeper.store.sandboxes.mapping import from_row, from_rows
from sandkeeper.store.tables.sandboxes import SANDBOXES
from sandkeeper.store.tables.sessions import LEASES, SESSION_COUNTS, SESSIONS

_T = SESSIONS.c
_NAMES = tuple(item.name for item in fields(Session))
_MARK = "session_"
# Run on every use of a session, so built once.
_WITH_SANDBOX = (
    select(*(_T[name].label(f"{_MARK}{name}") for name in _NAMES), SANDBOXES)
    .select_from(
        SESSIONS.outerjoin(
            SANDBOXES,
            (SANDBOXES.c.owner_kind == OwnerKind.SESSION.value) & (SANDBOXES.c.owner_id == _T.home),
        )
    )
    .where(
        _T.kind == bindparam("kind"),
        _T.user_id == bindparam("user_id"),
        _T.task_id == bindparam("task_id"),
    )
)


class SessionStore:
    """Reads and writes of the sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, session_id: str) -> Session | None:
        return await self._find(_T.id == session_id)

    async def find_by_key(self, kind: SessionKind, key: SessionKey) -> Session | None:
        return await self._find(_is_key(kind, key))

    async def find_with_sandbox(
        self, kind: SessionKind, key: SessionKey
    ) -> tuple[Session, Sandbox | None] | None:
        """Return the session of a key and its sandbox, in one query."""
        named = {"kind": kind.value, "user_id": key.user_id, "task_id": key.task_id}
        async with self._database.reading() as connection:
            row = (await connection.execute(_WITH_SANDBOX, named)).mappings().first()
        if row is None:
            return None
        session = _read({name: row[f"{_MARK}{name}"] for name in _NAMES})
        return session, None if row["id"] is None else from_row(row, self._database.keyring)

    async def open(self, draft: Session) -> Session:
        """Return the session of the draft's key: the draft itself if there was none."""
        row = asdict(draft) | {"kind": draft.kind.value}
        insert = self._database.insert_ignoring(SESSIONS, ["kind", "user_id", "task_id"])
        held = select(SESSIONS).where(_is_key(draft.kind, draft.key))
        async with self._database.writing() as connection:
            while not (await connection.execute(insert, row)).rowcount:
                known = (await connection.execute(held)).mappings().first()
                if known is not None:  # Otherwise it was closed between the two.
                    return _read(known)
        return draft

    async def use(self, session: Session, *, now: datetime) -> bool:
        """Record a use, which moves the idle deadline; False if the session has been closed."""
        async with self._database.writing() as connection:
            return await mark_used(connection, session.id, session.idle_timeout_s, now)

    async def postpone(self, session_id: str, *, idle_at: datetime) -> None:
        """Move the idle deadline to `idle_at`: the sandbox was used in another way."""
        statement = update(SESSIONS).where(_T.id == session_id, _T.idle_at < idle_at)
        async with self._database.writing() as connection:
            await connection.execute(statement.values(idle_at=idle_at))

    async def close(self, session: Session, *, idle_before: datetime | None = None) -> bool:
        """Delete the session and count it as cleaned; False if it was deleted already.

        With `idle_before`, close only a session that is idle by then and has no lease: a use at the
        same moment wins.
        """
        condition = _T.id == session.id
        if idle_before is not None:
            held = exists().where(LEASES.c.session_id == _T.id, LEASES.c.until > idle_before)
            condition &= (_T.idle_at <= idle_before) & ~held
        async with self._database.writing() as connection:
            gone = (await connection.execute(delete(SESSIONS).where(condition))).rowcount
            if not gone:
                return False
            await connection.execute(delete(LEASES).where(LEASES.c.session_id == session.id))
            await add_count(self._database, connection, session.kind, "cleaned")
        return True

    async def rename(self, session: Session, key: SessionKey) -> bool:
        """Give the session another key; raises SessionExistsError if that one is taken."""
        statement = (
            update(SESSIONS)
            .where(_T.id == session.id, _is_key(session.kind, session.key))
            .values(user_id=key.user_id, task_id=key.task_id)
        )
        try:
            async with self._database.writing() as connection:
                return bool((await connection.execute(statement)).rowcount)
        except IntegrityError as error:
            raise SessionExistsError(key=str(key)) from error

    async def list(
        self,
        *,
        kind: SessionKind | None = None,
        user_id: str | None = None,
        after_id: str = "",
        limit: int = 100,
    ) -> Sequence[Session]:
        """Return open sessions by id; the last id starts the next page."""
        statement = select(SESSIONS).where(_T.id > after_id).order_by(_T.id).limit(limit)
        if kind is not None:
            statement = statement.where(_T.kind == kind.value)
        if user_id is not None:
            statement = statement.where(_T.user_id == user_id)
        return await self._list(statement)

    async def list_idle(
        self, *, now: datetime, after: tuple[datetime, str] | None, limit: int
    ) -> Sequence[Session]:
        """Return sessions past their idle deadline, by deadline; the last starts the next page."""
        statement = select(SESSIONS).where(_T.idle_at <= now)
        if after is not None:
            at, session_id = after
            statement = statement.where(
                (_T.idle_at > at) | ((_T.idle_at == at) & (_T.id > session_id))
            )
        return await self._list(statement.order_by(_T.idle_at, _T.id).limit(limit))

    async def list_orphans(self, *, before: datetime, limit: int) -> Sequence[Sandbox]:
        """Return live sandboxes of closed sessions, untouched since `before`.

        Only those whose owner's name we assigned; a sandbox under another name is not ours to
        remove.
        """
        box = SANDBOXES.c
        named = box.owner_id.startswith("se-") | box.owner_id.startswith("shared-")
        statement = (
            select(SANDBOXES)
            .where(
                (box.owner_kind == OwnerKind.SESSION.value) & named,
                box.state.not_in([state.value for state in ENDED]),
                box.updated_at < before,
                box.owner_id.not_in(select(_T.home)),
            )
            .limit(limit)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement)).mappings()
            return await from_rows(rows, self._database.keyring)

    async def count_home(self, home: str) -> int:
        """Return how many sessions have this sandbox."""
        statement = select(func.count()).where(_T.home == home)
        async with self._database.reading() as connection:
            return int(await connection.scalar(statement) or 0)

    async def count_open(self) -> dict[SessionKind, int]:
        """Return how many sessions of each kind are open."""
        statement = select(_T.kind, func.count()).group_by(_T.kind)
        async with self._database.reading() as connection:
            counted = {row[0]: int(row[1]) for row in await connection.execute(statement)}
        return {kind: counted.get(kind.value, 0) for kind in SessionKind}

    async def count(self, kind: SessionKind, name: str, by: int = 1) -> None:
        """Add to a counter that all replicas share."""
        async with self._database.writing() as connection:
            await add_count(self._database, connection, kind, name, by)

    async def read_counts(self) -> dict[tuple[str, str], int]:
        """Return all counters by kind and name."""
        async with self._database.reading() as connection:
            rows = await connection.execute(select(SESSION_COUNTS))
            return {(row.kind, row.name): int(row.value) for row in rows}

    async def _find(self, condition: ColumnElement[bool]) -> Session | None:
        async with self._database.reading() as connection:
            row = (await connection.execute(select(SESSIONS).where(condition))).mappings().first()
        return None if row is None else _read(row)

    async def _list(self, statement: Any) -> Sequence[Session]:
        async with self._database.reading() as connection:
            return [_read(row) for row in (await connection.execute(statement)).mappings()]


async def mark_used(
    connection: AsyncConnection, session_id: str, idle_timeout_s: float, now: datetime
) -> bool:
    """Record a use within a transaction, for the leases; False if the session is closed."""
    statement = (
        update(SESSIONS)
        .where(_T.id == session_id)
        .values(last_used_at=now, idle_at=now + timedelta(seconds=idle_timeout_s), uses=_T.uses + 1)
    )
    return bool((await connection.execute(statement)).rowcount)


async def add_count(
    database: Database, connection: AsyncConnection, kind: SessionKind, name: str, by: int = 1
) -> None:
    """Add to a counter within a transaction."""
    statement = database.insert_adding(SESSION_COUNTS, ["kind", "name"], "value")
    await connection.execute(statement, {"kind": kind.value, "name": name, "value": by})


def _is_key(kind: SessionKind, key: SessionKey) -> ColumnElement[bool]:
    condition: ColumnElement[bool] = (
        (_T.kind == kind.value) & (_T.user_id == key.user_id) & (_T.task_id == key.task_id)
    )
    return condition


def _read(row: Mapping[Any, Any]) -> Session:
    values = {name: row[name] for name in _NAMES}
    LOG_NAMES.note_session(row["id"], key=f"{row['user_id']}:{row['task_id']}")
    return Session(**(values | {"kind": SessionKind(values["kind"])}))
