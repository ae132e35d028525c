"""Checkpoints: names of versions of saved files. A version with a name is never pruned.

A name is given under a lock of the version's row, and versions are pruned under the same lock, so
of the two the first one wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, delete, func, select, update

from sandkeeper.domain.errors import (
    CheckpointExistsError,
    CheckpointLimitError,
    SavedFileNotFoundError,
)
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.store.database import Database
from sandkeeper.store.tables.files import FILE_CHECKPOINTS, FILE_VERSIONS

_C = FILE_CHECKPOINTS.c
_V = FILE_VERSIONS.c
CHECKPOINTS_MAX: Final = 100
"""Names of one owner. More keep more old content for ever; the next one is refused."""


@dataclass(frozen=True, slots=True)
class FileCheckpoint:
    """A name of one version, and who gave it."""

    owner: Owner
    name: str
    number: int
    created_at: datetime
    actor: str


class CheckpointStore:
    """Give, list and remove names."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, owner: Owner) -> list[FileCheckpoint]:
        """Return the names of an owner's versions, the newest version first."""
        statement = select(FILE_CHECKPOINTS).where(_owned(owner))
        statement = statement.order_by(_C.number.desc(), _C.name).limit(2 * CHECKPOINTS_MAX)
        async with self._database.reading() as connection:
            return [_from_row(row) for row in (await connection.execute(statement)).mappings()]

    async def add(self, checkpoint: FileCheckpoint) -> FileCheckpoint:
        """Give a version a name; one that it has already is returned as it is.

        Raise SavedFileNotFoundError if the version is pruned, and CheckpointExistsError if another
        version has the name.
        """
        owner, number = checkpoint.owner, checkpoint.number
        is_version = and_(
            _V.owner_kind == owner.kind.value, _V.owner_id == owner.id, _V.number == number
        )
        same_name = and_(_owned(owner), _C.name == checkpoint.name)
        adding = self._database.insert_ignoring(
            FILE_CHECKPOINTS, ["owner_kind", "owner_id", "name"]
        )
        async with self._database.writing() as connection:
            locking = update(FILE_VERSIONS).where(is_version).values(number=number)
            if (await connection.execute(locking)).rowcount == 0:
                raise SavedFileNotFoundError(f"There is no version {number} of the kept files.")
            named = select(FILE_CHECKPOINTS).where(same_name)
            known = (await connection.execute(named)).mappings().first()
            if known is None:
                count = select(func.count()).select_from(FILE_CHECKPOINTS).where(_owned(owner))
                if (await connection.scalar(count) or 0) >= CHECKPOINTS_MAX:
                    raise CheckpointLimitError(limit=CHECKPOINTS_MAX)
                await connection.execute(adding, _to_row(checkpoint))
                # Another writer may have given another version this name in between.
                known = (await connection.execute(named)).mappings().one()
        found = _from_row(known)
        if found.number != number:
            raise CheckpointExistsError(
                f"Version {found.number} has the name {checkpoint.name!r}.", version=found.number
            )
        return found

    async def remove(self, owner: Owner, name: str) -> bool:
        """Remove a name; its version is pruned like all others from then on."""
        async with self._database.writing() as connection:
            statement = delete(FILE_CHECKPOINTS).where(_owned(owner), _C.name == name)
            return bool((await connection.execute(statement)).rowcount)


def _owned(owner: Owner) -> ColumnElement[bool]:
    return and_(_C.owner_kind == owner.kind.value, _C.owner_id == owner.id)


def _to_row(checkpoint: FileCheckpoint) -> dict[str, object]:
    return {
        "owner_kind": checkpoint.owner.kind.value,
        "owner_id": checkpoint.owner.id,
        "name": checkpoint.name,
        "number": checkpoint.number,
        "created_at": checkpoint.created_at,
        "actor": checkpoint.actor,
    }


def _from_row(row: Any) -> FileCheckpoint:
    values = dict(row)
    owner = Owner(OwnerKind(values.pop("owner_kind")), values.pop("owner_id"))
    return FileCheckpoint(owner=owner, **values)
