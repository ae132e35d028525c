"""Wakes: one row each. A sandbox has at most one open one; an index enforces that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

import orjson
from sqlalchemy import ColumnElement, bindparam, case, insert, literal, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.decisions.priority import Overflow, Priority
from sandkeeper.domain.decisions.wake import StepOutcome, Wake, WakeStatus, WakeStep
from sandkeeper.domain.errors import VersionConflictError
from sandkeeper.domain.receipt import StepName, WakeMethod, parse_receipt, render_receipt
from sandkeeper.store.database import Database
from sandkeeper.store.tables.sandboxes import WAKES
from sandkeeper.store.types import UtcMillis

_T = WAKES.c
_EXPERIENCE: Final = 21
"""How many past wakes the usual time is based on. Higher smooths more; lower is more recent."""
_RACES_MAX: Final = 10

_ASKED: Final = ("id", "due_at", "driver", "may_recreate", "wanted_until", "starts_over")
"""What a driver's write leaves alone: its lease, and what callers ask for while it works."""
_CHANGED: Final = tuple(column.name for column in _T if column.name not in _ASKED)
# Built once: building them costs more than running them.
_INSERT: Final = insert(WAKES)
_UPDATE: Final = (
    update(WAKES)
    .where(
        _T.id == bindparam("wake_id"),
        or_(_T.finished_at.is_(None), _T.finished_at == bindparam("new_finished_at")),
    )
    .values({name: bindparam(f"new_{name}") for name in _CHANGED})
)


class WakeStore:
    """Reads and writes of the table of wakes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, wake: Wake, *, driver: str) -> tuple[Wake, bool]:
        """Return the sandbox's wake in progress, and whether it is this new one.

        ``driver`` is the replica that drives a new one.
        A caller that joins a wake passes on its permission to create a new instance, if it has one,
        and how long it waits.
        """
        for _ in range(_RACES_MAX):
            try:
                async with self._database.writing() as connection:
                    await connection.execute(_INSERT, _row(wake) | {"driver": driver})
            except IntegrityError:
                known = await self.find_open(wake.sandbox_id)
                if known is not None:
                    return await self._join(known, wake), False
                continue  # It ended between the two.
            return wake, True
        raise VersionConflictError(sandbox_id=wake.sandbox_id)

    async def _join(self, known: Wake, wake: Wake) -> Wake:
        changes: dict[str, Any] = {}
        if wake.may_recreate and not known.may_recreate:
            changes["may_recreate"] = True
        until = wake.wanted_until
        if until is not None and (known.wanted_until is None or known.wanted_until < until):
            is_longest = or_(_T.wanted_until.is_(None), _T.wanted_until < until)
            changes["wanted_until"] = case(
                (is_longest, literal(until, UtcMillis)), else_=_T.wanted_until
            )
        if not changes:
            return known
        statement = update(WAKES).where(_T.id == known.id).values(changes).returning(WAKES)
        async with self._database.writing() as connection:
            row = (await connection.execute(statement)).mappings().first()
        return known if row is None else _from_row(row)

    async def set_starts_over(self, wake_id: str, *, value: bool) -> bool:
        """Ask the wake to start over, or take that back; False if it is over."""
        statement = (
            update(WAKES)
            .where(_T.id == wake_id, _T.finished_at.is_(None))
            .values(starts_over=value)
        )
        async with self._database.writing() as connection:
            return bool((await connection.execute(statement)).rowcount)

    async def find(self, wake_id: str) -> Wake | None:
        """Return the wake with this id."""
        return await self._find(_T.id == wake_id)

    async def find_open(self, sandbox_id: str) -> Wake | None:
        """Return the sandbox's wake that is not over."""
        return await self._find((_T.sandbox_id == sandbox_id) & _T.finished_at.is_(None))

    async def find_last(self, sandbox_id: str) -> Wake | None:
        """Return the sandbox's newest wake."""
        return await self._find(_T.sandbox_id == sandbox_id)

    async def list_due(self, *, now: datetime, limit: int) -> Sequence[Wake]:
        """Return wakes without a driver, the longest abandoned first."""
        statement = (
            select(WAKES)
            .where(_T.finished_at.is_(None), _T.due_at <= now)
            .order_by(_T.due_at)
            .limit(limit)
        )
        async with self._database.reading() as connection:
            return [_from_row(row) for row in (await connection.execute(statement)).mappings()]

    async def claim(
        self, wake_id: str, *, driver: str, now: datetime, until: datetime
    ) -> Wake | None:
        """Claim the wake until ``until``; None if it is over or has another driver."""
        statement = (
            update(WAKES)
            .where(_T.id == wake_id, _T.finished_at.is_(None), _T.due_at <= now)
            .values(due_at=until, driver=driver)
            .returning(WAKES)
        )
        async with self._database.writing() as connection:
            row = (await connection.execute(statement)).mappings().first()
        return None if row is None else _from_row(row)

    async def prolong(self, wake_id: str, *, due_at: datetime, until: datetime) -> bool:
        """Move the end of the driver's lease; False if it is not ``due_at`` or the wake is over."""
        statement = (
            update(WAKES)
            .where(_T.id == wake_id, _T.finished_at.is_(None), _T.due_at == due_at)
            .values(due_at=until)
        )
        async with self._database.writing() as connection:
            return bool((await connection.execute(statement)).rowcount)

    async def save(self, wake: Wake) -> None:
        """Write the wake; one that is already over stays as it ended."""
        async with self._database.writing() as connection:
            await write_wake(connection, wake)

    async def find_usual_ms(self, method: WakeMethod) -> int | None:
        """Return how long a wake by this method usually takes; None without past wakes."""
        statement = (
            select(_T.started_at, _T.finished_at)
            .where(_T.status == WakeStatus.SUCCEEDED.value, _T.method == method.value)
            .order_by(_T.finished_at.desc())
            .limit(_EXPERIENCE)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement)).all()
        took = [(finished - started).total_seconds() * 1000 for started, finished in rows]
        return round(median(took)) if took else None

    async def _find(self, condition: ColumnElement[bool]) -> Wake | None:
        statement = select(WAKES).where(condition).order_by(_T.started_at.desc(), _T.id.desc())
        async with self._database.reading() as connection:
            row = (await connection.execute(statement.limit(1))).mappings().first()
        return None if row is None else _from_row(row)


