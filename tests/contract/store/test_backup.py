"""A backup of either database can be restored into either, row by row."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import BigInteger, Boolean, Float, Integer, Table, insert, text

from sandkeeper.domain.errors import InvalidSettingsError
from sandkeeper.hosting.data_keys import open_data_keys
from sandkeeper.services.backup.backup import back_up
from sandkeeper.services.backup.place import BackupError, BackupPlace
from sandkeeper.services.backup.restore import restore
from sandkeeper.services.files.blobs import open_blobs
from sandkeeper.settings import Settings
from sandkeeper.store import Store, open_store
from sandkeeper.store.backup.snapshot import DERIVED, hold_packs, list_tables
from sandkeeper.store.database import Database
from sandkeeper.store.tables.sandboxes import METADATA
from sandkeeper.store.types import UtcMillis
from support.keeper_process import ENCRYPTION_KEY

NOW = datetime.now(UTC).replace(microsecond=0)
MOVED = {"last_active_at", "expires_at", "next_check_at", "leased_until", "state_since"}
MOVED |= {"idle_at", "last_used_at", "until", "claim_kind", "claim_holder", "claim_until"}
NOT_KEPT = {"replicas", "leaks"}


def make_row(table: Table) -> dict[str, Any]:
    """A row with a value in every column."""
    row: dict[str, Any] = {}
    for column in table.columns:
        kind = column.type
        if isinstance(kind, UtcMillis):
            row[column.name] = NOW
        elif isinstance(kind, Boolean):
            row[column.name] = True
        elif isinstance(kind, Float):
            row[column.name] = 1.5
        elif isinstance(kind, BigInteger | Integer):
            row[column.name] = 41
        else:
            row[column.name] = f"{column.name} ä \u2028 'x'"
    special = {"owner_kind": "project", "state": "RUNNING", "removed_at": None}
    return row | {name: value for name, value in special.items() if name in row}


async def read_all(database: Database, *, skip: set[str]) -> dict[str, list[tuple[object, ...]]]:
    found = {}
    async with database.reading() as connection:
        for table in list_tables():
            if table.name in NOT_KEPT:
                continue
            names = [f'"{one.name}"' for one in table.columns if one.name not in skip]
            query = f'SELECT {", ".join(names)} FROM "{table.name}"'
            rows = (await connection.execute(text(query))).all()
            found[table.name] = sorted((tuple(row) for row in rows), key=str)
    return found


def settings_of(folder: Path, key: str = ENCRYPTION_KEY) -> Settings:
    return Settings(data=folder, encryption_key=SecretStr(key))


async def take(store: Store, folder: Path) -> BackupPlace:
    place = BackupPlace(str(folder / "backup"))
    await back_up(store, open_blobs("", folder / "files"), place, tell=str)
    return place


async def put_back(url: str, place: BackupPlace, folder: Path, key: str = ENCRYPTION_KEY) -> None:
    database = Database(url)
    try:
        blobs = open_blobs("", folder / "restored")
        await restore(database, blobs, place, settings_of(folder, key), tell=str)
    finally:
        await database.close()


async def test_every_row_comes_back_in_the_other_database(
    store: Store, postgres_database: str, tmp_path: Path
) -> None:
    await open_data_keys(store, settings_of(tmp_path), now=NOW)
    async with store.database.writing() as connection:
        for table in list_tables():
            if table.name != "data_keys":
                await connection.execute(insert(table), make_row(table))
    place = await take(store, tmp_path)
    other = postgres_database if store.database.is_sqlite else f"sqlite:///{tmp_path / 'other.db'}"
    with pytest.raises(InvalidSettingsError, match="master key"):
        await put_back(other, place, tmp_path, key="YW5vdGhlci10ZXN0LWtleS1vZi0zMi1ieXRlcy4uLi4=")
    await put_back(other, place, tmp_path)
    async with open_store(other, migrate=False) as restored:
        assert await read_all(restored.database, skip=MOVED) == await read_all(
            store.database, skip=MOVED
        )
        # New rows are numbered after the restored ones.
        async with restored.database.writing() as connection:
            row = make_row(METADATA.tables["events"])
            del row["seq"]
            await connection.execute(insert(METADATA.tables["events"]), row)
        assert await restored.events.latest_seq() > 41
    with pytest.raises(BackupError, match="not empty"):
        await put_back(other, place, tmp_path)


async def test_a_damaged_backup_is_refused_and_the_database_stays_empty(
    store: Store, tmp_path: Path
) -> None:
    await open_data_keys(store, settings_of(tmp_path), now=NOW)
    place = await take(store, tmp_path)
    damaged = tmp_path / "backup" / "tables" / "sandboxes.jsonl.gz"
    damaged.write_bytes((tmp_path / "backup" / "tables" / "jobs.jsonl.gz").read_bytes())
    other = f"sqlite:///{tmp_path / 'other.db'}"
    with pytest.raises(BackupError):
        await put_back(other, place, tmp_path)
    damaged.unlink()
    with pytest.raises(BackupError, match="could not be read"):
        await put_back(other, place, tmp_path)
    (tmp_path / "backup" / "backup.json").unlink()
    with pytest.raises(BackupError, match="no whole backup"):
        await put_back(other, place, tmp_path)


async def test_no_pack_is_removed_while_a_backup_copies_them(store: Store) -> None:
    await store.files.add_packs([("a", 1)], data_key="k", now=NOW - timedelta(days=3))
    times = {"unused_before": NOW, "unfinished_before": NOW, "now": NOW}
    await hold_packs(store.database, until=NOW + timedelta(minutes=5), now=NOW)
    assert await store.files.are_packs_held(NOW)
    assert await store.files.mark_packs_unused(**times) == []
    later = times | {"now": NOW + timedelta(minutes=6)}
    assert await store.files.mark_packs_unused(**later) == ["a"]


async def test_the_derived_tables_are_those_that_triggers_write(store: Store) -> None:
    if not store.database.is_sqlite:
        pytest.skip("the triggers of both databases write the same tables")
    async with store.database.reading() as connection:
        found = await connection.scalars(
            text("SELECT sql FROM sqlite_master WHERE type = 'trigger'")
        )
        words = " ".join(found)
    written = set(re.findall(r"(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)", words)) - {"SET"}
    assert written & set(METADATA.tables) == DERIVED
