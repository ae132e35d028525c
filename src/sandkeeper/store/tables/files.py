"""The tables of the saved files: versions of an owner, packs of content, and their contents."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, String, Table

from sandkeeper.store.tables.sandboxes import METADATA
from sandkeeper.store.types import UtcMillis

FILE_VERSIONS: Final = Table(
    "file_versions",
    METADATA,
    Column("owner_kind", String, primary_key=True),
    Column("owner_id", String, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("manifest", String, nullable=False),
    Column("tree", String, nullable=False),
    Column("files", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("source", String, nullable=False),
    Column("created_at", UtcMillis, nullable=False),
    Column("seen_at", UtcMillis, nullable=False),
    # What was not recorded before these columns existed is null.
    Column("reason", String),
    Column("actor", String),
    Column("changed", Integer),
    Column("removed", Integer),
    Index("ix_file_versions_seen_at", "seen_at"),
)

FILE_PACKS: Final = Table(
    "file_packs",
    METADATA,
    Column("id", String, primary_key=True),
    Column("state", String, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("used_at", UtcMillis, nullable=False),
    Column("data_key", String),
    Index("ix_file_packs_state", "state", "used_at"),
    Index("ix_file_packs_data_key", "data_key"),
)

FILE_BLOBS: Final = Table(
    "file_blobs",
    METADATA,
    Column("sha256", String, primary_key=True),
    Column("pack", String, nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Index("ix_file_blobs_pack", "pack"),
)

FILE_USES: Final = Table(
    "file_uses",
    METADATA,
    Column("owner_kind", String, primary_key=True),
    Column("owner_id", String, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("pack", String, primary_key=True),
    Index("ix_file_uses_pack", "pack"),
)

FILE_CHECKPOINTS: Final = Table(
    "file_checkpoints",
    METADATA,
    Column("owner_kind", String, primary_key=True),
    Column("owner_id", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("number", Integer, nullable=False),
    Column("created_at", UtcMillis, nullable=False),
    Column("actor", String, nullable=False),
    Index("ix_file_checkpoints_number", "owner_kind", "owner_id", "number"),
)
