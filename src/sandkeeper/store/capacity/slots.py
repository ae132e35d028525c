"""Slots: what runs or may run at each provider, and who may start something there.

A start is counted before it is sent to the provider, in one transaction that locks the row of the
place. So the count is never below the truth, however many replicas start something at once. A
trigger on the sandboxes makes a slot live when the record runs, and removes it when it does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Integer,
    String,
    and_,
    delete,
    exists,
    func,
    literal,
    null,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.decisions.capacity import Limits, Place, SlotUsage
from sandkeeper.store.database import Database
from sandkeeper.store.tables.capacity import PLACES, SLOTS, WAITERS
from sandkeeper.store.tables.sandboxes import SANDBOXES
from sandkeeper.store.types import UtcMillis

PROBE_EVERY: Final = timedelta(hours=1)
"""How often one start beyond a learned limit is tried. Shorter is refused more often; longer learns
late that the plan was raised."""

TENANTS: Final = ""
"""Stands for the provider in the rows that tenants are locked by."""

_S, _P, _W = SLOTS.c, PLACES.c, WAITERS.c


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot. A start is under way while ``token`` is set, or was until ``reserved_until``."""

    sandbox_id: str
    generation: int
    place: Place
    template: str
    tenant: str
    live: bool = False
    token: str | None = None
    reserved_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class PlaceStatus:
    """What is known of one place. ``unrecorded`` runs there and is in no record."""

    place: Place
    learned_limit: int | None = None
    learned_at: datetime | None = None
    unrecorded: int = 0
    granted_at: datetime | None = None
    grant_every_ms: int | None = None

    def is_due_for_probe(self, now: datetime) -> bool:
        """Return whether one start beyond the learned limit may be tried."""
        if self.learned_limit is None:
            return False
        return self.learned_at is None or self.learned_at <= now - PROBE_EVERY

    def tighten(self, limits: Limits, now: datetime) -> Limits:
        """Return the limits with what the provider taught; a probe may exceed that by one."""
        if self.learned_limit is None:
            return limits
        return limits.lowered_to(self.learned_limit + self.is_due_for_probe(now))


