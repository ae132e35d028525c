"""When sandboxes were in use: a short text for each sandbox and day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

import orjson
from sqlalchemy import BigInteger, delete, func, select, type_coerce, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.costs.activity_spans import Span, parse_spans, render_spans
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.store.database import Database
from sandkeeper.store.sandboxes.mapping import from_rows
from sandkeeper.store.tables.costs import ACTIVITY_DAYS
from sandkeeper.store.tables.sandboxes import FACTS, SANDBOXES, WAKES

POSITION: Final = "history.position"
"""The name of the value that says up to which write the use of sandboxes is recorded."""
PRUNE_ROWS: Final = 1000


@dataclass(frozen=True, slots=True)
class RecordedUse:
    """The stored days of one sandbox, with the tenant and the template it has now."""

    sandbox_id: str
    tenant: str
    template: str
    days: list[tuple[date, str]]


class Recording:
    """One transaction in which use is recorded. Its holder is the only one that records."""

    def __init__(
        self, database: Database, connection: AsyncConnection, position: int | None
    ) -> None:
        self._database = database
        self._connection = connection
        self.position = position

    async def find_sandboxes(self, ids: Sequence[str]) -> list[Sandbox]:
        """Return the records of these sandboxes that still exist."""
        chosen = select(SANDBOXES).where(self._database.in_list(SANDBOXES.c.id, ids))
        rows = (await self._connection.execute(chosen)).mappings().all()
        return await from_rows(rows, self._database.keyring)

    async def add(
        self, spans: Mapping[tuple[str, date], Sequence[Span]], of: Mapping[str, Sandbox]
    ) -> None:
        """Add spans to what is stored of these sandboxes and days."""
        if not spans:
            return
        ids = {sandbox_id for sandbox_id, _ in spans}
        days = {day.isoformat() for _, day in spans}
        chosen = select(ACTIVITY_DAYS).where(
            self._database.in_list(ACTIVITY_DAYS.c.sandbox_id, ids),
            self._database.in_list(ACTIVITY_DAYS.c.day, days),
        )
        known = {
            (row.sandbox_id, row.day): row.spans for row in await self._connection.execute(chosen)
        }
        rows = []
        for (sandbox_id, day), new in sorted(spans.items()):
            before = known.get((sandbox_id, day.isoformat()), "")
            text = render_spans([*parse_spans(before), *new])
            if text != before:
                sandbox = of[sandbox_id]
                rows.append(
                    {
                        "day": day.isoformat(),
                        "sandbox_id": sandbox_id,
                        "tenant": sandbox.tenant,
                        "template": sandbox.launch.template or "",
                        "spans": text,
                    }
                )
        if rows:
            replaced = ["tenant", "template", "spans"]
            statement = self._database.insert_replacing(
                ACTIVITY_DAYS, ["day", "sandbox_id"], replaced
            )
            await self._connection.execute(statement, rows)


class ActivityHistoryStore:
    """Reads and writes of the recorded use."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def recording(self, *, now: datetime) -> AsyncIterator[Recording]:
        """Open the transaction of the recording; its position is saved at its end."""
        first = {"name": POSITION, "value": "null", "updated_at": now}
        async with self._database.writing() as connection:
            await connection.execute(self._database.insert_ignoring(FACTS, ["name"]), first)
            held = select(FACTS.c.value).where(FACTS.c.name == POSITION).with_for_update()
            position = orjson.loads(await connection.scalar(held) or "null")
            recording = Recording(self._database, connection, position)
            yield recording
            if recording.position != position:
                moved = update(FACTS).where(FACTS.c.name == POSITION)
                await connection.execute(
                    moved.values(value=str(recording.position), updated_at=now)
                )

    async def list_use(self, first: date, last: date, *, limit: int) -> list[RecordedUse]:
        """Return the use of at most ``limit`` sandboxes, chosen by their random ids."""
        names = ACTIVITY_DAYS.c
        within = names.day.between(first.isoformat(), last.isoformat())
        some = select(names.sandbox_id).where(within).distinct().order_by(names.sandbox_id)
        statement = (
            select(ACTIVITY_DAYS)
            .where(within, names.sandbox_id.in_(some.limit(limit)))
            .order_by(names.sandbox_id, names.day)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement)).all()
        days: dict[str, list[tuple[date, str]]] = defaultdict(list)
        newest = {}
        for row in rows:
            days[row.sandbox_id].append((date.fromisoformat(row.day), row.spans))
            newest[row.sandbox_id] = row
        return [
            RecordedUse(sandbox_id, row.tenant, row.template, days[sandbox_id])
            for sandbox_id, row in newest.items()
        ]

    async def find_sandboxes(self, ids: Sequence[str]) -> dict[str, Sandbox]:
        """Return the records of these sandboxes that still exist."""
        chosen = select(SANDBOXES).where(self._database.in_list(SANDBOXES.c.id, ids))
        async with self._database.reading() as connection:
            rows = (await connection.execute(chosen)).mappings().all()
        return {one.id: one for one in await from_rows(rows, self._database.keyring)}

    async def measure_wake_s(self, since: datetime) -> float | None:
        """Return how long successful resumes took on average since then; None without one."""
        began, ended = (
            type_coerce(column, BigInteger) for column in (WAKES.c.started_at, WAKES.c.finished_at)
        )
        statement = select(func.avg(ended - began)).where(
            WAKES.c.finished_at >= since, WAKES.c.method == "resume", WAKES.c.error_code.is_(None)
        )
        async with self._database.reading() as connection:
            found = await connection.scalar(statement)
        return None if found is None else float(found) / 1000

    async def prune(self, *, before: date) -> int:
        """Remove days before a date."""
        keys = ACTIVITY_DAYS.c
        old = keys.day < before.isoformat()
        some = (
            select(keys.sandbox_id).where(old).limit(PRUNE_ROWS).with_for_update(skip_locked=True)
        )
        removed = 0
        while True:
            async with self._database.writing() as connection:
                statement = delete(ACTIVITY_DAYS).where(old, keys.sandbox_id.in_(some))
                gone = (await connection.execute(statement)).rowcount
            removed += gone
            if gone == 0:
                return removed
