"""The warm pools: wanted sizes, results, and the one statement that hands a member to its user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import or_, select, update
from sqlalchemy.exc import IntegrityError

from sandkeeper.domain.decisions.pool import Pool, find_prefix
from sandkeeper.domain.errors import SandboxExistsError
from sandkeeper.domain.events import OwnerChanged
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import ENDED, State
from sandkeeper.domain.tenant import DEFAULT_TENANT
from sandkeeper.store.database import Database
from sandkeeper.store.events import EventStore
from sandkeeper.store.sandboxes.mapping import from_row, from_rows, render_launch, render_owner
from sandkeeper.store.tables.sandboxes import SANDBOXES
from sandkeeper.store.tables.sessions import POOLS

_T = POOLS.c
_S = SANDBOXES.c
_NAMES = tuple(item.name for item in fields(Pool))


class PoolStore:
    """Reads and writes of the pools and of their members' rows."""

    def __init__(self, database: Database, events: EventStore) -> None:
        self._database = database
        self._events = events

    async def find(self, template: str) -> Pool | None:
        async with self._database.reading() as connection:
            found = select(POOLS).where(_T.template == template)
            row = (await connection.execute(found)).mappings().first()
        return None if row is None else _read(row)

    async def list(self) -> Sequence[Pool]:
        async with self._database.reading() as connection:
            rows = (await connection.execute(select(POOLS).order_by(_T.template))).mappings()
            return [_read(row) for row in rows]

    async def put(self, template: str, *, target: int, now: datetime) -> None:
        """Set the wanted size and reset earlier failures."""
        changed = ["target", "failures", "retry_at", "error", "updated_at"]
        statement = self._database.insert_replacing(POOLS, ["template"], changed)
        async with self._database.writing() as connection:
            await connection.execute(statement, _new_row(template, target, now))

    async def put_new(self, template: str, *, target: int, now: datetime) -> None:
        """Set the wanted size unless there is one: a size that was set at run time wins."""
        statement = self._database.insert_ignoring(POOLS, ["template"])
        async with self._database.writing() as connection:
            await connection.execute(statement, _new_row(template, target, now))

    async def hold(self, template: str, *, holder: str, lease_s: float, now: datetime) -> bool:
        """Claim the filling of this pool for a while: of many replicas, one fills."""
        free = or_(_T.filled_until.is_(None), _T.filled_until <= now, _T.filler == holder)
        until = now + timedelta(seconds=lease_s)
        statement = update(POOLS).where(_T.template == template, free)
        async with self._database.writing() as connection:
            held = await connection.execute(statement.values(filler=holder, filled_until=until))
            return bool(held.rowcount)

    async def release(self, template: str, *, holder: str) -> None:
        statement = update(POOLS).where(_T.template == template, _T.filler == holder)
        async with self._database.writing() as connection:
            await connection.execute(statement.values(filler=None, filled_until=None))

    async def record_success(self, template: str) -> None:
        """Record a creation that worked: earlier failures no longer count."""
        await self._change(template, failures=0, retry_at=None, error="")

    async def record_failure(
        self, template: str, *, failures: int, retry_at: datetime, error: str
    ) -> None:
        await self._change(template, failures=failures, retry_at=retry_at, error=error)

    async def list_members(self, template: str, *, limit: int) -> Sequence[Sandbox]:
        """Return the live members, oldest first."""
        statement = (
            select(SANDBOXES)
            .where(_of(template), _S.state.not_in([state.value for state in ENDED]))
            .order_by(_S.created_at, _S.id)
            .limit(limit)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement)).mappings()
            return await from_rows(rows, self._database.keyring)

    async def claim(
        self, template: str, *, owner: Owner, launch: Launch, policy: Policy, now: datetime
    ) -> Sandbox | None:
        """Hand the oldest free member to `owner`; None if the pool is empty.

        One update moves the row, so two claimants never get one member. Raise SandboxExistsError if
        the owner already has a sandbox; the member then stays in the pool.
        """
        free = or_(_S.claim_until.is_(None), _S.claim_until <= now)
        oldest = (
            select(_S.id)
            .where(_of(template), _S.state == State.RUNNING.value, free)
            .order_by(_S.created_at, _S.id)
            .limit(1)
            .with_for_update(skip_locked=True)
            .cte("oldest")
        )
        ends = None if policy.lifetime_s is None else now + timedelta(seconds=policy.lifetime_s)
        statement = (
            update(SANDBOXES)
            .where(_S.id.in_(select(oldest.c.id)), _S.owner_kind == OwnerKind.POOL.value)
            .values(
                **render_owner(owner),
                **render_launch(launch, owner, self._database.keyring),
                policy=orjson.dumps(asdict(policy)).decode(),
                tenant=launch.tenant or DEFAULT_TENANT,
                reason="taken from the warm pool",
                expires_at=ends,
                last_active_at=now,
                next_check_at=now,
                version=_S.version + 1,
                updated_at=now,
            )
            .returning(SANDBOXES)
        )
        try:
            async with self._database.writing() as connection:
                row = (await connection.execute(statement)).mappings().first()
                await connection.execute(self._count(template, hit=row is not None))
                if row is None:
                    return None
                taken = from_row(row, self._database.keyring)
                event = OwnerChanged(
                    sandbox_id=taken.id,
                    owner=owner,
                    at=now,
                    actor="pool",
                    reason=taken.reason,
                    before=f"{OwnerKind.POOL.value}:{template}",
                )
                await self._events.append(connection, taken, [event], now=now)
        except IntegrityError as error:
            raise SandboxExistsError(owner=str(owner)) from error
        self._events.announce_locally()
        return taken

    def _count(self, template: str, *, hit: bool) -> Any:
        counted = update(POOLS).where(_T.template == template)
        return counted.values(hits=_T.hits + 1) if hit else counted.values(misses=_T.misses + 1)

    async def _change(self, template: str, **values: object) -> None:
        async with self._database.writing() as connection:
            await connection.execute(update(POOLS).where(_T.template == template).values(**values))


def _of(template: str) -> Any:
    prefix = find_prefix(template)
    return (_S.owner_kind == OwnerKind.POOL.value) & _S.owner_id.startswith(prefix, autoescape=True)


def _new_row(template: str, target: int, now: datetime) -> dict[str, Any]:
    pool = Pool(template, target)
    return asdict(pool) | {"filler": None, "filled_until": None, "updated_at": now}


def _read(row: Mapping[Any, Any]) -> Pool:
    return Pool(**{name: row[name] for name in _NAMES})
