"""Which volumes there are, and where. A volume is a folder of the engine's, and a record."""

from __future__ import annotations

import hmac
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from posixpath import normpath

from sandkeeper.engine.errors import (
    BadRequestError,
    ConflictError,
    LimitError,
    ResourceNotFoundError,
)
from sandkeeper.engine.runtime.contract import Runtime
from sandkeeper.engine.sandboxes.records import VolumeRecord
from sandkeeper.engine.storage.data_dir import DataDir, new_id
from sandkeeper.engine.storage.database import EngineDatabase

VOLUMES_MAX = 1000
USER_ID = 1000
"""The id of `user` inside; what is made by the API belongs to it, unless another is named."""
_NOT_MOUNTABLE = ("/", "/dev", "/proc", "/run", "/sys", "/usr")


class VolumeStore:
    """The volumes of one engine. Reads are from memory; changes are on disk when they return."""

    def __init__(self, database: EngineDatabase, data_dir: DataDir, uid_base: int | None) -> None:
        self._database = database
        self._data_dir = data_dir
        self._uid_base = uid_base
        self._volumes: dict[str, VolumeRecord] = {}

    async def load(self) -> None:
        def read(connection: sqlite3.Connection) -> list[str]:
            return [text for (text,) in connection.execute("SELECT record FROM volumes")]

        records = map(VolumeRecord.from_json, await self._database.run(read))
        self._volumes = {record.id: record for record in records}

    def list_volumes(self) -> list[VolumeRecord]:
        return sorted(self._volumes.values(), key=lambda one: one.created_at)

    def get(self, volume_id: str) -> VolumeRecord:
        if volume_id not in self._volumes:
            raise ResourceNotFoundError(f"there is no volume '{volume_id[:64]}'")
        return self._volumes[volume_id]

    def get_folder(self, volume_id: str) -> Path:
        return self._data_dir.volumes / self.get(volume_id).id

    def find_owner(self, uid: int | None = None, gid: int | None = None) -> tuple[int, int]:
        """Return the host's ids for two of a sandbox; where only one is mapped, the engine's."""
        if self._uid_base is None:
            return os.getuid(), os.getgid()
        return (
            self._uid_base + (USER_ID if uid is None else uid),
            self._uid_base + (USER_ID if gid is None else gid),
        )

    def show_id(self, host_id: int) -> int:
        """Return the id inside a sandbox for one of the host's."""
        return USER_ID if self._uid_base is None else max(0, host_id - self._uid_base)

    def opens(self, volume_id: str, token: str) -> bool:
        """Return whether the token is that of the volume."""
        volume = self._volumes.get(volume_id)
        return volume is not None and hmac.compare_digest(volume.token.encode(), token.encode())

    async def create(self, name: str) -> VolumeRecord:
        """Make an empty volume. Raises ConflictError if the name is taken."""
        record = VolumeRecord(
            id=new_id("v"), name=name, token=secrets.token_hex(32), created_at=time.time()
        )
        if any(one.name == name for one in self._volumes.values()):
            raise ConflictError(f"there is a volume '{name}' already")
        if len(self._volumes) >= VOLUMES_MAX:
            raise LimitError(f"this engine holds {VOLUMES_MAX} volumes at most")
        # In memory first, so that a second request for the same name is refused at once.
        self._volumes[record.id] = record
        try:
            folder = self.get_folder(record.id)
            folder.mkdir(mode=0o755)
            folder.chmod(0o755)
            if self._uid_base is not None:
                os.chown(folder, *self.find_owner())
            await self._database.run(
                lambda c: c.execute(
                    "INSERT INTO volumes (id, record) VALUES (?, ?)", (record.id, record.to_json())
                )
            )
        except BaseException:
            del self._volumes[record.id]
            raise
        return record

    async def delete(self, volume_id: str, runtime: Runtime, users: Iterable[str]) -> None:
        """Delete a volume with all its files, unless sandboxes have it mounted."""
        folder = self.get_folder(volume_id)
        mounted = sorted(users)
        if mounted:
            raise ConflictError(
                f"sandbox {mounted[0]} has the volume mounted; kill it first"
                + (f" (and {len(mounted) - 1} more)" if len(mounted) > 1 else "")
            )
        # From memory first, so that no new sandbox mounts it.
        record = self._volumes.pop(volume_id)
        try:
            await self._database.run(
                lambda c: c.execute("DELETE FROM volumes WHERE id = ?", (volume_id,))
            )
        except BaseException:
            self._volumes[volume_id] = record
            raise
        await runtime.discard(folder)

    async def sweep(self, runtime: Runtime) -> None:
        """Delete the folders of volumes whose record was never written or is deleted."""
        for folder in self._data_dir.volumes.iterdir():
            if folder.name not in self._volumes:
                await runtime.discard(folder)

    def name_mounts(self, mounts: Mapping[str, str]) -> list[dict[str, str]]:
        """Return a sandbox's mounts as the API shows them."""
        return [{"name": self.get(one).name, "path": path} for path, one in mounts.items()]

    def resolve_mounts(self, wanted: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Turn pairs of a volume's name and a path into mounts. Raises BadRequestError."""
        mounts: dict[str, str] = {}
        by_name = {one.name: one.id for one in self._volumes.values()}
        for name, path in wanted:
            if name not in by_name:
                raise BadRequestError(f"field 'volumeMounts': there is no volume '{name[:128]}'")
            mounts[_check_path(path, mounts)] = by_name[name]
        return mounts


def _check_path(path: str, taken: Mapping[str, str]) -> str:
    cleaned = "/" + normpath(path).lstrip("/")
    first = "/" + cleaned.split("/")[1]
    if not path.startswith("/") or "\0" in path or len(path) > 1024:
        raise BadRequestError(f"field 'volumeMounts': {path[:80]!r} is not an absolute path")
    if first in _NOT_MOUNTABLE:
        raise BadRequestError(f"field 'volumeMounts': nothing can be mounted at {cleaned[:80]!r}")
    if cleaned in taken:
        raise BadRequestError(f"field 'volumeMounts': two volumes at {cleaned[:80]!r}")
    return cleaned
