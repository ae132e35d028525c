"""Wakes: one row each. A sandbox has at most one that is not over, and an index holds that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

import orjson
from sqlalchemy import ColumnElement, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.decisions.wake import StepOutcome, Wake, WakeStatus, WakeStep
from sandkeeper.domain.errors import VersionConflictError
from sandkeeper.domain.receipt import StepName, WakeMethod, parse_receipt, render_receipt
from sandkeeper.store.database import Database
from sandkeeper.store.tables.sandboxes import WAKES

_T = WAKES.c
_EXPERIENCE: Final = 21
"""Past wakes from which the usual time is taken: enough to be calm, few enough to be of today."""
_RACES_MAX: Final = 10

_CHANGED: Final = tuple(
    column.name for column in _T if column.name not in ("id", "due_at", "may_recreate")
)
# Built once: that costs more than running them.
_INSERT: Final = insert(WAKES)
_UPDATE: Final = (
    update(WAKES)
    .where(_T.id == bindparam("wake_id"), _T.finished_at.is_(None))
    .values({name: bindparam(f"new_{name}") for name in _CHANGED})
)


class WakeStore:
    """Reads and writes of the table of wakes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, wake: Wake) -> tuple[Wake, bool]:
        """The sandbox's wake that is under way, and whether it is this new one.

        Whoever joins a wake lends it the right to make a new instance, if they have it.
        """
        for _ in range(_RACES_MAX):
            try:
                async with self._database.writing() as connection:
                    await connection.execute(_INSERT, _row(wake))
            except IntegrityError:
                known = await self.find_open(wake.sandbox_id)
                if known is not None:
                    return await self._join(known, wake), False
                continue  # It came to its end between the two.
            return wake, True
        raise VersionConflictError(sandbox_id=wake.sandbox_id)

    async def _join(self, known: Wake, wake: Wake) -> Wake:
        if known.may_recreate or not wake.may_recreate:
            return known
        async with self._database.writing() as connection:
            await connection.execute(
                update(WAKES).where(_T.id == known.id).values(may_recreate=True)
            )
        return known.evolve(may_recreate=True)

    async def find(self, wake_id: str) -> Wake | None:
        """The wake of this id."""
        return await self._find(_T.id == wake_id)

    async def find_open(self, sandbox_id: str) -> Wake | None:
        """The sandbox's wake that is not over."""
        return await self._find((_T.sandbox_id == sandbox_id) & _T.finished_at.is_(None))

    async def find_last(self, sandbox_id: str) -> Wake | None:
        """The sandbox's newest wake."""
        return await self._find(_T.sandbox_id == sandbox_id)

    async def list_due(self, *, now: datetime, limit: int) -> Sequence[Wake]:
        """Wakes that nobody drives, the longest abandoned first."""
        statement = (
            select(WAKES)
            .where(_T.finished_at.is_(None), _T.due_at <= now)
            .order_by(_T.due_at)
            .limit(limit)
        )
        async with self._database.reading() as connection:
            return [_from_row(row) for row in (await connection.execute(statement)).mappings()]

    async def claim(self, wake_id: str, *, now: datetime, until: datetime) -> Wake | None:
        """The wake, ours to drive until then; None if it is over or somebody else drives it."""
        statement = (
            update(WAKES)
            .where(_T.id == wake_id, _T.finished_at.is_(None), _T.due_at <= now)
            .values(due_at=until)
            .returning(WAKES)
        )
        async with self._database.writing() as connection:
            row = (await connection.execute(statement)).mappings().first()
        return None if row is None else _from_row(row)

    async def prolong(self, wake_id: str, *, until: datetime) -> None:
        """Say that it is still being driven."""
        async with self._database.writing() as connection:
            await connection.execute(
                update(WAKES).where(_T.id == wake_id, _T.finished_at.is_(None)).values(due_at=until)
            )

    async def save(self, wake: Wake) -> None:
        """Write the wake; one that is over already stays as it ended."""
        async with self._database.writing() as connection:
            await write_wake(connection, wake)

    async def find_usual_ms(self, rung: WakeMethod) -> int | None:
        """How long a wake by this rung usually takes; None without experience."""
        statement = (
            select(_T.started_at, _T.finished_at)
            .where(_T.status == WakeStatus.SUCCEEDED.value, _T.rung == rung.value)
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
    """Write the wake within a transaction; one that is over already stays as it ended."""
    row = _row(wake)
    values = {f"new_{name}": row[name] for name in _CHANGED}
    await connection.execute(_UPDATE, {"wake_id": wake.id} | values)


def _row(wake: Wake) -> dict[str, Any]:
    row = {name: getattr(wake, name) for name in Wake.__slots__}
    receipt = wake.receipt
    return row | {
        "status": wake.status.value,
        "rung": wake.rung.value if wake.rung else None,
        "steps": orjson.dumps([_step_row(step) for step in wake.steps]).decode(),
        "receipt": orjson.dumps(render_receipt(receipt)).decode() if receipt else None,
    }


def _from_row(row: Mapping[Any, Any]) -> Wake:
    found = {name: row[name] for name in Wake.__slots__}
    found["status"] = WakeStatus(found["status"])
    found["rung"] = WakeMethod(found["rung"]) if found["rung"] else None
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
