"""The keeper's id: in the database, where replicas share it, and in the data folder.

Instances carry the id, so it decides which ones are ours. The copy in the data folder detects a
start against another database, and survives the loss of the database: a new one gets the same id,
and the reconciler adopts the instances that carry it.
"""

from __future__ import annotations

import secrets
from datetime import datetime
from pathlib import Path

import structlog

from sandkeeper.hosting.data_dir import KEEPER_ID_FILE, read_keeper_id, write_keeper_id
from sandkeeper.store import Store

log = structlog.get_logger(__name__)

FACT = "keeper.id"


async def load_or_create_keeper_id(store: Store, data: Path, *, now: datetime) -> str:
    """Return the id of the database; say so if the data folder has another one."""
    known = read_keeper_id(data)
    is_new = await store.key_values.find(FACT) is None
    held = str(await store.key_values.put_new(FACT, known or secrets.token_hex(6), now=now))
    if not known:
        write_keeper_id(data, held)
    elif known and known != held:
        log.warning(
            "database_of_another_keeper",
            data_folder=known,
            database=held,
            hint="Sandboxes of the data folder's keeper are foreign to this database. Check the "
            f"database's URL; if it is the right one, remove {data / KEEPER_ID_FILE}.",
        )
    elif known and is_new:
        log.warning(
            "database_is_new",
            keeper_id=held,
            hint="The data folder is older than this database. Sandboxes that the provider still "
            "has are adopted; restore a backup to get the other records back.",
        )
    return held
