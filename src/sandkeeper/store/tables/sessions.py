"""The tables of the sessions: their sandboxes, leases and counters, and the pools."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from sandkeeper.store.tables.sandboxes import METADATA
from sandkeeper.store.types import UtcMillis

SESSIONS: Final = Table(
    "sessions",
    METADATA,
    Column("id", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("user_id", String, nullable=False),
    Column("task_id", String, nullable=False),
    Column("home", String, nullable=False),
    Column("folder", Text, nullable=False),
    Column("idle_timeout_s", Float, nullable=False),
    Column("created_at", UtcMillis, nullable=False),
    Column("last_used_at", UtcMillis, nullable=False),
    Column("idle_at", UtcMillis, nullable=False),
    Column("uses", Integer, nullable=False),
    UniqueConstraint("kind", "user_id", "task_id", name="uq_sessions_key"),
    Index("ix_sessions_home", "home"),
    Index("ix_sessions_idle_at", "idle_at", "id"),
)

LEASES: Final = Table(
    "leases",
    METADATA,
    Column("id", String, primary_key=True),
    Column("sandbox_id", String, nullable=False),
    Column("session_id", String),
    Column("holder", String, nullable=False),
    Column("taken_at", UtcMillis, nullable=False),
    Column("until", UtcMillis, nullable=False),
    Index("ix_leases_sandbox_id", "sandbox_id", "until"),
    Index("ix_leases_session_id", "session_id", "until"),
    Index("ix_leases_until", "until"),
)

SESSION_COUNTS: Final = Table(
    "session_counts",
    METADATA,
    Column("kind", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

USAGE_HISTORY: Final = Table(
    "usage_history",
    METADATA,
    Column("key", String, primary_key=True),
    Column("gaps", Text, nullable=False),
    Column("last_active_at", UtcMillis, nullable=False),
    Index("ix_usage_history_last_active_at", "last_active_at"),
)

POOLS: Final = Table(
    "pools",
    METADATA,
    Column("template", String, primary_key=True),
    Column("target", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("retry_at", UtcMillis),
    Column("error", Text, nullable=False),
    Column("hits", BigInteger, nullable=False),
    Column("misses", BigInteger, nullable=False),
    Column("filler", String),
    Column("filled_until", UtcMillis),
    Column("updated_at", UtcMillis, nullable=False),
)
