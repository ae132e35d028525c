"""The routes about volumes and about the files in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sandkeeper.engine.control import schemas
from sandkeeper.engine.control.http import (
    ControlRequest,
    ControlResponse,
    Stream,
    authorizes_itself,
)
from sandkeeper.engine.errors import BadRequestError
from sandkeeper.engine.sandboxes.lifecycle import SandboxLifecycle
from sandkeeper.engine.sandboxes.records import VolumeRecord
from sandkeeper.engine.volumes.files import DEPTH_MAX, VolumeFiles, clean, opened
from sandkeeper.engine.volumes.store import VolumeStore

T = TypeVar("T")


class VolumeRoutes:
    """Create, list, delete; and read and write what is in a volume, by its own token."""

    def __init__(self, store: VolumeStore, lifecycle: SandboxLifecycle) -> None:
        self._store = store
        self._lifecycle = lifecycle

    async def create(self, request: ControlRequest) -> ControlResponse:
        body = await request.parse(schemas.NewVolume)
        return ControlResponse(201, _render(await self._store.create(body.name)))

    async def list(self, _request: ControlRequest) -> ControlResponse:
        found = [{"volumeID": one.id, "name": one.name} for one in self._store.list_volumes()]
        return ControlResponse(200, found)

    async def get(self, request: ControlRequest) -> ControlResponse:
        return ControlResponse(200, _render(self._store.get(request.params["id"])))

    async def delete(self, request: ControlRequest) -> ControlResponse:
        volume_id = request.params["id"]
        # Including those that are being created: they may have it mounted already.
        users = [
            sandbox_id
            for sandbox_id, entry in self._lifecycle.registry.list_entries()
            if volume_id in entry.record.mounts.values()
        ]
        await self._store.delete(volume_id, self._lifecycle.runtime, users)
        return ControlResponse(204)

    # --- content --------------------------------------------------------------------------

    @authorizes_itself
    async def describe(self, request: ControlRequest) -> ControlResponse:
        path = _path(request)
        return await self._answer(request, 200, lambda files: files.describe(path))

    @authorizes_itself
    async def change(self, request: ControlRequest) -> ControlResponse:
        path = _path(request)
        if not self._is_allowed(request):
            return _REFUSED
        body = await request.parse(schemas.NewEntryMetadata)
        return await self._answer(
            request,
            200,
            lambda files: files.change(path, uid=body.uid, gid=body.gid, mode=body.mode),
        )

    @authorizes_itself
    async def remove(self, request: ControlRequest) -> ControlResponse:
        path = _path(request)
        if clean(path) == "/":
            raise BadRequestError("'path' is the volume itself; delete the volume instead")
        return await self._answer(request, 204, lambda files: files.remove(path))

    @authorizes_itself
    async def list_folder(self, request: ControlRequest) -> ControlResponse:
        path, depth = _path(request), request.number("depth", 1, 1, DEPTH_MAX)
        return await self._answer(request, 200, lambda files: files.list_folder(path, depth))

    @authorizes_itself
    async def make_folder(self, request: ControlRequest) -> ControlResponse:
        path, force = _path(request), request.flag("force")
        uid, gid, mode = _ids(request)
        return await self._answer(
            request,
            201,
            lambda files: files.make_folder(path, uid=uid, gid=gid, mode=mode, force=force),
        )

    @authorizes_itself
    async def read(self, request: ControlRequest) -> ControlResponse:
        if not self._is_allowed(request):
            return _REFUSED
        with opened(self._store, request.params["id"]) as files:
            return ControlResponse(200, Stream(files.tree().open_file(clean(_path(request)))))

    @authorizes_itself
    async def write(self, request: ControlRequest) -> ControlResponse:
        path = _path(request)
        uid, gid, mode = _ids(request)
        request.flag("force")
        if not self._is_allowed(request):
            return _REFUSED
        with opened(self._store, request.params["id"]) as files:
            await files.write(path, request.stream(), uid=uid, gid=gid)
            return ControlResponse(201, files.change(path, uid=uid, gid=gid, mode=mode))

    def _is_allowed(self, request: ControlRequest) -> bool:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer"
        return is_bearer and self._store.opens(request.params["id"], token.strip())

    async def _answer(
        self, request: ControlRequest, status: int, act: Callable[[VolumeFiles], T]
    ) -> ControlResponse:
        if not self._is_allowed(request):
            return _REFUSED
        with opened(self._store, request.params["id"]) as files:
            return ControlResponse(status, await asyncio.to_thread(act, files))


_REFUSED = ControlResponse(
    401, {"code": 401, "message": "the bearer token is not that of this volume"}
)


def _path(request: ControlRequest) -> str:
    path = request.text("path")
    if path is None:
        raise BadRequestError("'path' is missing")
    return path


def _ids(request: ControlRequest) -> tuple[int | None, int | None, int | None]:
    def read(name: str, high: int) -> int | None:
        return None if request.text(name) is None else request.number(name, 0, 0, high)

    return read("uid", 65535), read("gid", 65535), read("mode", 0o7777)


def _render(record: VolumeRecord) -> dict[str, str]:
    return {"volumeID": record.id, "name": record.name, "token": record.token}
