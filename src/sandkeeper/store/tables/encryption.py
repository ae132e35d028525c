"""The table of the data keys, wrapped by a master key that is not in the database."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Integer, String, Table, Text, UniqueConstraint

from sandkeeper.store.tables.sandboxes import METADATA
from sandkeeper.store.types import UtcMillis

DATA_KEYS: Final = Table(
    "data_keys",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("id", String, nullable=False),
    Column("wrapped", Text, nullable=False),
    Column("master_key", String, nullable=False),
    Column("created_at", UtcMillis, nullable=False),
    Column("active_at", UtcMillis, nullable=False),
    UniqueConstraint("id", name="uq_data_keys_id"),
)
