"""The table of logins and client tokens."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Index, String, Table, UniqueConstraint, text

from sandkeeper.store.tables.sandboxes import METADATA, SEQUENCE
from sandkeeper.store.types import UtcMillis

TOKENS: Final = Table(
    "tokens",
    METADATA,
    Column("number", SEQUENCE, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False),
    Column("use", String, nullable=False),
    Column("role", String, nullable=False),
    Column("holder", String, nullable=False, server_default=""),
    Column("owner_kind", String),
    Column("owner_id", String),
    Column("issued_at", UtcMillis, nullable=False),
    Column("expires_at", UtcMillis, nullable=False),
    Column("revoked_at", UtcMillis),
    UniqueConstraint("id", name="uq_tokens_id"),
    Index("ix_tokens_use", "use", "number"),
    Index("ix_tokens_expires_at", "expires_at"),
    # The replicas read these after each revocation.
    Index(
        "ix_tokens_revoked",
        "expires_at",
        sqlite_where=text("revoked_at IS NOT NULL"),
        postgresql_where=text("revoked_at IS NOT NULL"),
    ),
    sqlite_autoincrement=True,
)
