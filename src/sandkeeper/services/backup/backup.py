"""Back up: all rows as of one moment, then every pack that they name.

A pack is written once, so what the rows name is there afterwards too, unless it is removed or
re-encrypted. Neither happens while the backup holds the packs, and a hold ends by itself when the
backup is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any, Final

import orjson
from sqlalchemy import Table, text
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.errors import FilesDamagedError, SandkeeperError
from sandkeeper.services.backup.place import (
    FORMAT,
    PACK_LIST,
    BackupError,
    BackupPlace,
    compress,
    find_pack_key,
)
from sandkeeper.services.files.blobs import Blobs
from sandkeeper.services.files.sealed_packs import SUFFIX
from sandkeeper.store import Store
from sandkeeper.store.backup.snapshot import (
    hold_packs,
    list_tables,
    open_snapshot,
    read_rows,
    release_packs,
)
from sandkeeper.store.schema import latest_revision

HOLD: Final = timedelta(minutes=5)
"""How long a killed backup keeps packs from being removed."""
RENEW_S: Final = 60.0
COPIES: Final = 8
"""Packs copied at once. Higher takes more memory, 16 MiB each; lower leaves a bucket idle."""


@dataclass(slots=True)
class BackupReport:
    """What a backup has."""

    rows: int = 0
    packs: int = 0
    bytes: int = 0
    missing: list[str] = field(default_factory=list)
    """Packs that the database names and the file store does not have."""


async def back_up(
    store: Store, blobs: Blobs, place: BackupPlace, *, tell: Callable[[str], None]
) -> BackupReport:
    """Write a whole backup to an empty place, beside running keepers."""
    if await place.read_summary() is not None:
        raise BackupError(
            f"{place.name} holds a backup already.", "Name another folder or prefix for this one."
        )
    report = BackupReport()
    async with _holding(store) as check_hold:
        taken_at = datetime.now(UTC)
        tables: dict[str, Any] = {}
        async with open_snapshot(store.database) as connection:
            for table in list_tables():
                tables[f"{table.name}"] = await _write_table(connection, table, place)
                report.rows += tables[table.name]["rows"]
            found = await connection.execute(
                text("SELECT id, data_key FROM file_packs WHERE state = 'live' ORDER BY id")
            )
            packs = [(row.id, row.data_key is None) for row in found]
        tell(f"{report.rows} rows of {len(tables)} tables are written; {len(packs)} packs follow.")
        listed = await place.write(PACK_LIST, compress(_copy_packs(packs, blobs, place, report)))
        check_hold()
    await place.write_summary(
        {
            "format": FORMAT,
            "sandkeeper": version("sandkeeper"),
            "revision": latest_revision(),
            "takenAt": taken_at.isoformat(),
            "tables": tables,
            "packs": {
                "count": report.packs,
                "bytes": report.bytes,
                "sha256": listed.sha256,
                "missing": report.missing,
            },
        }
    )
    return report


async def _write_table(
    connection: AsyncConnection, table: Table, place: BackupPlace
) -> dict[str, Any]:
    count = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal count
        async for rows, lines in read_rows(connection, table):
            count += rows
            yield lines

    written = await place.write(f"tables/{table.name}.jsonl.gz", compress(pieces()))
    return {"rows": count, "sha256": written.sha256}


async def _copy_packs(
    packs: Sequence[tuple[str, bool]], blobs: Blobs, place: BackupPlace, report: BackupReport
) -> AsyncIterator[bytes]:
    """Copy the packs, and yield a line for each."""
    for start in range(0, len(packs), COPIES):
        some = packs[start : start + COPIES]
        copied = await asyncio.gather(
            *(_copy_pack(name, blobs, place, may_be_plain=plain) for name, plain in some)
        )
        for (name, _), entry in zip(some, copied, strict=True):
            if entry is None:
                report.missing.append(name)
                continue
            report.packs += 1
            report.bytes += entry["bytes"]
            yield orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)


async def _copy_pack(
    pack: str, blobs: Blobs, place: BackupPlace, *, may_be_plain: bool
) -> dict[str, Any] | None:
    for name in (pack + SUFFIX, pack) if may_be_plain else (pack + SUFFIX,):
        try:
            # What is missing is known before anything is written.
            await blobs.get_head(name, 1)
            written = await place.write(find_pack_key(name), blobs.read(name))
        except FilesDamagedError:
            continue
        return {"name": name, "bytes": written.bytes, "sha256": written.sha256}
    return None


@asynccontextmanager
async def _holding(store: Store) -> AsyncIterator[Callable[[], None]]:
    """Hold the packs; the function that is given raises BackupError if they were let go."""
    until = datetime.now(UTC)

    async def renew() -> None:
        nonlocal until
        now = datetime.now(UTC)
        await hold_packs(store.database, until=now + HOLD, now=now)
        until = now + HOLD

    async def renew_forever() -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            with contextlib.suppress(SandkeeperError):  # The next one may succeed in time.
                await renew()

    def check() -> None:
        if datetime.now(UTC) >= until:
            raise BackupError(
                "The database could not be reached for five minutes, and packs may have been "
                "removed since.",
                "Run the backup again.",
            )

    await renew()
    renewing = asyncio.create_task(renew_forever())
    try:
        yield check
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with contextlib.suppress(SandkeeperError):
            await release_packs(store.database)