async def write_wake(connection: AsyncConnection, wake: Wake) -> None:
    """Write the wake within a transaction. One that is over stays as it ended, but for a writer who
    read it since: that one adds to its receipt.
    """
    row = _row(wake)
    values = {f"new_{name}": row[name] for name in _CHANGED}
    await connection.execute(_UPDATE, {"wake_id": wake.id} | values)


def _row(wake: Wake) -> dict[str, Any]:
    row = {name: getattr(wake, name) for name in Wake.__slots__}
    receipt = wake.receipt
    return row | {
        "status": wake.status.value,
        "method": wake.method.value if wake.method else None,
        "priority": wake.priority.value if wake.priority else None,
        "overflow": wake.overflow.value if wake.overflow else None,
        "steps": orjson.dumps([_step_row(step) for step in wake.steps]).decode(),
        "receipt": orjson.dumps(render_receipt(receipt)).decode() if receipt else None,
    }


def _from_row(row: Mapping[Any, Any]) -> Wake:
    found = {name: row[name] for name in Wake.__slots__}
    found["status"] = WakeStatus(found["status"])
    found["method"] = WakeMethod(found["method"]) if found["method"] else None
    found["priority"] = Priority(found["priority"]) if found["priority"] else None
    found["overflow"] = Overflow(found["overflow"]) if found["overflow"] else None
    found["steps"] = tuple(_step(one) for one in orjson.loads(found["steps"]))
    if found["receipt"]:
        found["receipt"] = parse_receipt(orjson.loads(found["receipt"]))
    return Wake(**found)


def _step_row(step: WakeStep) -> dict[str, Any]:
    return asdict(step) | {"started_at": step.started_at.timestamp()}


def _step(values: dict[str, Any]) -> WakeStep:
    return WakeStep(
        name=StepName(values["name"]),
        started_at=datetime.fromtimestamp(values["started_at"], UTC),
        attempt=values["attempt"],
        outcome=StepOutcome(values["outcome"]),
        took_ms=values["took_ms"],
        detail=values["detail"],
    )
