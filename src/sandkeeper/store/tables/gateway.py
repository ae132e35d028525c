"""The tables of share links, own domains and the last requests of previews."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, String, Table, Text, UniqueConstraint

from sandkeeper.store.tables.sandboxes import METADATA, SEQUENCE
from sandkeeper.store.types import UtcMillis

PREVIEW_LINKS: Final = Table(
    "preview_links",
    METADATA,
    Column("id", String, primary_key=True),
    Column("owner_kind", String, nullable=False),
    Column("owner_id", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("port", Integer),
    Column("path", Text, nullable=False),
    Column("uses_max", Integer),
    Column("uses", Integer, nullable=False),
    Column("created_at", UtcMillis, nullable=False),
    Column("created_by", String, nullable=False),
    Column("expires_at", UtcMillis, nullable=False),
    Column("revoked_at", UtcMillis),
    UniqueConstraint("digest", name="uq_preview_links_digest"),
    Index("ix_preview_links_owner", "owner_kind", "owner_id"),
    Index("ix_preview_links_expires_at", "expires_at"),
)

PREVIEW_DOMAINS: Final = Table(
    "preview_domains",
    METADATA,
    Column("host", String, primary_key=True),
    Column("owner_kind", String, nullable=False),
    Column("owner_id", String, nullable=False),
    Column("port", Integer),
    Column("created_at", UtcMillis, nullable=False),
    Column("created_by", String, nullable=False),
)

PREVIEW_REQUESTS: Final = Table(
    "preview_requests",
    METADATA,
    Column("number", SEQUENCE, primary_key=True, autoincrement=True),
    Column("sandbox_id", String, nullable=False),
    Column("at", UtcMillis, nullable=False),
    Column("method", String, nullable=False),
    Column("path", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("took_ms", Integer, nullable=False),
    Column("received", BigInteger, nullable=False),
    Column("sent", BigInteger, nullable=False),
    Column("kind", String, nullable=False),
    Column("who", String, nullable=False),
    Index("ix_preview_requests_sandbox", "sandbox_id", "number"),
    Index("ix_preview_requests_at", "at"),
    sqlite_autoincrement=True,
)
