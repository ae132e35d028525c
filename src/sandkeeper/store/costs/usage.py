"""Meters and the sums of each day, which change together, in one transaction.

One replica counts at a time: it locks the cursor's row, which says up to which entry the log is
counted. So each entry is counted once, however often the counting is interrupted and begun again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final, Literal

import orjson
from sqlalchemy import (
    Column,
    ColumnElement,
    Executable,
    Table,
    delete,
    func,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.costs.metering import (
    METERED_TYPES,
    USAGE_FIELDS,
    Count,
    Meter,
    MeteredEvent,
    Phase,
    UsageAccount,
    UsageAmounts,
    sum_by_day,
)
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.store.database import Database
from sandkeeper.store.sandboxes.mapping import from_rows
from sandkeeper.store.tables.costs import METERS, USAGE_DAYS, USAGE_DETAILS
from sandkeeper.store.tables.files import FILE_VERSIONS
from sandkeeper.store.tables.sandboxes import EVENTS, FACTS, SANDBOXES

CURSOR: Final = "costs.cursor"
"""The name of the value that says up to which entry the log is counted."""

GROUPS: Final[Mapping[str, Column[Any]]] = {
    "tenant": USAGE_DAYS.c.tenant,
    "template": USAGE_DAYS.c.template,
    "day": USAGE_DAYS.c.day,
    "owner": USAGE_DETAILS.c.owner_id,
    "sandbox": USAGE_DETAILS.c.sandbox_id,
}
"""What costs are summed by. Owners and sandboxes are in the table of details only."""

GroupName = Literal["tenant", "template", "day", "owner", "sandbox"]
WINDOW: Final = 10_000
"""Entries of the log that one transaction looks at. Higher holds the database's writer longer."""
PRUNE_ROWS: Final = 1000
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class UsageSum:
    """The usage of one group in sandboxes of one price and size."""

    group: str
    provider: str
    region: str
    owner_kind: OwnerKind
    vcpus: int
    memory_mb: int
    usage: UsageAmounts


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Days, both included, and optionally one tenant and one template."""

    first: date
    last: date
    tenant: str = ""
    template: str | None = None


class Counting:
    """One transaction of the counting. Its holder is the only one that counts."""

    def __init__(self, database: Database, connection: AsyncConnection, cursor: int) -> None:
        self._database = database
        self._connection = connection
        self.cursor = cursor

    async def read_log(self, *, limit: int) -> tuple[list[MeteredEvent], bool]:
        """Return the next metered entries and whether there may be more; move the cursor."""
        newest = await self._connection.scalar(select(func.max(EVENTS.c.seq))) or 0
        if self.cursor == 0:
            oldest = await self._connection.scalar(select(func.min(EVENTS.c.seq))) or 1
            self.cursor = oldest - 1
        top = min(newest, self.cursor + WINDOW)
        rows = (
            await self._connection.execute(
                select(EVENTS)
                .where(EVENTS.c.seq > self.cursor, EVENTS.c.seq <= top)
                .where(EVENTS.c.type.in_(METERED_TYPES))
                .order_by(EVENTS.c.seq)
                .limit(limit)
            )
        ).all()
        is_full = len(rows) == limit
        self.cursor = max(self.cursor, rows[-1].seq if is_full else top)
        found = [
            MeteredEvent(
                type=row.type,
                sandbox_id=row.sandbox_id,
                owner=Owner(OwnerKind(row.owner_kind), row.owner_id),
                at=row.at,
                data=orjson.loads(row.data),
            )
            for row in rows
        ]
        return found, is_full or top < newest

    async def list_due(self, phase: Phase, *, before: datetime, limit: int) -> list[Meter]:
        """Return meters in a phase that were last counted before an instant, oldest first."""
        statement = (
            select(METERS)
            .where(METERS.c.phase == phase.value, METERS.c.counted_to < before)
            .order_by(METERS.c.counted_to)
            .limit(limit)
        )
        rows = (await self._connection.execute(statement)).mappings()
        return [_to_meter(row) for row in rows]

    async def list_unmetered(self, *, before: datetime, limit: int) -> list[Sandbox]:
        """Return sandboxes without a meter that have been running or paused since an instant."""
        statement = (
            select(SANDBOXES)
            .outerjoin(METERS, METERS.c.sandbox_id == SANDBOXES.c.id)
            .where(METERS.c.sandbox_id.is_(None), SANDBOXES.c.state.in_(("RUNNING", "PAUSED")))
            .where(SANDBOXES.c.state_since < before)
            .limit(limit)
        )
        rows = (await self._connection.execute(statement)).mappings().all()
        return await from_rows(rows, self._database.keyring)

    async def find_meters(self, ids: Collection[str]) -> dict[str, Meter]:
        """Return the meters of these sandboxes."""
        chosen = select(METERS).where(self._database.in_list(METERS.c.sandbox_id, ids))
        rows = (await self._connection.execute(chosen)).mappings()
        return {row["sandbox_id"]: _to_meter(row) for row in rows}

    async def find_sandboxes(self, ids: Collection[str]) -> dict[str, Sandbox]:
        """Return the records of these sandboxes that still exist."""
        chosen = select(SANDBOXES).where(self._database.in_list(SANDBOXES.c.id, ids))
        rows = (await self._connection.execute(chosen)).mappings().all()
        return {one.id: one for one in await from_rows(rows, self._database.keyring)}

    async def measure_kept(self, sandboxes: Iterable[Sandbox]) -> dict[Owner, int]:
        """Return how many MiB of files are kept for these sandboxes, in their newest version."""
        owners = [one.owner for one in sandboxes]
        names = FILE_VERSIONS.c
        newest = (
            select(names.owner_kind, names.owner_id, func.max(names.number).label("number"))
            .where(self._database.in_list(names.owner_id, [one.id for one in owners]))
            .group_by(names.owner_kind, names.owner_id)
            .subquery()
        )
        statement = select(names.owner_kind, names.owner_id, names.bytes).join(
            newest,
            (names.owner_kind == newest.c.owner_kind)
            & (names.owner_id == newest.c.owner_id)
            & (names.number == newest.c.number),
        )
        rows = await self._connection.execute(statement)
        return {
            Owner(OwnerKind(row.owner_kind), row.owner_id): -(-row.bytes // _MIB) for row in rows
        }

    async def save(self, meters: Iterable[Meter], counts: Iterable[Count]) -> None:
        """Write meters and add what was counted."""
        rows = [_from_meter(meter) for meter in meters]
        if rows:
            replaced = [column.name for column in METERS.c if not column.primary_key]
            statement = self._database.insert_replacing(METERS, ["sandbox_id"], replaced)
            await self._connection.execute(statement, rows)
        details = [
            {"day": day.isoformat(), "sandbox_id": sandbox_id, **_account_row(account), **amounts}
            for (day, sandbox_id, account), usage in sum_by_day(counts).items()
            if (amounts := {name: getattr(usage, name) for name in USAGE_FIELDS})
        ]
        # In one order, or two transactions could wait for each other.
        await self._add(USAGE_DETAILS, details)
        await self._add(USAGE_DAYS, _fold_days(details))

    async def _add(self, table: Table, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            await self._connection.execute(_render_adding(table, self._database), list(rows))


class CostStore:
    """Reads of the sums, and the transaction in which they are counted."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def counting(self, *, now: datetime) -> AsyncIterator[Counting]:
        """Open the transaction of the counting; what is counted in it is saved at its end."""
        first = {"name": CURSOR, "value": "0", "updated_at": now}
        async with self._database.writing() as connection:
            await connection.execute(self._database.insert_ignoring(FACTS, ["name"]), first)
            held = select(FACTS.c.value).where(FACTS.c.name == CURSOR).with_for_update()
            cursor = int(await connection.scalar(held) or 0)
            counting = Counting(self._database, connection, cursor)
            yield counting
            if counting.cursor != cursor:
                moved = update(FACTS).where(FACTS.c.name == CURSOR)
                await connection.execute(moved.values(value=str(counting.cursor), updated_at=now))

    async def sum_usage(
        self, group: GroupName, chosen: UsageFilter, *, only: Collection[str] | None = None
    ) -> list[UsageSum]:
        """Return the sums of days, by group and by what decides the price.

        ``only`` are the wanted groups; all of them without it.
        """
        column = GROUPS[group]
        table = column.table
        assert isinstance(table, Table)
        keys = [
            column.label("grouped"),
            *(table.c[name] for name in ("provider", "region", "owner_kind", "vcpus", "memory_mb")),
        ]
        sums = [func.sum(table.c[name]).label(name) for name in USAGE_FIELDS]
        statement = select(*keys, *sums).where(*_match(table, chosen))
        if only is not None:
            statement = statement.where(self._database.in_list(column, only))
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement.group_by(*keys))).mappings().all()
        return [_to_sum(row, is_owner=group == "owner") for row in rows]

    async def list_longest(self, group: GroupName, chosen: UsageFilter, *, limit: int) -> list[str]:
        """Return the groups that ran for longest, and then those that slept for longest."""
        column = GROUPS[group]
        table = column.table
        assert isinstance(table, Table)
        order = (func.sum(table.c.running_ms).desc(), func.sum(table.c.paused_ms).desc(), column)
        statement = select(column).where(*_match(table, chosen)).group_by(column)
        async with self._database.reading() as connection:
            return list(await connection.scalars(statement.order_by(*order).limit(limit)))

    async def find_oldest_count(self) -> datetime | None:
        """Return up to when every running sandbox is counted; None while none runs."""
        statement = select(func.min(METERS.c.counted_to)).where(
            METERS.c.phase == Phase.RUNNING.value
        )
        async with self._database.reading() as connection:
            found: datetime | None = await connection.scalar(statement)
        return found

    async def prune(self, *, details_before: date, ended_before: datetime) -> int:
        """Remove old rows of single sandboxes, and meters of those that ended long ago."""
        removed = 0
        for table, condition in (
            (USAGE_DETAILS, USAGE_DETAILS.c.day < details_before.isoformat()),
            (METERS, (METERS.c.phase == Phase.OFF.value) & (METERS.c.since < ended_before)),
        ):
            keys = tuple(table.primary_key)
            key = keys[0] if len(keys) == 1 else tuple_(*keys)
            some = select(*keys).where(condition).limit(PRUNE_ROWS)
            some = some.with_for_update(skip_locked=True)
            while True:
                async with self._database.writing() as connection:
                    gone = (await connection.execute(delete(table).where(key.in_(some)))).rowcount
                removed += gone
                if gone < PRUNE_ROWS:
                    break
        return removed


