"""The tables of API keys and of the audit log."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Index, String, Table, Text, UniqueConstraint

from sandkeeper.store.tables.sandboxes import METADATA, SEQUENCE
from sandkeeper.store.types import UtcMillis

API_KEYS: Final = Table(
    "api_keys",
    METADATA,
    Column("id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("scope", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("created_at", UtcMillis, nullable=False),
    Column("created_by", String, nullable=False),
    Column("expires_at", UtcMillis),
    Column("revoked_at", UtcMillis),
    UniqueConstraint("digest", name="uq_api_keys_digest"),
)

AUDIT: Final = Table(
    "audit",
    METADATA,
    Column("number", SEQUENCE, primary_key=True, autoincrement=True),
    Column("at", UtcMillis, nullable=False),
    Column("actor", String, nullable=False),
    Column("action", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("address", String, nullable=False),
    Column("data", Text, nullable=False),
    Index("ix_audit_at", "at"),
    sqlite_autoincrement=True,
)