class SlotStore:
    """Reads and writes of the slots."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.turn = asyncio.Lock()
        """Of one process, one transaction at a time asks for the lock of a place: many would wait
        in the database, each with a connection, for longer than a statement may."""

    async def reserve(
        self, slot: Slot, limits: Limits, *, seen_after: datetime, now: datetime
    ) -> bool:
        """Reserve the slot if it fits and no request waits; return whether it is reserved.

        Those in line count if they gave a sign of life after ``seen_after``. A slot that this
        sandbox has already is reserved again.
        """
        async with self.turn, self._database.writing() as connection:
            status = await lock_place(connection, self._database, slot.place)
            tight = status.tighten(limits, now)
            here = is_at(_S, slot.place)
            taken = select(func.count()).select_from(SLOTS).where(here).scalar_subquery()
            fits: list[ColumnElement[bool]] = [
                ~exists().where(is_at(_W, slot.place), _W.seen_at > seen_after)
            ]
            if tight.total is not None:
                fits.append(taken < tight.total - status.unrecorded)
            if slot.template in tight.by_template:
                alike = select(func.count()).select_from(SLOTS)
                alike = alike.where(here, _S.template == slot.template)
                fits.append(alike.scalar_subquery() < tight.by_template[slot.template])
            of_tenant = tight.get_of_tenant(slot.tenant)
            if of_tenant is not None:
                # Counted over all places, so those of this tenant are reserved one after the other.
                await lock_place(connection, self._database, Place(TENANTS, slot.tenant))
                alike = select(func.count()).select_from(SLOTS).where(_S.tenant == slot.tenant)
                fits.append(alike.scalar_subquery() < of_tenant)
            own = exists().where(_S.sandbox_id == slot.sandbox_id, _S.generation == slot.generation)
            written = await write_slot(
                connection, self._database, slot, now=now, where=or_(own, and_(*fits))
            )
            if written:
                await note_probe(connection, status, now)
            return written

    async def release(self, slot: Slot) -> None:
        """Give back a slot whose start was not carried out."""
        mine = and_(_is(slot), _S.token == slot.token)
        async with self._database.writing() as connection:
            await connection.execute(delete(SLOTS).where(mine, ~_S.live))
            await connection.execute(update(SLOTS).where(mine).values(**_UNRESERVED))

    async def orphan(self, *, until: datetime, now: datetime, limit: int) -> int:
        """Mark the reservations whose start no process works on any more; return how many.

        Nothing more is sent for them. What was sent may still be carried out until ``until``.
        """
        claimed = exists().where(SANDBOXES.c.id == _S.sandbox_id, SANDBOXES.c.claim_until > now)
        some = (
            select(_S.sandbox_id, _S.generation)
            .where(_S.reserved_until <= now, _S.token.is_not(None), ~claimed)
            .limit(limit)
        )
        key = tuple_(_S.sandbox_id, _S.generation)
        statement = update(SLOTS).where(key.in_(some), _S.reserved_until <= now)
        async with self._database.writing() as connection:
            marked = await connection.execute(statement.values(token=None, reserved_until=until))
            return int(marked.rowcount)

    async def list_orphans(self, *, now: datetime, limit: int) -> Sequence[Slot]:
        """Return the reservations that can be settled by asking the provider now."""
        statement = (
            select(SLOTS)
            .where(_S.reserved_until <= now, _S.token.is_(None))
            .order_by(_S.reserved_until)
            .limit(limit)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement)).mappings()
            return [_read_slot(row) for row in rows]

    async def settle(self, slot: Slot, *, again_at: datetime | None = None) -> None:
        """End an orphaned reservation: the provider said what came of it.

        With ``again_at`` it did not, and is asked again then.
        """
        orphaned = and_(_is(slot), _S.token.is_(None), _S.reserved_until.is_not(None))
        async with self._database.writing() as connection:
            if again_at is not None:
                await connection.execute(
                    update(SLOTS).where(orphaned).values(reserved_until=again_at)
                )
                return
            await connection.execute(delete(SLOTS).where(orphaned, ~_S.live))
            await connection.execute(update(SLOTS).where(orphaned).values(**_UNRESERVED))

    async def learn(self, place: Place, limit: int | None, *, now: datetime) -> int:
        """Remember how many the provider lets run; without a number, what runs now."""
        async with self.turn, self._database.writing() as connection:
            status = await lock_place(connection, self._database, place)
            if limit is None:
                live = select(func.count()).select_from(SLOTS).where(is_at(_S, place), _S.live)
                limit = max(1, int(await connection.scalar(live) or 0) + status.unrecorded)
            here = is_at(_P, place)
            await connection.execute(
                update(PLACES).where(here).values(learned_limit=limit, learned_at=now)
            )
        return limit

    async def forget_outdated(self) -> Sequence[Place]:
        """Forget the learned limits that more sandboxes than they allow prove wrong."""
        live = select(func.count()).select_from(SLOTS)
        live = live.where(_S.provider == _P.provider, _S.region == _P.region, _S.live)
        is_outdated = _P.learned_limit < live.scalar_subquery()
        statement = update(PLACES).where(_P.learned_limit.is_not(None), is_outdated)
        forgotten = statement.values(learned_limit=None, learned_at=None)
        async with self._database.writing() as connection:
            rows = await connection.execute(forgotten.returning(_P.provider, _P.region))
            return [Place(provider, region) for provider, region in rows]

    async def note_unrecorded(
        self, place: Place, *, unknown: int, tagged: Sequence[tuple[str, int]]
    ) -> int:
        """Note how many run there without a slot; those ``tagged`` count if they have none."""
        key = tuple_(_S.sandbox_id, _S.generation)
        async with self.turn, self._database.writing() as connection:
            await lock_place(connection, self._database, place)
            known = 0
            if tagged:
                found = select(func.count()).select_from(SLOTS).where(key.in_(list(tagged)))
                known = int(await connection.scalar(found) or 0)
            count = unknown + len(tagged) - known
            here = is_at(_P, place)
            await connection.execute(update(PLACES).where(here).values(unrecorded=count))
        return count

    async def list_places(self) -> Sequence[PlaceStatus]:
        """Return what is known of each place."""
        async with self._database.reading() as connection:
            found = select(PLACES).where(_P.provider != TENANTS)
            rows = (await connection.execute(found)).mappings()
            return [read_place(row) for row in rows]

    async def read_usage(self) -> Mapping[Place, SlotUsage]:
        """Return how many slots are taken at each place."""
        async with self._database.reading() as connection:
            return await read_usage(connection)


_UNRESERVED: Final[dict[str, Any]] = {"token": None, "reserved_until": None}


async def lock_place(connection: AsyncConnection, database: Database, place: Place) -> PlaceStatus:
    """Return the place, locked: one transaction at a time decides who gets a slot there."""
    statement = select(PLACES).where(is_at(_P, place)).with_for_update()
    row = (await connection.execute(statement)).mappings().first()
    if row is None:
        key = {"provider": place.provider, "region": place.region, "unrecorded": 0}
        insert = database.insert_ignoring(PLACES, ["provider", "region"])
        await connection.execute(insert, key)
        row = (await connection.execute(statement)).mappings().one()
    return read_place(row)


async def note_probe(connection: AsyncConnection, status: PlaceStatus, now: datetime) -> None:
    """Note a start beyond the learned limit, if there is one: the next one is much later."""
    if not status.is_due_for_probe(now):
        return
    taken = select(func.count()).select_from(SLOTS).where(is_at(_S, status.place))
    is_beyond = _P.learned_limit < taken.scalar_subquery() + _P.unrecorded
    statement = update(PLACES).where(is_at(_P, status.place), is_beyond)
    await connection.execute(statement.values(learned_at=now))


async def write_slot(
    connection: AsyncConnection,
    database: Database,
    slot: Slot,
    *,
    now: datetime,
    where: ColumnElement[bool],
) -> bool:
    """Write the reservation if the condition is true; return whether it was."""
    values: dict[str, ColumnElement[Any]] = {
        "sandbox_id": literal(slot.sandbox_id, String),
        "generation": literal(slot.generation, Integer),
        "provider": literal(slot.place.provider, String),
        "region": literal(slot.place.region, String),
        "template": literal(slot.template, String),
        "tenant": literal(slot.tenant, String),
        "live": literal(False, Boolean),
        "since": literal(now, UtcMillis),
        "token": literal(slot.token, String),
        "reserved_until": literal(slot.reserved_until, UtcMillis),
    }
    kind = sqlite.insert if database.is_sqlite else postgresql.insert
    statement = kind(SLOTS).from_select(list(values), select(*values.values()).where(where))
    written = await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["sandbox_id", "generation"],
            set_={
                "token": statement.excluded.token,
                "reserved_until": statement.excluded.reserved_until,
                "evicting_until": null(),
            },
        )
    )
    return bool(written.rowcount)


async def read_usage(
    connection: AsyncConnection, place: Place | None = None
) -> dict[Place, SlotUsage]:
    """Return how many slots are taken at each place, or at one."""
    columns = (_S.provider, _S.region, _S.template, _S.tenant)
    statement = select(*columns, func.count()).group_by(*columns)
    if place is not None:
        statement = statement.where(is_at(_S, place))
    found: dict[Place, SlotUsage] = {}
    for provider, region, template, tenant, count in await connection.execute(statement):
        found.setdefault(Place(provider, region), SlotUsage()).add(template, tenant, int(count))
    return found


def is_at(columns: Any, place: Place) -> ColumnElement[bool]:
    """Return the condition of the rows of a place."""
    return and_(columns.provider == place.provider, columns.region == place.region)


def read_place(row: Mapping[Any, Any]) -> PlaceStatus:
    """Return a place as its row says."""
    names = ("learned_limit", "learned_at", "unrecorded", "granted_at", "grant_every_ms")
    return PlaceStatus(Place(row["provider"], row["region"]), **{one: row[one] for one in names})


def _is(slot: Slot) -> ColumnElement[bool]:
    return and_(_S.sandbox_id == slot.sandbox_id, _S.generation == slot.generation)


def _read_slot(row: Mapping[Any, Any]) -> Slot:
    names = ("sandbox_id", "generation", "template", "tenant", "live", "token", "reserved_until")
    place = Place(row["provider"], row["region"])
    return Slot(place=place, **{one: row[one] for one in names})
