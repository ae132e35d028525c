"""The mark of a file store: whose files it holds, and that all replicas use the same one.

Replicas that each keep files in a folder of their own would lose them for each other. The first
keeper to start writes a mark into its store and the mark's text into the database; every later
start compares the two.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

import structlog

from sandkeeper.domain.errors import FilesUnavailableError, InvalidSettingsError
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.blobs import MARK, Blobs

log = structlog.get_logger(__name__)

FACT: Final = "files.mark"

# Two replicas that start first and at once may both write a mark: one waits for the other's.
READS_MAX: Final = 20
READ_EVERY_S: Final = 0.1


async def check_file_store(deps: Deps, blobs: Blobs) -> None:
    """Raise InvalidSettingsError if the store is another keeper's, or not the replicas' shared one.

    A store that cannot be reached now is not checked: what needs it fails until it is back.
    """
    try:
        await _check(deps, blobs)
    except FilesUnavailableError as error:
        log.warning("file_store_not_checked", error=str(error))


async def _check(deps: Deps, blobs: Blobs) -> None:
    found = await blobs.read_mark()
    if found is None:
        found = f"{deps.keeper_id} {secrets.token_hex(8)}"
        await blobs.write_mark(found)
    keeper_id = found.partition(" ")[0]
    if keeper_id != deps.keeper_id:
        raise InvalidSettingsError(
            f"The file store belongs to the keeper {keeper_id}, and the database to "
            f"{deps.keeper_id}: set `files_url` to this keeper's own bucket or folder, or "
            "`database` to the other keeper's."
        )
    held = str(await deps.store.key_values.put_new(FACT, found, now=deps.clock()))
    for _ in range(READS_MAX):
        if await blobs.read_mark() == held:
            return
        if held == found:
            await blobs.write_mark(held)
        await asyncio.sleep(READ_EVERY_S)
    if deps.store.is_shared:
        raise InvalidSettingsError(
            "This file store is not the one that the other replicas use: set `files_url` of every "
            "replica to the same bucket or shared folder. If you moved the files here, write the "
            f"line {held!r} to the file `{MARK}` in it."
        )
    log.warning("file_store_is_another_one", hint="Files kept elsewhere are not found here.")
    await deps.store.key_values.put(FACT, found, now=deps.clock())
