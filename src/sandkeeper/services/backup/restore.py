"""Restore: every pack, proven by its hash, then all rows in one transaction.

A restore that is interrupted has changed no row, and can be repeated. Nothing is asked of the
provider here: after the next start the reconciler compares the records with what really exists, and
adopts what was created since the backup.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.errors import FilesDamagedError
from sandkeeper.hosting.data_keys import check_master_key
from sandkeeper.services.backup.backup import COPIES
from sandkeeper.services.backup.place import (
    FORMAT,
    PACK_LIST,
    BackupError,
    BackupPlace,
    find_pack_key,
    split_lines,
)
from sandkeeper.services.files.blobs import Blobs
from sandkeeper.services.files.store_mark import FACT
from sandkeeper.settings import Settings
from sandkeeper.store.backup.snapshot import (
    ROWS_MAX,
    find_rows,
    forget_time_away,
    prepare_empty,
    prepare_newest,
    write_rows,
)
from sandkeeper.store.data_keys import WrappedKey
from sandkeeper.store.database import Database
from sandkeeper.store.schema import is_known

LINES_MAX: Final = 1000


@dataclass(slots=True)
class RestoredBackup:
    """What was restored."""

    rows: int
    packs: int
    bytes: int
    taken_at: datetime


async def restore(
    database: Database,
    blobs: Blobs,
    place: BackupPlace,
    settings: Settings,
    *,
    tell: Callable[[str], None],
) -> RestoredBackup:
    """Fill an empty database and a file store from a backup."""
    summary = await place.read_summary()
    if summary is None:
        raise BackupError(f"{place.name} holds no whole backup: it has no `backup.json`.")
    _check_version(summary)
    filled = await find_rows(database)
    if filled is not None:
        raise BackupError(
            f"The database is not empty: {filled} has rows.",
            "Stop every keeper, and name a new database (or remove the old one) to restore into.",
        )
    await _check_key(place, summary, settings)
    mark = await _check_mark(place, summary, blobs)
    packs = await _restore_packs(place, summary, blobs)
    tell(f"{packs} packs are in the file store; the rows follow.")
    taken_at = datetime.fromisoformat(summary["takenAt"])
    rows = 0
    async with database.writing(is_limited=False) as connection:
        await prepare_empty(connection, summary["revision"])
        for name, noted in summary["tables"].items():
            rows += await _restore_table(connection, place, name, noted)
        await prepare_newest(connection)
        await forget_time_away(connection, taken_at=taken_at, now=datetime.now(UTC))
    if mark is not None:
        await blobs.write_mark(mark)
    return RestoredBackup(rows, packs, int(summary["packs"]["bytes"]), taken_at)


def _check_version(summary: dict[str, Any]) -> None:
    if summary.get("format") != FORMAT or not is_known(str(summary.get("revision"))):
        raise BackupError(
            f"This backup was made by Sandkeeper {summary.get('sandkeeper')}, which is newer.",
            "Restore it with that version or a later one.",
        )


async def _check_key(place: BackupPlace, summary: dict[str, Any], settings: Settings) -> None:
    """Refuse a backup whose secrets and files could not be opened here."""
    keys = [
        WrappedKey(**{name: row[name] for name in WrappedKey.__slots__})
        for row in await _read_small(place, summary, "data_keys")
    ]
    await asyncio.to_thread(check_master_key, keys, settings)


async def _check_mark(place: BackupPlace, summary: dict[str, Any], blobs: Blobs) -> str | None:
    """Return the mark that the file store must have; refuse another keeper's store."""
    facts = {row["name"]: row["value"] for row in await _read_small(place, summary, "facts")}
    mark = orjson.loads(facts[FACT]) if FACT in facts else None
    found = await blobs.read_mark()
    if found and mark and found.partition(" ")[0] != mark.partition(" ")[0]:
        raise BackupError(
            f"The file store belongs to the keeper {found.partition(' ')[0]}, and the backup to "
            f"{mark.partition(' ')[0]}.",
            "Set `files_url` to an empty bucket or folder.",
        )
    return mark


async def _read_small(
    place: BackupPlace, summary: dict[str, Any], table: str
) -> list[dict[str, Any]]:
    """Return the rows of a table that is small in every database."""
    noted = summary["tables"][table]
    pieces = place.read(f"tables/{table}.jsonl.gz", sha256=noted["sha256"])
    lines = [line async for some in split_lines(pieces, at_most=LINES_MAX) for line in some]
    names, *rows = [orjson.loads(line) for line in lines]
    return [dict(zip(names, row, strict=True)) for row in rows]


async def _restore_table(
    connection: AsyncConnection, place: BackupPlace, table: str, noted: dict[str, Any]
) -> int:
    pieces = place.read(f"tables/{table}.jsonl.gz", sha256=noted["sha256"])
    count = await write_rows(connection, table, split_lines(pieces, at_most=ROWS_MAX))
    if count != noted["rows"]:
        raise BackupError(f"{table} has {count} rows instead of {noted['rows']}.")
    return count


async def _restore_packs(place: BackupPlace, summary: dict[str, Any], blobs: Blobs) -> int:
    count = 0
    pieces = place.read(PACK_LIST, sha256=summary["packs"]["sha256"])
    async for lines in split_lines(pieces, at_most=COPIES):
        entries = [orjson.loads(line) for line in lines]
        await asyncio.gather(*(_restore_pack(place, blobs, entry) for entry in entries))
        count += len(entries)
    return count


async def _restore_pack(place: BackupPlace, blobs: Blobs, entry: dict[str, Any]) -> None:
    """Put a pack into the file store unless it is there, and read it back."""
    name, sha256 = entry["name"], entry["sha256"]
    if await _hash(blobs, name) == sha256:
        return
    await blobs.put_stream(name, place.read(find_pack_key(name), sha256=sha256))
    if await _hash(blobs, name) != sha256:
        raise BackupError(f"The file store did not keep {name} as it was written.")


async def _hash(blobs: Blobs, name: str) -> str | None:
    digest = hashlib.sha256()
    try:
        async for piece in blobs.read(name):
            digest.update(piece)
    except FilesDamagedError:
        return None
    return digest.hexdigest()
