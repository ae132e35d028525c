"""The tables of the capacity: what runs or may run, what waits for a slot, and each provider."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, String, Table, false

from sandkeeper.store.tables.sandboxes import METADATA
from sandkeeper.store.types import UtcMillis

SLOTS: Final = Table(
    "slots",
    METADATA,
    Column("sandbox_id", String, primary_key=True),
    Column("generation", Integer, primary_key=True),
    Column("provider", String, nullable=False),
    Column("region", String, nullable=False),
    Column("template", String, nullable=False),
    Column("tenant", String, nullable=False),
    # The record says that it runs, or may run. Triggers keep this.
    Column("live", Boolean, nullable=False, server_default=false()),
    Column("since", UtcMillis, nullable=False),
    # A start under way: until its result is recorded, or the provider was asked about it.
    Column("token", String),
    Column("reserved_until", UtcMillis),
    Column("evicting_until", UtcMillis),
    Index("ix_slots_place", "provider", "region", "template"),
    Index("ix_slots_tenant", "tenant"),
    Index("ix_slots_reserved_until", "reserved_until"),
)

WAITERS: Final = Table(
    "waiters",
    METADATA,
    Column("key", String, primary_key=True),
    Column("sandbox_id", String, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("provider", String, nullable=False),
    Column("region", String, nullable=False),
    Column("template", String, nullable=False),
    Column("tenant", String, nullable=False),
    Column("priority", String, nullable=False),
    Column("overflow", String, nullable=False),
    Column("since", UtcMillis, nullable=False),
    Column("seen_at", UtcMillis, nullable=False),
    Index("ix_waiters_place", "provider", "region", "since"),
)

PLACES: Final = Table(
    "places",
    METADATA,
    Column("provider", String, primary_key=True),
    Column("region", String, primary_key=True),
    Column("learned_limit", Integer),
    # When the provider last refused to run more, or was last tried beyond the limit.
    Column("learned_at", UtcMillis),
    Column("unrecorded", Integer, nullable=False, server_default="0"),
    Column("granted_at", UtcMillis),
    Column("grant_every_ms", BigInteger),
)

QUOTAS: Final = Table(
    "quotas",
    METADATA,
    Column("tenant", String, primary_key=True),
    Column("running", BigInteger),
    Column("kept", BigInteger),
    Column("creations_hour", BigInteger),
    Column("creations_day", BigInteger),
    Column("running_hours_month", BigInteger),
    Column("kept_bytes", BigInteger),
    Column("updated_at", UtcMillis, nullable=False),
)

CREATIONS: Final = Table(
    "creations",
    METADATA,
    Column("tenant", String, primary_key=True),
    Column("hour", UtcMillis, primary_key=True),
    Column("count", BigInteger, nullable=False),
    Index("ix_creations_hour", "hour"),
)
