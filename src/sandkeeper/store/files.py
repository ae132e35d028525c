"""Versions of saved files, and where their contents are stored.

A *pack* is one object in the blob store; it holds the contents of many small files, one large file,
or a manifest. It is `new` until a version that needs it is committed, then `live`. A version names
every pack it needs, so a pack that no version names can be removed: it is first marked `dying`,
which stops new versions from using it, then its object is deleted, then its row. `used_at` changes
with every use, so a pack cannot be marked while a version that uses it is being committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson
from sqlalchemy import (
    ColumnElement,
    TextClause,
    and_,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.errors import VersionConflictError
from sandkeeper.domain.events import Event
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.store.database import Database
from sandkeeper.store.events import EventStore
from sandkeeper.store.tables.files import (
    FILE_BLOBS,
    FILE_CHECKPOINTS,
    FILE_PACKS,
    FILE_USES,
    FILE_VERSIONS,
)
from sandkeeper.store.tables.sandboxes import FACTS, SANDBOXES
from sandkeeper.store.types import to_epoch_ms

_V = FILE_VERSIONS.c
_P = FILE_PACKS.c
_U = FILE_USES.c
_C = FILE_CHECKPOINTS.c
_ROWS_MAX: Final = 500
"""Values per statement: SQLite and PostgreSQL both limit them."""
_HASHES_MAX: Final = 5000
"""Contents looked up or added by one statement: more let others wait longer for the connection."""
HELD: Final = "backup.until"
"""The name of the value that says until when no pack may be removed or rewritten."""
_BLOB_COLUMNS: Final = {"sha256": "varchar", "pack": "varchar", "start": "bigint", "size": "bigint"}


def _render_blob_insert(*, is_sqlite: bool) -> TextClause:
    """Return one INSERT of many rows, bound as one value: a parameter each takes far longer."""
    names = [f'"{name}"' for name in _BLOB_COLUMNS]
    if is_sqlite:
        values = ", ".join(f"json_extract(value, '$.{name}')" for name in _BLOB_COLUMNS)
        given = f"SELECT {values} FROM json_each(:given) WHERE true"  # noqa: S608  # Our own names.
    else:
        kinds = ", ".join(f'"{name}" {kind}' for name, kind in _BLOB_COLUMNS.items())
        rows = f"json_to_recordset(CAST(:given AS json)) AS given({kinds})"
        given = f"SELECT {', '.join(names)} FROM {rows}"  # noqa: S608  # Our own names.
    return text(
        f"INSERT INTO file_blobs ({', '.join(names)}) {given} ON CONFLICT (sha256) DO NOTHING"
    )


_ADD_BLOBS: Final = {one: _render_blob_insert(is_sqlite=one) for one in (True, False)}


@dataclass(frozen=True, slots=True)
class FileVersion:
    """One complete state of an owner's saved files. `manifest` is the pack that holds its list.

    `seen_at` is when the sandbox was last seen in this state: what changed inside later is not in
    it, also if the version was saved later.
    """

    owner: Owner
    number: int
    manifest: str
    tree: str
    files: int
    bytes: int
    source: str
    created_at: datetime
    seen_at: datetime
    reason: str = ""
    actor: str = ""
    changed: int | None = None
    """How many paths are new or changed, and `removed` how many are gone, against the version
    before; None of a version that was saved before this was counted."""
    removed: int | None = None


@dataclass(frozen=True, slots=True)
class BlobLocation:
    """Where a content is stored. `holes`, as start and size, are zeros that are not stored.

    A content with holes is found only through the version that has it.
    """

    sha256: str
    pack: str
    start: int
    size: int
    holes: tuple[tuple[int, int], ...] = ()


class FileStore:
    """Read and commit versions, find contents, and list what can be removed."""

    def __init__(self, database: Database, events: EventStore) -> None:
        self._database = database
        self._events = events

    async def find_latest(self, owner: Owner) -> FileVersion | None:
        """Return the version in force."""
        statement = select(FILE_VERSIONS).where(_owned(owner)).order_by(_V.number.desc()).limit(1)
        async with self._database.reading() as connection:
            row = (await connection.execute(statement)).mappings().first()
        return None if row is None else _from_row(row)

    async def find(self, owner: Owner, number: int) -> FileVersion | None:
        """Return a version that is still stored."""
        statement = select(FILE_VERSIONS).where(_owned(owner), _V.number == number)
        async with self._database.reading() as connection:
            row = (await connection.execute(statement)).mappings().first()
        return None if row is None else _from_row(row)

    async def list_versions(
        self, owner: Owner, *, before: int | None = None, limit: int | None = None
    ) -> list[FileVersion]:
        """Return the stored versions, newest first; those below `before` and at most `limit`."""
        statement = select(FILE_VERSIONS).where(_owned(owner)).order_by(_V.number.desc())
        if before is not None:
            statement = statement.where(_V.number < before)
        statement = statement.limit(limit)
        async with self._database.reading() as connection:
            return [_from_row(row) for row in (await connection.execute(statement)).mappings()]

    async def find_locations(self, hashes: Sequence[str]) -> dict[str, BlobLocation]:
        """Return where these contents are stored, as far as they are stored already."""
        found: dict[str, BlobLocation] = {}
        async with self._database.reading() as connection:
            for some in _split(hashes, _HASHES_MAX):
                statement = select(FILE_BLOBS).where(
                    self._database.in_list(FILE_BLOBS.c.sha256, some)
                )
                for row in await connection.execute(statement):
                    found[row.sha256] = BlobLocation(*row)
        return found

    async def add_packs(
        self, packs: Sequence[tuple[str, int]], *, data_key: str, now: datetime
    ) -> None:
        """Record packs before their objects are created, so that none is ever forgotten."""
        row = {"state": "new", "used_at": now, "data_key": data_key}
        rows = [{"id": name, "bytes": size, **row} for name, size in packs]
        async with self._database.writing() as connection:
            await connection.execute(insert(FILE_PACKS), rows)

    async def is_plain(self, pack: str) -> bool:
        """Return True for a pack of an older version that is not encrypted yet."""
        statement = select(func.count()).where(_P.id == pack, _P.data_key.is_(None))
        async with self._database.reading() as connection:
            return bool(await connection.scalar(statement))

    async def list_packs_of_other_keys(
        self, data_key: str, *, after_id: str, limit: int
    ) -> list[str]:
        """Return packs in use that another data key encrypted, or none, by id."""
        other = or_(_P.data_key.is_(None), _P.data_key != data_key)
        statement = (
            select(_P.id)
            .where(other, _P.state == "live", _P.id > after_id)
            .order_by(_P.id)
            .limit(limit)
        )
        async with self._database.reading() as connection:
            return list(await connection.scalars(statement))

    async def set_pack_key(self, pack: str, data_key: str) -> bool:
        """Record which data key encrypts a pack now; False if it is being removed."""
        statement = update(FILE_PACKS).where(_P.id == pack, _P.state == "live")
        async with self._database.writing() as connection:
            changed = await connection.execute(statement.values(data_key=data_key))
            return bool(changed.rowcount)

    async def commit(
        self,
        version: FileVersion,
        *,
        packs: Sequence[str],
        blobs: Sequence[BlobLocation],
        now: datetime,
        published: tuple[Sandbox, Sequence[Event]] | None = None,
    ) -> None:
        """Put a version in force together with its new contents, and publish `published`.

        Raise VersionConflictError if another version was put in force since, or if a pack that this
        one needs is being removed. Then nothing has changed, and the caller reads again.
        """
        try:
            async with self._database.writing() as connection:
                latest = await connection.scalar(
                    select(func.max(_V.number)).where(_owned(version.owner))
                )
                if (latest or 0) != version.number - 1:
                    raise VersionConflictError(expected=version.number - 1, found=latest)
                await connection.execute(insert(FILE_VERSIONS), _to_row(version))
                await self._use_packs(connection, version, packs, now=now)
                await self._add_blobs(connection, blobs)
                if published is not None:
                    await self._events.append(connection, *published, now=now)
        except IntegrityError as error:
            raise VersionConflictError(expected=version.number - 1) from error
        if published is not None:
            self._events.announce_locally()

    async def replace_manifest(
        self,
        version: FileVersion,
        manifest: str,
        *,
        packs: Sequence[str],
        seen_at: datetime,
        now: datetime,
    ) -> None:
        """Give the version in force another list of the same tree, as it was seen at that time.

        Raise VersionConflictError if it is no longer in force, or was changed since.
        """
        async with self._database.writing() as connection:
            latest = await connection.scalar(
                select(func.max(_V.number)).where(_owned(version.owner))
            )
            changed = await connection.execute(
                update(FILE_VERSIONS)
                .where(
                    _owned(version.owner),
                    _V.number == version.number,
                    _V.manifest == version.manifest,
                )
                .values(manifest=manifest, seen_at=seen_at)
            )
            if latest != version.number or changed.rowcount != 1:
                raise VersionConflictError(expected=version.number, found=latest)
            await connection.execute(delete(FILE_USES).where(_uses(version)))
            await self._use_packs(connection, version, packs, now=now)

    async def mark_seen(self, version: FileVersion, *, now: datetime) -> None:
        """Record that the sandbox was found in this state."""
        statement = update(FILE_VERSIONS).where(_owned(version.owner), _V.number == version.number)
        async with self._database.writing() as connection:
            await connection.execute(statement.values(seen_at=now))

    async def prune_versions(
        self, *, keep: int, abandoned_before: datetime, limit: int = 1000
    ) -> int:
        """Remove versions older than the newest `keep`, and all of owners without a sandbox.

        An owner counts as such when its versions were saved and seen before `abandoned_before` and
        no record of it is left. A version with a name stays, and so do the versions in force of
        its owner. Return how many versions were found to remove; fewer than `limit` means all of
        them.
        """
        newest = (
            select(_V.owner_kind, _V.owner_id, func.max(_V.number).label("number"))
            .group_by(_V.owner_kind, _V.owner_id)
            .subquery()
        )
        same_owner = and_(newest.c.owner_kind == _V.owner_kind, newest.c.owner_id == _V.owner_id)
        is_old = exists().where(same_owner, _V.number <= newest.c.number - keep)
        has_record = exists().where(
            SANDBOXES.c.owner_kind == _V.owner_kind, SANDBOXES.c.owner_id == _V.owner_id
        )
        is_left = and_(_V.seen_at < abandoned_before, _V.created_at < abandoned_before)
        of_owner = and_(_C.owner_kind == _V.owner_kind, _C.owner_id == _V.owner_id)
        is_abandoned = and_(is_left, ~has_record, ~exists().where(of_owner))
        is_named = exists().where(of_owner, _C.number == _V.number)
        keys = (_V.owner_kind, _V.owner_id, _V.number)
        async with self._database.writing() as connection:
            doomed = select(*keys).where(is_old | is_abandoned, ~is_named).limit(limit)
            # Who names one of these at the same time has locked its row, or waits for this one.
            locked = doomed.with_for_update(of=FILE_VERSIONS)
            found = (await connection.execute(locked)).all()
            for some in _split([tuple(row) for row in found], _ROWS_MAX // 3):
                removing = delete(FILE_VERSIONS).where(tuple_(*keys).in_(some), ~is_named)
                rows = await connection.execute(removing.returning(*keys))
                removed = [tuple(row) for row in rows]
                if not removed:
                    continue
                used = tuple_(_U.owner_kind, _U.owner_id, _U.number)
                await connection.execute(delete(FILE_USES).where(used.in_(removed)))
        return len(found)

    async def mark_packs_unused(
        self,
        *,
        unused_before: datetime,
        unfinished_before: datetime,
        now: datetime,
        limit: int = 500,
    ) -> list[str]:
        """Mark unused packs, and return all marked ones: their objects can be deleted.

        None is marked while a backup copies them.
        """
        is_used = exists().where(_U.pack == _P.id)
        unused = and_(_P.state == "live", _P.used_at < unused_before, ~is_used)
        unfinished = and_(_P.state == "new", _P.used_at < unfinished_before, ~is_used)
        free = ~_is_held(now)
        async with self._database.writing() as connection:
            found = list(
                await connection.scalars(
                    select(_P.id).where(unused | unfinished, free).limit(limit)
                )
            )
            if found:
                # The conditions are checked again: a commit may have come in between.
                await connection.execute(
                    update(FILE_PACKS)
                    .where(_P.id.in_(found), unused | unfinished, free)
                    .values(state="dying")
                )
            dying = list(
                await connection.scalars(select(_P.id).where(_P.state == "dying").limit(limit))
            )
            await connection.execute(delete(FILE_BLOBS).where(FILE_BLOBS.c.pack.in_(dying)))
        return dying

    async def are_packs_held(self, now: datetime) -> bool:
        """Return whether a backup copies them at present: none may be rewritten."""
        async with self._database.reading() as connection:
            return bool(await connection.scalar(select(_is_held(now))))

    async def delete_packs(self, packs: Sequence[str]) -> None:
        """Remove the rows of packs whose objects are deleted."""
        async with self._database.writing() as connection:
            await connection.execute(
                delete(FILE_PACKS).where(_P.id.in_(list(packs)), _P.state == "dying")
            )

    async def _use_packs(
        self,
        connection: AsyncConnection,
        version: FileVersion,
        packs: Sequence[str],
        *,
        now: datetime,
    ) -> None:
        wanted = sorted(set(packs))
        for some in _split(wanted):
            touched = await connection.execute(
                update(FILE_PACKS)
                .where(_P.id.in_(some), _P.state != "dying")
                .values(state="live", used_at=now)
            )
            if touched.rowcount != len(some):
                raise VersionConflictError("Some content is being removed.", packs=len(some))
        rows = [
            {
                "owner_kind": version.owner.kind.value,
                "owner_id": version.owner.id,
                "number": version.number,
                "pack": pack,
            }
            for pack in wanted
        ]
        if rows:
            await connection.execute(insert(FILE_USES), rows)

    async def _add_blobs(self, connection: AsyncConnection, blobs: Sequence[BlobLocation]) -> None:
        """Add contents. One from two captures at once is stored twice, and found once."""
        statement = _ADD_BLOBS[self._database.is_sqlite]
        rows = [
            {"sha256": one.sha256, "pack": one.pack, "start": one.start, "size": one.size}
            for one in sorted(blobs, key=lambda blob: blob.sha256)
        ]
        for some in _split(rows, _HASHES_MAX):
            await connection.execute(statement, {"given": orjson.dumps(some).decode()})


def _is_held(now: datetime) -> ColumnElement[bool]:
    # Milliseconds since 1970 have the same number of digits for centuries.
    return exists().where(FACTS.c.name == HELD, FACTS.c.value > str(to_epoch_ms(now)))


def _owned(owner: Owner) -> ColumnElement[bool]:
    return and_(_V.owner_kind == owner.kind.value, _V.owner_id == owner.id)


def _uses(version: FileVersion) -> ColumnElement[bool]:
    owner = version.owner
    return and_(
        _U.owner_kind == owner.kind.value,
        _U.owner_id == owner.id,
        _U.number == version.number,
    )


def _split(values: Sequence[Any], size: int = _ROWS_MAX) -> Iterator[list[Any]]:
    for start in range(0, len(values), size):
        yield list(values[start : start + size])


def _to_row(version: FileVersion) -> dict[str, object]:
    return {
        "owner_kind": version.owner.kind.value,
        "owner_id": version.owner.id,
        "number": version.number,
        "manifest": version.manifest,
        "tree": version.tree,
        "files": version.files,
        "bytes": version.bytes,
        "source": version.source,
        "created_at": version.created_at,
        "seen_at": version.seen_at,
        "reason": version.reason,
        "actor": version.actor,
        "changed": version.changed,
        "removed": version.removed,
    }


def _from_row(row: Any) -> FileVersion:
    values = dict(row)
    owner = Owner(OwnerKind(values.pop("owner_kind")), values.pop("owner_id"))
    values |= {name: values[name] or "" for name in ("reason", "actor")}
    return FileVersion(owner=owner, **values)
