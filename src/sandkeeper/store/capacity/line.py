"""The line: who waits for a slot, and the transaction that serves it.

A row keeps its place for a while after its process has died: the caller that asks again continues
there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, case, delete, func, or_, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.decisions.capacity import (
    IN_USE,
    Limits,
    Place,
    SlotUsage,
    Waiter,
    average_grant_ms,
    choose_victims,
    decide_admission,
)
from sandkeeper.domain.decisions.priority import Overflow, Priority
from sandkeeper.domain.owner import OwnerKind
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.store.capacity.slots import (
    Slot,
    SlotStore,
    is_at,
    lock_place,
    note_probe,
    read_usage,
    write_slot,
)
from sandkeeper.store.database import Database
from sandkeeper.store.sandboxes.mapping import from_rows
from sandkeeper.store.tables.capacity import PLACES, SLOTS, WAITERS
from sandkeeper.store.tables.sandboxes import SANDBOXES
from sandkeeper.store.types import UtcMillis

LINE_MAX: Final = 2000
"""How many may wait at one place; one more is refused. Higher makes each decision slower; lower
refuses a burst that would have been served."""
SEEN: Final = timedelta(seconds=15)
"""Who gave no sign of life for this long is passed over."""
KEPT: Final = timedelta(minutes=2)
"""How long a place in line is kept for a caller that asks again."""
VICTIMS_MAX: Final = 10
"""How many make room at a time. Higher pauses more than is needed when others stop by themselves;
lower serves a burst more slowly."""
CANDIDATES_MAX: Final = 40
"""How many sandboxes are considered: more than are needed, because some turn out to be in use."""

_S, _P, _W, _B = SLOTS.c, PLACES.c, WAITERS.c, SANDBOXES.c


@dataclass(frozen=True, slots=True)
class ServedLine:
    """What one pass over the line decided for those who wait in this process.

    ``positions`` begin at 1. ``victims`` make room, and no other process tries them until then.
    """

    granted: frozenset[str] = frozenset()
    positions: Mapping[str, int] = field(default_factory=dict)
    victims: Sequence[Sandbox] = ()
    grant_every_ms: int | None = None


class LineStore:
    """Reads and writes of the line."""

    def __init__(self, database: Database, slots: SlotStore) -> None:
        self._database = database
        self._slots = slots

    async def join(self, waiter: Waiter, *, now: datetime) -> Waiter | None:
        """Return the request as it waits, at the place it had before; None if the line is full."""
        row = _row(waiter) | {"seen_at": now}
        changed = [name for name in row if name not in ("key", "since")]
        statement = self._database.insert_replacing(WAITERS, ["key"], changed)
        here = is_at(_W, waiter.place)
        async with self._database.writing() as connection:
            await connection.execute(delete(WAITERS).where(here, _W.seen_at <= now - KEPT))
            count = await connection.scalar(select(func.count()).select_from(WAITERS).where(here))
            if int(count or 0) >= LINE_MAX:
                return None
            await connection.execute(statement, row)
            found = select(WAITERS).where(_W.key == waiter.key)
            return _read((await connection.execute(found)).mappings().one())

    async def step_aside(self, key: str, *, now: datetime) -> None:
        """Let others pass at once; the place is kept for a while."""
        async with self._database.writing() as connection:
            passed = update(WAITERS).where(_W.key == key)
            await connection.execute(passed.values(seen_at=now - SEEN))

    async def serve(
        self,
        place: Place,
        limits: Limits,
        *,
        mine: Mapping[str, Slot],
        until: datetime,
        evict_until: datetime,
        now: datetime,
    ) -> ServedLine:
        """Give free slots to those of ``mine`` (by key) whose turn it is.

        Those of other processes keep the slots that are theirs by the order.
        """
        async with self._slots.turn, self._database.writing() as connection:
            status = await lock_place(connection, self._database, place)
            await self._show_signs_of_life(connection, mine, now)
            waiters = await _list(connection, place, now)
            usage = (await read_usage(connection, place)).get(place, SlotUsage())
            usage.total += status.unrecorded
            tight = status.tighten(limits, now)
            decision = decide_admission(waiters, usage, tight)
            granted = [one for one in decision.granted if one.key in mine]
            for one in granted:
                slot = replace(mine[one.key], reserved_until=until)
                await write_slot(connection, self._database, slot, now=now, where=true())
            every_ms = status.grant_every_ms
            if granted:
                keys = self._database.in_list(_W.key, [one.key for one in granted])
                await connection.execute(delete(WAITERS).where(keys))
                every_ms = await _note_grants(connection, status, len(granted), now)
                await note_probe(connection, status, now)
            wanting = [one for one in decision.waiting if one.overflow is Overflow.EVICT]
            asked = {one.template for one in wanting}
            full = {one for one in asked if not tight.allows_template(usage, one)}
            # Where only their templates are full, one of the same template makes room.
            only = full if full == asked else None
            victims = await self._take_victims(
                connection, place, len(wanting), only, evict_until=evict_until, now=now
            )
        order = [*decision.granted, *decision.waiting]
        left = [one for one in order if one not in granted]
        return ServedLine(
            frozenset(one.key for one in granted),
            {one.key: number for number, one in enumerate(left, 1) if one.key in mine},
            victims,
            every_ms,
        )

    async def count(self) -> Mapping[Place, int]:
        """Return how many wait at each place."""
        statement = select(_W.provider, _W.region, func.count()).group_by(_W.provider, _W.region)
        async with self._database.reading() as connection:
            rows = await connection.execute(statement)
            return {Place(provider, region): int(count) for provider, region, count in rows}

    async def list(self, place: Place, *, now: datetime) -> Sequence[Waiter]:
        """Return who waits at a place, the oldest first."""
        async with self._database.reading() as connection:
            return await _list(connection, place, now)

    async def _show_signs_of_life(
        self, connection: AsyncConnection, mine: Collection[str], now: datetime
    ) -> None:
        is_mine = self._database.in_list(_W.key, list(mine))
        stale = _W.seen_at <= now - SEEN / 3
        await connection.execute(update(WAITERS).where(is_mine, stale).values(seen_at=now))

    async def _take_victims(
        self,
        connection: AsyncConnection,
        place: Place,
        wanted: int,
        templates: Collection[str] | None,
        *,
        evict_until: datetime,
        now: datetime,
    ) -> Sequence[Sandbox]:
        """Choose what makes room for those who wait for it, unless others make it already."""
        if not wanted:
            return ()
        making_room = select(func.count()).select_from(SLOTS)
        making_room = making_room.where(is_at(_S, place), _S.evicting_until > now)
        under_way = int(await connection.scalar(making_room) or 0)
        count = min(VICTIMS_MAX, wanted) - under_way
        if count <= 0:
            return ()
        fitting = true() if templates is None else self._database.in_list(_S.template, templates)
        find = _find_candidates(place, fitting, now, is_sqlite=self._database.is_sqlite)
        rows = (await connection.execute(find)).mappings()
        candidates = await from_rows(rows, self._database.keyring)
        victims = choose_victims(candidates, count=count, now=now)
        if victims:
            chosen = self._database.in_list(_S.sandbox_id, [one.id for one in victims])
            await connection.execute(
                update(SLOTS).where(chosen, _S.live).values(evicting_until=evict_until)
            )
        return victims


def _find_candidates(
    place: Place, fitting: ColumnElement[bool], now: datetime, *, is_sqlite: bool
) -> Any:
    """Return the query of what may make room: the spare ones, then the ones unused for longest."""
    is_pooled = _B.owner_kind == OwnerKind.POOL.value
    is_unused = or_(_B.last_active_at.is_(None), _B.last_active_at < _B.warmed_at)
    is_warm = _B.warmed_at.is_not(None) & is_unused
    newest = func.max if is_sqlite else func.greatest
    used_at = newest(
        _B.created_at,
        func.coalesce(_B.last_active_at, _B.created_at),
        func.coalesce(_B.run_started_at, _B.created_at),
        type_=UtcMillis,
    )
    return (
        select(SANDBOXES)
        .join(SLOTS, _S.sandbox_id == _B.id)
        .where(
            is_at(_S, place),
            fitting,
            _S.live,
            or_(_S.evicting_until.is_(None), _S.evicting_until <= now),
            _B.state == State.RUNNING.value,
            or_(_B.claim_until.is_(None), _B.claim_until <= now),
            or_(_B.leased_until.is_(None), _B.leased_until <= now),
            or_(is_pooled, is_warm, used_at <= now - IN_USE),
        )
        .order_by(case((is_pooled | is_warm, 0), else_=1), used_at, _B.id)
        .limit(CANDIDATES_MAX)
        # What is being written is passed over: it is in use, or stops anyway.
        .with_for_update(of=SLOTS, skip_locked=True)
    )


async def _note_grants(
    connection: AsyncConnection, status: Any, count: int, now: datetime
) -> int | None:
    """Measure how often a slot becomes free while others wait."""
    every_ms: int | None = status.grant_every_ms
    if status.granted_at is not None and now - status.granted_at < KEPT:
        every_ms = average_grant_ms(every_ms, now - status.granted_at, count)
    measured = {"granted_at": now, "grant_every_ms": every_ms}
    await connection.execute(update(PLACES).where(is_at(_P, status.place)).values(**measured))
    return every_ms


async def _list(connection: AsyncConnection, place: Place, now: datetime) -> list[Waiter]:
    alive = _W.seen_at > now - SEEN
    statement = select(WAITERS).where(is_at(_W, place), alive).order_by(_W.since).limit(LINE_MAX)
    return [_read(row) for row in (await connection.execute(statement)).mappings()]


_NAMES: Final = ("key", "sandbox_id", "generation", "template", "tenant", "since")


def _row(waiter: Waiter) -> dict[str, Any]:
    return {name: getattr(waiter, name) for name in _NAMES} | {
        "provider": waiter.place.provider,
        "region": waiter.place.region,
        "priority": waiter.priority.value,
        "overflow": waiter.overflow.value,
    }


def _read(row: Mapping[Any, Any]) -> Waiter:
    return Waiter(
        **{name: row[name] for name in _NAMES},
        place=Place(row["provider"], row["region"]),
        priority=Priority(row["priority"]),
        overflow=Overflow(row["overflow"]),
    )