def _match(table: Table, chosen: UsageFilter) -> list[ColumnElement[bool]]:
    days = (chosen.first.isoformat(), chosen.last.isoformat())
    found: list[ColumnElement[bool]] = [table.c.day.between(*days)]
    if chosen.tenant:
        found.append(table.c.tenant == chosen.tenant)
    if chosen.template is not None:
        found.append(table.c.template == chosen.template)
    return found


def _fold_days(details: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    keys = [column.name for column in USAGE_DAYS.primary_key]
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in details:
        key = tuple(row[name] for name in keys)
        known = sums.setdefault(
            key, dict(zip(keys, key, strict=True)) | dict.fromkeys(USAGE_FIELDS, 0)
        )
        for name in USAGE_FIELDS:
            known[name] += row[name]
    return [sums[key] for key in sorted(sums)]


def _render_adding(table: Table, database: Database) -> Executable:
    statement = (sqlite.insert if database.is_sqlite else postgresql.insert)(table)
    return statement.on_conflict_do_update(
        index_elements=[column.name for column in table.primary_key],
        set_={name: table.c[name] + statement.excluded[name] for name in USAGE_FIELDS},
    )


def _account_row(account: UsageAccount) -> dict[str, Any]:
    return {
        "owner_kind": account.owner.kind.value,
        "owner_id": account.owner.id,
        "tenant": account.tenant,
        "template": account.template,
        "provider": account.provider,
        "region": account.region,
        "vcpus": account.vcpus,
        "memory_mb": account.memory_mb,
    }


def _from_meter(meter: Meter) -> dict[str, Any]:
    return {
        "sandbox_id": meter.sandbox_id,
        **_account_row(meter.account),
        "phase": meter.phase.value,
        "since": meter.since,
        "counted_to": meter.counted_to,
        "run_started_at": meter.run_started_at,
        "timeout_at": meter.timeout_at,
        "kept_mib": meter.kept_mib,
        "earlier": meter.earlier.value,
        "earlier_since": meter.earlier_since,
    }


def _to_meter(row: Mapping[Any, Any]) -> Meter:
    return Meter(
        sandbox_id=row["sandbox_id"],
        account=UsageAccount(
            owner=Owner(OwnerKind(row["owner_kind"]), row["owner_id"]),
            tenant=row["tenant"],
            template=row["template"],
            provider=row["provider"],
            region=row["region"],
            vcpus=row["vcpus"],
            memory_mb=row["memory_mb"],
        ),
        since=row["since"],
        counted_to=row["counted_to"],
        phase=Phase(row["phase"]),
        run_started_at=row["run_started_at"],
        timeout_at=row["timeout_at"],
        kept_mib=row["kept_mib"],
        earlier=Phase(row["earlier"]),
        earlier_since=row["earlier_since"],
    )


def _to_sum(row: Mapping[Any, Any], *, is_owner: bool) -> UsageSum:
    kind = OwnerKind(row["owner_kind"])
    return UsageSum(
        group=f"{kind.value}:{row['grouped']}" if is_owner else row["grouped"],
        provider=row["provider"],
        region=row["region"],
        owner_kind=kind,
        vcpus=row["vcpus"],
        memory_mb=row["memory_mb"],
        usage=UsageAmounts(*(int(row[name]) for name in USAGE_FIELDS)),
    )
