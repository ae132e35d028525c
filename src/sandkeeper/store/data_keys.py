"""The wrapped data keys of this database, shared by all replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import IntegrityError

from sandkeeper.domain.errors import VersionConflictError
from sandkeeper.store.database import Database
from sandkeeper.store.tables.encryption import DATA_KEYS

_T = DATA_KEYS.c


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key as it is stored. It encrypts from `active_at` on, and decrypts at any time."""

    id: str
    wrapped: str
    master_key: str
    created_at: datetime
    active_at: datetime


class DataKeyStore:
    """Reads and writes of the data keys. None is ever removed: a backup may need it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self) -> list[WrappedKey]:
        """Return all data keys, oldest first."""
        columns = [_T[name] for name in WrappedKey.__slots__]
        async with self._database.reading() as connection:
            rows = await connection.execute(select(*columns).order_by(_T.number))
            return [WrappedKey(**row) for row in rows.mappings()]

    async def add_first(self, key: WrappedKey) -> None:
        """Add the first data key; of several replicas that start at once, one does."""
        statement = self._database.insert_ignoring(DATA_KEYS, ["number"])
        async with self._database.writing() as connection:
            await connection.execute(statement, asdict(key) | {"number": 1})

    async def add(self, key: WrappedKey) -> None:
        """Add a further data key; raise VersionConflictError if another came first."""
        try:
            async with self._database.writing() as connection:
                latest = int(await connection.scalar(select(func.max(_T.number))) or 0)
                await connection.execute(insert(DATA_KEYS), asdict(key) | {"number": latest + 1})
        except IntegrityError as error:
            raise VersionConflictError("Another data key was added at the same time.") from error

    async def rewrap(self, wrapped: Mapping[str, str], *, master_key: str) -> None:
        """Replace how these data keys are wrapped, all of them or none."""
        async with self._database.writing() as connection:
            for key_id, text in wrapped.items():
                await connection.execute(
                    update(DATA_KEYS)
                    .where(_T.id == key_id)
                    .values(wrapped=text, master_key=master_key)
                )
