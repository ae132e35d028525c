"""The store as the services see it: one attribute per noun, opened once per process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Column, ColumnElement, Table, case, delete, func, select, text, tuple_

from sandkeeper.common.elapsed import now_s
from sandkeeper.store.access.api_keys import ApiKeyStore
from sandkeeper.store.access.audit import AuditStore
from sandkeeper.store.access.tokens import TokenStore
from sandkeeper.store.capacity.line import LineStore
from sandkeeper.store.capacity.quotas import QuotaStore
from sandkeeper.store.capacity.slots import SlotStore
from sandkeeper.store.costs.budgets import BudgetStore
from sandkeeper.store.costs.history import ActivityHistoryStore
from sandkeeper.store.costs.usage import CostStore
from sandkeeper.store.data_keys import DataKeyStore
from sandkeeper.store.database import POOL_SIZE, Database
from sandkeeper.store.deliveries import DeliveryStore
from sandkeeper.store.events import EventStore
from sandkeeper.store.file_checkpoints import CheckpointStore
from sandkeeper.store.files import FileStore
from sandkeeper.store.gateway.domains import PreviewDomainStore
from sandkeeper.store.gateway.links import ShareLinkStore
from sandkeeper.store.gateway.requests import PreviewRequestStore
from sandkeeper.store.idempotency import IdempotencyKeys
from sandkeeper.store.key_value import KeyValueStore
from sandkeeper.store.metrics_history import MetricsHistoryStore
from sandkeeper.store.replicas.region_leases import RegionLeaseStore
from sandkeeper.store.replicas.repository import ReplicaStore
from sandkeeper.store.sandboxes.bulk import BulkWriter
from sandkeeper.store.sandboxes.changes import ChangeStore
from sandkeeper.store.sandboxes.counts import CountStore
from sandkeeper.store.sandboxes.leaks import LeakStore, render_aged
from sandkeeper.store.sandboxes.repository import SandboxStore
from sandkeeper.store.schema import check_current, upgrade
from sandkeeper.store.sealing import SealedValues
from sandkeeper.store.sessions.leases import LeaseStore
from sandkeeper.store.sessions.pools import PoolStore
from sandkeeper.store.sessions.repository import SessionStore
from sandkeeper.store.sessions.usage_history import UsageHistoryStore
from sandkeeper.store.tables.access import API_KEYS, AUDIT
from sandkeeper.store.tables.gateway import PREVIEW_LINKS, PREVIEW_REQUESTS
from sandkeeper.store.tables.sandboxes import (
    ANSWERS,
    DELIVERIES,
    EVENTS,
    IS_ENDED,
    LEAKS,
    SAMPLES,
    SANDBOXES,
    SEEN_EVENTS,
    WAKES,
    WARMUPS,
)
from sandkeeper.store.tables.sessions import USAGE_HISTORY
from sandkeeper.store.tables.tokens import TOKENS
from sandkeeper.store.wakes.jobs import JobStore
from sandkeeper.store.wakes.prewarms import PrewarmStore
from sandkeeper.store.wakes.repository import WakeStore

PRUNE_BATCH: Final = 1000
"""Rows per transaction. Higher delays other writers; lower costs more round trips."""

PRUNE_S: Final = 60.0
"""How long one prune begins new transactions. Longer delays other writers for longer; shorter
leaves more of a long log to the next one."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows a prune removed, and whether nothing old is left."""

    sandboxes: int
    events: int
    others: int
    is_complete: bool = True


