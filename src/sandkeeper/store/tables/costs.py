"""The tables of costs: where the counting of each sandbox stands, and the sums of each day."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, String, Table, text

from sandkeeper.domain.costs.metering import USAGE_FIELDS
from sandkeeper.store.tables.sandboxes import METADATA
from sandkeeper.store.types import UtcMillis


def _amounts() -> list[Column[int]]:
    return [
        Column(name, BigInteger, nullable=False, server_default=text("0")) for name in USAGE_FIELDS
    ]


METERS: Final = Table(
    "meters",
    METADATA,
    Column("sandbox_id", String, primary_key=True),
    Column("owner_kind", String, nullable=False),
    Column("owner_id", String, nullable=False),
    Column("tenant", String, nullable=False),
    Column("template", String, nullable=False),
    Column("provider", String, nullable=False),
    Column("region", String, nullable=False),
    Column("vcpus", Integer, nullable=False),
    Column("memory_mb", Integer, nullable=False),
    Column("phase", String, nullable=False),
    Column("since", UtcMillis, nullable=False),
    Column("counted_to", UtcMillis, nullable=False),
    Column("run_started_at", UtcMillis),
    Column("timeout_at", UtcMillis),
    Column("kept_mib", BigInteger, nullable=False),
    Column("earlier", String, nullable=False),
    Column("earlier_since", UtcMillis),
    Index("ix_meters_phase", "phase", "counted_to"),
)

USAGE_DAYS: Final = Table(
    "usage_days",
    METADATA,
    Column("day", String, primary_key=True),
    Column("tenant", String, primary_key=True),
    Column("template", String, primary_key=True),
    Column("provider", String, primary_key=True),
    Column("region", String, primary_key=True),
    Column("owner_kind", String, primary_key=True),
    Column("vcpus", Integer, primary_key=True, autoincrement=False),
    Column("memory_mb", Integer, primary_key=True, autoincrement=False),
    *_amounts(),
)

USAGE_DETAILS: Final = Table(
    "usage_details",
    METADATA,
    Column("day", String, primary_key=True),
    Column("sandbox_id", String, primary_key=True),
    Column("owner_kind", String, primary_key=True),
    Column("owner_id", String, primary_key=True),
    Column("tenant", String, primary_key=True),
    Column("template", String, primary_key=True),
    Column("provider", String, primary_key=True),
    Column("region", String, primary_key=True),
    Column("vcpus", Integer, primary_key=True, autoincrement=False),
    Column("memory_mb", Integer, primary_key=True, autoincrement=False),
    *_amounts(),
)

BUDGETS: Final = Table(
    "budgets",
    METADATA,
    Column("tenant", String, primary_key=True),
    Column("nanos", BigInteger, nullable=False),
    Column("action", String, nullable=False),
    Column("updated_at", UtcMillis, nullable=False),
)

BUDGET_NOTICES: Final = Table(
    "budget_notices",
    METADATA,
    Column("tenant", String, primary_key=True),
    Column("month", String, primary_key=True),
    Column("share", Integer, primary_key=True, autoincrement=False),
    Column("at", UtcMillis, nullable=False),
    Column("spent_nanos", BigInteger, nullable=False),
    Column("budget_nanos", BigInteger, nullable=False),
)

ACTIVITY_DAYS: Final = Table(
    "activity_days",
    METADATA,
    Column("day", String, primary_key=True),
    Column("sandbox_id", String, primary_key=True),
    Column("tenant", String, nullable=False),
    Column("template", String, nullable=False),
    Column("spans", String, nullable=False),
)
