"""The routes about secrets. Values are written and never read by any route."""

from __future__ import annotations

import re
import sqlite3
import time
import uuid
from collections.abc import Collection
from typing import Any

from sandkeeper.engine.control import schemas
from sandkeeper.engine.control.http import ControlRequest, ControlResponse
from sandkeeper.engine.control.listing import paginate
from sandkeeper.engine.errors import (
    BadRequestError,
    ConflictError,
    LimitError,
    ResourceNotFoundError,
)
from sandkeeper.engine.sandboxes.events import render_instant
from sandkeeper.engine.sandboxes.records import SecretRecord
from sandkeeper.engine.storage.database import EngineDatabase

SECRETS_MAX = 1000
VALUE_MAX_BYTES = 65536
METADATA_MAX = 32
METADATA_KEY_MAX_BYTES = 128
METADATA_VALUE_MAX_BYTES = 1024
METADATA_MAX_BYTES = 8192
_NAME = re.compile(r"[^{}\x00-\x1f\x7f-\x9f]{1,128}")


class SecretRoutes:
    """Creates, replaces, lists and deletes secrets."""

    def __init__(self, database: EngineDatabase) -> None:
        self._database = database

    async def create(self, request: ControlRequest) -> ControlResponse:
        body = await request.parse(schemas.NewSecret)
        if not _NAME.fullmatch(body.name):
            raise BadRequestError(
                "field 'name': 1 to 128 characters, none of them '{', '}' or a control character"
            )
        now = time.time()
        record = SecretRecord(
            id=str(uuid.uuid4()),
            name=body.name,
            value=_check_value(body.value),
            version=1,
            metadata=_check_metadata(body.metadata or {}),
            created_at=now,
            updated_at=now,
        )

        def write(connection: sqlite3.Connection) -> None:
            known = _read_all(connection)
            if any(one.name == record.name for one in known):
                raise ConflictError(f"there is a secret '{record.name}' already")
            if len(known) >= SECRETS_MAX:
                raise LimitError(f"this engine holds {SECRETS_MAX} secrets at most")
            _save(connection, record)

        await self._database.run(write)
        return ControlResponse(201, _render(record))

    async def list(self, request: ControlRequest) -> ControlResponse:
        found = await self._database.run(_read_all)
        page, headers = paginate(found, request, lambda one: (one.created_at, one.id))
        return ControlResponse(200, [_render(one) for one in page], headers)

    async def get(self, request: ControlRequest) -> ControlResponse:
        wanted = request.params["id"]
        return ControlResponse(200, _render(await self._database.run(lambda c: _get(c, wanted))))

    async def update(self, request: ControlRequest) -> ControlResponse:
        body = await request.parse(schemas.SecretUpdate)
        wanted, value = request.params["id"], _check_value(body.value)
        metadata = None if body.metadata is None else _check_metadata(body.metadata)

        def write(connection: sqlite3.Connection) -> SecretRecord:
            before = _get(connection, wanted)
            record = SecretRecord(
                id=before.id,
                name=before.name,
                value=value,
                version=before.version + 1,
                metadata=before.metadata if metadata is None else metadata,
                created_at=before.created_at,
                updated_at=time.time(),
            )
            _save(connection, record)
            return record

        return ControlResponse(200, _render(await self._database.run(write)))

    async def delete(self, request: ControlRequest) -> ControlResponse:
        wanted = request.params["id"]

        def remove(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM secrets WHERE id = ?", (_get(connection, wanted).id,))

        await self._database.run(remove)
        return ControlResponse(204)


async def read_values(database: EngineDatabase, names: Collection[str]) -> dict[str, str]:
    """Return the values of those that exist, by name. For the egress proxy, not for any route."""
    found = await database.run(_read_all) if names else []
    return {one.name: one.value for one in found if one.name in names}


def _check_value(value: str) -> str:
    if not 0 < len(value.encode()) <= VALUE_MAX_BYTES:
        raise BadRequestError(f"field 'value': 1 to {VALUE_MAX_BYTES} bytes")
    return value


def _check_metadata(metadata: dict[str, str]) -> dict[str, str]:
    sizes = [(len(key.encode()), len(value.encode())) for key, value in metadata.items()]
    if (
        len(sizes) > METADATA_MAX
        or any(key > METADATA_KEY_MAX_BYTES for key, _ in sizes)
        or any(value > METADATA_VALUE_MAX_BYTES for _, value in sizes)
        or sum(map(sum, sizes)) > METADATA_MAX_BYTES
    ):
        raise BadRequestError(
            f"field 'metadata': {METADATA_MAX} entries at most, keys of {METADATA_KEY_MAX_BYTES} "
            f"and values of {METADATA_VALUE_MAX_BYTES} bytes, {METADATA_MAX_BYTES} bytes in all"
        )
    return metadata


def _get(connection: sqlite3.Connection, wanted: str) -> SecretRecord:
    """Return the secret of that id or name."""
    found = [one for one in _read_all(connection) if wanted in (one.id, one.name)]
    if not found:
        raise ResourceNotFoundError(f"there is no secret '{wanted[:128]}'")
    return found[0]


def _read_all(connection: sqlite3.Connection) -> list[SecretRecord]:
    rows = connection.execute("SELECT record FROM secrets").fetchall()
    return [SecretRecord.from_json(text) for (text,) in rows]


def _save(connection: sqlite3.Connection, record: SecretRecord) -> None:
    connection.execute(
        "INSERT INTO secrets (id, record) VALUES (?, ?) "
        "ON CONFLICT (id) DO UPDATE SET record = excluded.record",
        (record.id, record.to_json()),
    )


def _render(record: SecretRecord) -> dict[str, Any]:
    return {
        "secretID": record.id,
        "name": record.name,
        "currentVersion": record.version,
        "metadata": record.metadata,
        "createdAt": render_instant(record.created_at),
        "updatedAt": render_instant(record.updated_at),
    }