class Store:
    """All stored data."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.events = EventStore(database)
        self.deliveries = DeliveryStore(database)
        self.sandboxes = SandboxStore(database, self.events, self.deliveries)
        self.changes = ChangeStore(database)
        self.counts = CountStore(database)
        self.activity_history = ActivityHistoryStore(database)
        self.budgets = BudgetStore(database)
        self.costs = CostStore(database)
        self.data_keys = DataKeyStore(database)
        self.sealed_values = SealedValues(database)
        self.bulk = BulkWriter(database, self.events, self.deliveries)
        self.idempotency_keys = IdempotencyKeys(database)
        self.key_values = KeyValueStore(database)
        self.files = FileStore(database, self.events)
        self.checkpoints = CheckpointStore(database)
        self.usage_history = UsageHistoryStore(database)
        self.jobs = JobStore(database)
        self.leaks = LeakStore(database)
        self.leases = LeaseStore(database)
        self.pools = PoolStore(database, self.events)
        self.metrics_history = MetricsHistoryStore(database)
        self.replicas = ReplicaStore(database)
        self.region_leases = RegionLeaseStore(database)
        self.sessions = SessionStore(database)
        self.tokens = TokenStore(database)
        self.api_keys = ApiKeyStore(database)
        self.audit = AuditStore(database)
        self.share_links = ShareLinkStore(database)
        self.preview_domains = PreviewDomainStore(database)
        self.preview_requests = PreviewRequestStore(database)
        self.wakes = WakeStore(database)
        self.prewarms = PrewarmStore(database)
        self.slots = SlotStore(database)
        self.line = LineStore(database, self.slots)
        self.quotas = QuotaStore(database)

    @property
    def is_shared(self) -> bool:
        """Return True when several replicas can work on this store."""
        return not self.database.is_sqlite

    async def ping(self) -> None:
        """Return if the database answers; raise StoreUnavailableError otherwise."""
        async with self.database.reading() as connection:
            await connection.execute(text("SELECT 1"))

    async def has_statement_limit(self) -> bool:
        """Return False if PostgreSQL ends no statement of ours, however long it takes."""
        if self.database.is_sqlite:
            return True
        async with self.database.reading() as connection:
            return bool(await connection.scalar(text("SHOW statement_timeout")) != "0")

    async def read_time(self) -> datetime:
        """Return the server's current time; only a shared store has a clock of its own."""
        async with self.database.reading() as connection:
            now: datetime = (
                await connection.execute(text("SELECT clock_timestamp()"))
            ).scalar_one()
            return now

    async def prune(
        self,
        *,
        ended_before: datetime,
        before: datetime,
        now: datetime,
        within_s: float = PRUNE_S,
    ) -> Pruned:
        """Remove ended sandboxes older than ``ended_before`` and the rest older than ``before``.

        Tokens are removed when they have expired.

        Works in small transactions and may be interrupted and repeated at any point. After
        ``within_s`` no other one begins; the log, which is the longest, comes last.
        """
        ends_at = now_s() + within_s
        old = SANDBOXES.c.state_since < ended_before
        while await self.changes.forget_removed(at_most=PRUNE_BATCH) == PRUNE_BATCH:
            pass
        is_ended = text(IS_ENDED) & old
        sandboxes = await self._delete(SANDBOXES, [SANDBOXES.c.id], is_ended, ends_at)
        others = 0
        for table, keys, aged in (
            (DELIVERIES, [DELIVERIES.c.number], DELIVERIES.c.received_at < before),
            (SEEN_EVENTS, [SEEN_EVENTS.c.event_id], SEEN_EVENTS.c.seen_at < before),
            (ANSWERS, [ANSWERS.c.scope, ANSWERS.c.key], ANSWERS.c.started_at < before),
            (LEAKS, [LEAKS.c.instance_id], render_aged(before)),
            (SAMPLES, [SAMPLES.c.number], SAMPLES.c.at < before),
            (WAKES, [WAKES.c.id], WAKES.c.finished_at < before),
            (WARMUPS, [WARMUPS.c.id], WARMUPS.c.settled_at < before),
            (USAGE_HISTORY, [USAGE_HISTORY.c.key], USAGE_HISTORY.c.last_active_at < before),
            (TOKENS, [TOKENS.c.number], TOKENS.c.expires_at < now),
            (AUDIT, [AUDIT.c.number], AUDIT.c.at < before),
            (PREVIEW_LINKS, [PREVIEW_LINKS.c.id], PREVIEW_LINKS.c.expires_at < now),
            (PREVIEW_REQUESTS, [PREVIEW_REQUESTS.c.number], PREVIEW_REQUESTS.c.at < before),
            (
                API_KEYS,
                [API_KEYS.c.id],
                (API_KEYS.c.expires_at < before) | (API_KEYS.c.revoked_at < before),
            ),
        ):
            others += await self._delete(table, keys, aged, ends_at)
        events = await self._prune_events(before, ends_at)
        return Pruned(sandboxes, events, others, is_complete=now_s() < ends_at)

    async def _prune_events(self, before: datetime, ends_at: float) -> int:
        """Remove the oldest entries of the log, from its beginning to the first that is younger.

        Numbers are in the order of time, so no index of the time is needed, which every new entry
        would have to be written to.
        """
        removed = 0
        while now_s() < ends_at:
            oldest = select(EVENTS.c.seq, EVENTS.c.recorded_at).order_by(EVENTS.c.seq)
            some = oldest.limit(PRUNE_BATCH).subquery()
            young = case((some.c.recorded_at >= before, some.c.seq))
            bounds = select(func.max(some.c.seq) + 1, func.min(young))
            async with self.database.writing() as connection:
                end, first_young = (await connection.execute(bounds)).one()
                beyond = end if first_young is None else first_young
                if beyond is None:
                    return removed
                gone = await connection.execute(delete(EVENTS).where(EVENTS.c.seq < beyond))
                count: int = gone.rowcount
            removed += count
            if count < PRUNE_BATCH:
                break
        return removed

    async def _delete(
        self,
        table: Table,
        keys: list[Column[object]],
        condition: ColumnElement[bool],
        ends_at: float,
    ) -> int:
        key = keys[0] if len(keys) == 1 else tuple_(*keys)
        # What another replica removes at this moment is left to it: two would wait for each other.
        some = select(*keys).where(condition).limit(PRUNE_BATCH).with_for_update(skip_locked=True)
        statement = delete(table).where(key.in_(some))
        removed = 0
        while now_s() < ends_at:
            async with self.database.writing() as connection:
                count = (await connection.execute(statement)).rowcount
            removed += count
            if count < PRUNE_BATCH:
                break
        return removed


@asynccontextmanager
async def open_store(
    url: str, *, migrate: bool = True, pool_size: int = POOL_SIZE
) -> AsyncIterator[Store]:
    """Open the database and, unless ``migrate`` is False, bring its schema up to date.

    Several replicas may do so at once. Without ``migrate``, another schema raises
    SchemaMismatchError.
    """
    database = Database(url, pool_size=pool_size)
    try:
        if migrate:
            await upgrade(database)
        else:
            await check_current(database)
        yield Store(database)
    finally:
        await database.close()
