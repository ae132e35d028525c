"""Dated measurements for charts and health: runs of background tasks, counts of states."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import insert, select

from sandkeeper.store.database import Database
from sandkeeper.store.tables.sandboxes import SAMPLES


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One measurement of a kind, e.g. ``fleet.states``."""

    kind: str
    at: datetime
    data: dict[str, Any]


class MetricsHistoryStore:
    """Measurements, appended, read by kind and time, and removed by age."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, sample: MetricSample) -> None:
        """Save a sample."""
        row = {"kind": sample.kind, "at": sample.at, "data": orjson.dumps(sample.data).decode()}
        async with self._database.writing() as connection:
            await connection.execute(insert(SAMPLES).values(**row))

    async def list(self, kind: str, *, since: datetime, limit: int = 5000) -> list[MetricSample]:
        """Return the newest samples of a kind since then, oldest first, at most ``limit``."""
        statement = (
            select(SAMPLES)
            .where(SAMPLES.c.kind == kind, SAMPLES.c.at >= since)
            .order_by(SAMPLES.c.at.desc(), SAMPLES.c.number.desc())
            .limit(limit)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement)).all()
        return [MetricSample(row.kind, row.at, orjson.loads(row.data)) for row in reversed(rows)]
