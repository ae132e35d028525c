"""Quotas of tenants, and what is used of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.decisions.quotas import QUOTA_NAMES, QuotaLimits, QuotaUsage
from sandkeeper.domain.states import ENDED
from sandkeeper.store.database import Database
from sandkeeper.store.tables.capacity import CREATIONS, QUOTAS, SLOTS
from sandkeeper.store.tables.costs import METERS, USAGE_DAYS
from sandkeeper.store.tables.sandboxes import SANDBOXES

COUNTED_MAX: Final = 100_000
"""How many kept sandboxes of a tenant are counted at most."""
_MS_PER_HOUR: Final = 3_600_000
_MIB: Final = 1024 * 1024


class QuotaStore:
    """Reads and writes of the quotas."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self) -> Mapping[str, QuotaLimits]:
        """Return the quotas by tenant."""
        async with self._database.reading() as connection:
            rows = await connection.execute(select(QUOTAS).order_by(QUOTAS.c.tenant))
            return {
                row["tenant"]: QuotaLimits(**{name: row[name] for name in QUOTA_NAMES})
                for row in rows.mappings()
            }

    async def put(self, tenant: str, limits: QuotaLimits, *, now: datetime) -> None:
        """Set a tenant's quota; one without any limit is removed."""
        values = {name: getattr(limits, name) for name in QUOTA_NAMES}
        replaced = [*QUOTA_NAMES, "updated_at"]
        statement = self._database.insert_replacing(QUOTAS, ["tenant"], replaced)
        async with self._database.writing() as connection:
            if limits.is_none:
                await connection.execute(delete(QUOTAS).where(QUOTAS.c.tenant == tenant))
            else:
                row = {"tenant": tenant, **values, "updated_at": now}
                await connection.execute(statement, row)

    async def read_usage(self, tenant: str, *, now: datetime) -> QuotaUsage:
        """Return what a tenant uses now, and in this hour, day and month (UTC)."""
        async with self._database.reading() as connection:
            return await _read_usage(connection, tenant, now)

    async def count_creation(
        self, tenant: str, check: Callable[[QuotaUsage], None], *, now: datetime
    ) -> None:
        """Count a creation if `check` raises nothing; one creation of a tenant at a time."""
        hour = _hour(now)
        statement = self._database.insert_adding(CREATIONS, ["tenant", "hour"], "count")
        async with self._database.writing() as connection:
            # It locks the row: those of other replicas count after this one.
            await connection.execute(statement, {"tenant": tenant, "hour": hour, "count": 0})
            check(await _read_usage(connection, tenant, now))
            await connection.execute(statement, {"tenant": tenant, "hour": hour, "count": 1})
            old = CREATIONS.c.hour < now - timedelta(days=2)
            await connection.execute(delete(CREATIONS).where(CREATIONS.c.tenant == tenant, old))


async def _read_usage(connection: AsyncConnection, tenant: str, now: datetime) -> QuotaUsage:
    """Return the usage, each part from its own index."""
    hour = _hour(now)
    is_own = SANDBOXES.c.tenant == tenant
    alive = SANDBOXES.c.state.not_in([state.value for state in ENDED])
    some = select(SANDBOXES.c.id).where(is_own, alive).limit(COUNTED_MAX).subquery()
    created, month = CREATIONS.c, f"{now:%Y-%m}-01"
    of_day = created.hour >= hour.replace(hour=0)
    statement = select(
        select(func.count()).select_from(SLOTS).where(SLOTS.c.tenant == tenant).scalar_subquery(),
        select(func.count()).select_from(some).scalar_subquery(),
        select(func.coalesce(func.sum(created.count), 0))
        .where(created.tenant == tenant, created.hour == hour)
        .scalar_subquery(),
        select(func.coalesce(func.sum(created.count), 0))
        .where(created.tenant == tenant, of_day)
        .scalar_subquery(),
        select(func.coalesce(func.sum(USAGE_DAYS.c.running_ms), 0))
        .where(USAGE_DAYS.c.tenant == tenant, USAGE_DAYS.c.day >= month)
        .scalar_subquery(),
        select(func.coalesce(func.sum(METERS.c.kept_mib), 0))
        .where(METERS.c.tenant == tenant)
        .scalar_subquery(),
    )
    running, kept, in_hour, in_day, ran_ms, kept_mib = (await connection.execute(statement)).one()
    return QuotaUsage(
        running=int(running),
        kept=int(kept),
        creations_hour=int(in_hour),
        creations_day=int(in_day),
        running_hours_month=round(int(ran_ms) / _MS_PER_HOUR, 3),
        kept_bytes=int(kept_mib) * _MIB,
    )


def _hour(now: datetime) -> datetime:
    return now.replace(minute=0, second=0, microsecond=0)
