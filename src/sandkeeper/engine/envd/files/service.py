"""filesystem.Filesystem, as e2b-protocol describes it."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import AsyncIterator
from posixpath import join
from typing import Literal

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.request import RequestContext
from e2b.envd.filesystem.filesystem_connect import Filesystem as FilesystemContract
from e2b.envd.filesystem.filesystem_pb import (
    CreateWatcherRequest,
    CreateWatcherResponse,
    EntryInfo,
    EventType,
    FilesystemEvent,
    FileType,
    GetWatcherEventsRequest,
    GetWatcherEventsResponse,
    ListDirRequest,
    ListDirResponse,
    MakeDirRequest,
    MakeDirResponse,
    MoveRequest,
    MoveResponse,
    RemoveRequest,
    RemoveResponse,
    RemoveWatcherRequest,
    RemoveWatcherResponse,
    StatRequest,
    StatResponse,
    WatchDirRequest,
    WatchDirResponse,
)
from protobuf import Oneof

from sandkeeper.engine.envd.files.entries import Owners, describe, list_entries
from sandkeeper.engine.envd.files.watchers import OverflowedError, Watcher, Watchers, WatchEvent
from sandkeeper.engine.envd.processes.process_table import ProcessTable
from sandkeeper.engine.envd.rpc import acting_user, file_errors, patience_s
from sandkeeper.engine.envd.users import User
from sandkeeper.engine.http.active_requests import current_request
from sandkeeper.engine.runtime.contract import Runtime

DEPTH_MAX = 64
"""Deeper trees are listed in several calls."""


class FilesystemService(FilesystemContract):
    """Files of the sandbox that the current request names."""

    def __init__(self, runtime: Runtime, processes: ProcessTable, watchers: Watchers) -> None:
        self._runtime = runtime
        self._processes = processes
        self._watchers = watchers

    async def stat(
        self, request: StatRequest, _ctx: RequestContext[StatRequest, StatResponse], /
    ) -> StatResponse:
        user = acting_user(self._runtime)
        return StatResponse(entry=self._describe(user, user.expand(request.path)))

    async def make_dir(
        self, request: MakeDirRequest, _ctx: RequestContext[MakeDirRequest, MakeDirResponse], /
    ) -> MakeDirResponse:
        user = acting_user(self._runtime)
        path = user.expand(request.path)
        with file_errors(path):
            try:
                found = describe(user.tree, self._owners(), path)
            except FileNotFoundError:
                user.tree.make_folders(path)
                return MakeDirResponse(entry=self._describe(user, path))
        if found.type is FileType.DIRECTORY:
            raise ConnectError(Code.ALREADY_EXISTS, f"directory already exists: {path}")
        raise ConnectError(
            Code.INVALID_ARGUMENT, f"path already exists but it is not a directory: {path}"
        )

    async def move(
        self, request: MoveRequest, _ctx: RequestContext[MoveRequest, MoveResponse], /
    ) -> MoveResponse:
        user = acting_user(self._runtime)
        source, destination = user.expand(request.source), user.expand(request.destination)
        with file_errors(source):
            try:
                await asyncio.to_thread(user.tree.move, source, destination)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                await self._move_across(source, destination)
        return MoveResponse(entry=self._describe(user, destination))

    async def list_dir(
        self, request: ListDirRequest, _ctx: RequestContext[ListDirRequest, ListDirResponse], /
    ) -> ListDirResponse:
        user = acting_user(self._runtime)
        path = user.expand(request.path)
        depth = min(request.depth or 1, DEPTH_MAX)
        with file_errors(path):
            try:
                entries = await asyncio.to_thread(
                    list_entries, user.tree, self._owners(), path, depth
                )
            except NotADirectoryError:
                raise ConnectError(
                    Code.INVALID_ARGUMENT, f"path is not a directory: {path}"
                ) from None
        return ListDirResponse(entries=entries)

    async def remove(
        self, request: RemoveRequest, _ctx: RequestContext[RemoveRequest, RemoveResponse], /
    ) -> RemoveResponse:
        user = acting_user(self._runtime)
        path = user.expand(request.path)
        with file_errors(path):
            await asyncio.to_thread(user.tree.remove, path)
        return RemoveResponse()

    async def watch_dir(
        self, request: WatchDirRequest, ctx: RequestContext[WatchDirRequest, WatchDirResponse], /
    ) -> AsyncIterator[WatchDirResponse]:
        watcher = self._watch(request)
        try:
            yield _render_start()
            while True:
                try:
                    async with asyncio.timeout(patience_s(ctx)):
                        await watcher.wait()
                except TimeoutError:
                    yield _render_keepalive()
                    continue
                for change in _pop_events(watcher):
                    yield _render_change(self._render_event(watcher, change))
                if watcher.is_ended:
                    raise ConnectError(Code.UNAVAILABLE, "the sandbox has stopped")
        finally:
            self._watchers.remove(watcher)

    async def create_watcher(
        self,
        request: CreateWatcherRequest,
        _ctx: RequestContext[CreateWatcherRequest, CreateWatcherResponse],
        /,
    ) -> CreateWatcherResponse:
        return CreateWatcherResponse(watcher_id=self._watch(request).id)

    async def get_watcher_events(
        self,
        request: GetWatcherEventsRequest,
        _ctx: RequestContext[GetWatcherEventsRequest, GetWatcherEventsResponse],
        /,
    ) -> GetWatcherEventsResponse:
        watcher = self._watchers.find(current_request().sandbox_id, request.watcher_id)
        if watcher is None:
            raise ConnectError(Code.NOT_FOUND, f"watcher with id {request.watcher_id} not found")
        return GetWatcherEventsResponse(
            events=[self._render_event(watcher, change) for change in _pop_events(watcher)]
        )

    async def remove_watcher(
        self,
        request: RemoveWatcherRequest,
        _ctx: RequestContext[RemoveWatcherRequest, RemoveWatcherResponse],
        /,
    ) -> RemoveWatcherResponse:
        watcher = self._watchers.find(current_request().sandbox_id, request.watcher_id)
        if watcher is None:
            raise ConnectError(Code.NOT_FOUND, f"watcher with id {request.watcher_id} not found")
        self._watchers.remove(watcher)
        return RemoveWatcherResponse()

    def _owners(self) -> Owners:
        return Owners.of(self._runtime.ids(current_request().sandbox_id))

    def _describe(self, user: User, path: str) -> EntryInfo:
        with file_errors(path):
            return describe(user.tree, self._owners(), path)

    async def _move_across(self, source: str, destination: str) -> None:
        """Move between filesystems with the sandbox's own `mv`, which copies and deletes."""
        command = ("/bin/mv", "-T", "--", source, destination)
        failure = await self._processes.run(current_request().sandbox_id, command)
        if failure is not None:
            raise ConnectError(Code.INTERNAL, f"error renaming: {failure}")

    def _watch(self, request: WatchDirRequest | CreateWatcherRequest) -> Watcher:
        user = acting_user(self._runtime)
        path = user.expand(request.path)
        with file_errors(path):
            if not stat.S_ISDIR(_mode(user, path)):
                raise ConnectError(Code.INVALID_ARGUMENT, f"path {path} not a directory")
            return self._watchers.add(
                current_request().sandbox_id,
                user.tree,
                path,
                recursive=request.recursive,
                include_entry=request.include_entry,
            )

    def _render_event(self, watcher: Watcher, change: WatchEvent) -> FilesystemEvent:
        entry = None
        if watcher.include_entry and change.type in (
            EventType.CREATE,
            EventType.WRITE,
            EventType.CHMOD,
        ):
            try:
                entry = describe(watcher.tree, self._owners(), join(watcher.path, change.name))
            except OSError:
                entry = None
        return FilesystemEvent(name=change.name, type=change.type, entry=entry)


def _mode(user: User, path: str) -> int:
    with user.tree.at(path) as found:
        return os.fstat(found).st_mode


def _pop_events(watcher: Watcher) -> list[WatchEvent]:
    try:
        return watcher.drain()
    except OverflowedError:
        raise ConnectError(
            Code.RESOURCE_EXHAUSTED, "more happened than the watcher keeps; some events are lost"
        ) from None


def _render_start() -> WatchDirResponse:
    event: Oneof[Literal["start"], WatchDirResponse.StartEvent]
    event = Oneof("start", WatchDirResponse.StartEvent())
    return WatchDirResponse(event=event)


def _render_keepalive() -> WatchDirResponse:
    event: Oneof[Literal["keepalive"], WatchDirResponse.KeepAlive]
    event = Oneof("keepalive", WatchDirResponse.KeepAlive())
    return WatchDirResponse(event=event)


def _render_change(change: FilesystemEvent) -> WatchDirResponse:
    event: Oneof[Literal["filesystem"], FilesystemEvent]
    event = Oneof("filesystem", change)
    return WatchDirResponse(event=event)
