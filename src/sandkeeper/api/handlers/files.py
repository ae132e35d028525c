"""Routes of a sandbox's kept files."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated
from urllib.parse import quote

from fastapi import Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from sandkeeper.api.auth import Caller
from sandkeeper.api.deps import ApiContext, CallerDep, ContextDep, OwnerDep
from sandkeeper.api.handlers.sandboxes import get_sandbox
from sandkeeper.api.responses import reply
from sandkeeper.api.status.serializers import owner_slug
from sandkeeper.domain.access import AuditAction
from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.errors import (
    InvalidRequestError,
    PayloadTooLargeError,
    SandboxBusyError,
)
from sandkeeper.domain.files.manifest import Kind, ManifestEntry
from sandkeeper.domain.owner import Owner
from sandkeeper.services.files.archive import write_archive as make_archive
from sandkeeper.services.files.file_api import FileEditResult
from sandkeeper.store import FileVersion

Version = Annotated[int | None, Query(ge=1, le=2**31 - 1)]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# What the audit log keeps of a path.
PATH_MAX = 500
MEMORY_BYTES = 8 * 1024 * 1024
# Never a page of this origin: what a sandbox's files hold is a stranger's. A browser that opens
# one all the same runs nothing of it. The front says `nosniff` on every answer.
DOWNLOAD_CSP = "default-src 'none'; sandbox"


async def list_files(
    owner: OwnerDep,
    context: ContextDep,
    prefix: Annotated[str, Query(max_length=4000)] = "",
    version: Version = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    cursor: Annotated[str, Query(max_length=4000)] = "",
) -> Response:
    """List the kept files below a prefix, in pages, and the versions that are kept."""
    async with counted(context, owner, ActivityClass.PASSIVE):
        handle = await context.services.file_api.open(owner, version)
    found = [
        one for one in handle.manifest.files if one.path.startswith(prefix) and one.path > cursor
    ]
    page = found[:limit]
    return reply(
        {
            "version": handle.number,
            "files": handle.manifest.file_count,
            "bytes": handle.manifest.bytes,
            "items": [render_entry(one) for one in page],
            "nextCursor": page[-1].path if len(found) > limit else None,
            "versions": [
                render_version(one) for one in await context.services.file_api.list_versions(owner)
            ],
        }
    )


async def read_file(
    owner: OwnerDep,
    path: str,
    context: ContextDep,
    version: Version = None,
    if_none_match: Annotated[str, Header()] = "",
) -> Response:
    """Return the content of one kept file. Links are not followed."""
    async with counted(context, owner):
        entry = await context.services.file_api.find(owner, path, version)
    if entry.kind is not Kind.FILE:
        raise InvalidRequestError(f"{path!r} is a link to {entry.target!r}.", path=path)
    etag = f'"{entry.sha256}"'
    name = quote(path.rpartition("/")[2], safe="", errors="replace")
    headers = {
        "ETag": etag,
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
        "Content-Security-Policy": DOWNLOAD_CSP,
    }
    if if_none_match == etag:
        return Response(status_code=304, headers=headers)
    return StreamingResponse(
        context.services.file_api.stream(entry),
        media_type="application/octet-stream",
        headers={**headers, "Content-Length": str(entry.size)},
    )


async def write_file(
    owner: OwnerDep,
    path: str,
    caller: CallerDep,
    context: ContextDep,
    request: Request,
    mode: Annotated[str, Query(pattern="^[0-7]{3,4}$")] = "",
) -> Response:
    """Save a file, and write it into the sandbox if it runs. `mode` is octal."""
    limit = context.deps.settings.files_file_bytes_max
    body = _read_body(request, limit)
    chosen = int(mode, 8) if mode else None
    async with counted(context, owner):
        edited = await context.services.file_api.put(owner, path, body, mode=chosen)
    return await _finish_edit(context, caller, owner, edited, AuditAction.FILES_WRITTEN, path)


async def delete_file(
    owner: OwnerDep, path: str, caller: CallerDep, context: ContextDep
) -> Response:
    """Delete a kept file, and delete it in the sandbox if it runs."""
    async with counted(context, owner):
        edited = await context.services.file_api.delete(owner, path)
    return await _finish_edit(context, caller, owner, edited, AuditAction.FILES_DELETED, path)


async def capture(owner: OwnerDep, caller: CallerDep, context: ContextDep) -> Response:
    """Save the files of the running sandbox now."""
    sandbox = await get_sandbox(context, owner)
    if sandbox.is_waking(context.deps.clock()):
        # A wake looks for lost files first: a capture before it would forget them.
        raise SandboxBusyError(held_for="wake", retry_after_s=1)
    async with counted(context, owner):
        captured = await context.services.files.capture(
            sandbox, actor=caller.actor, reason="asked for"
        )
    return reply(
        {
            "version": captured.version,
            "isNew": captured.is_new,
            "files": captured.files,
            "bytes": captured.bytes,
            "changed": captured.changed,
            "removed": captured.removed,
            "travelledBytes": captured.travelled_bytes,
            "unreadable": [{"path": one.path, "reason": one.reason} for one in captured.unreadable],
            "unreadableCount": captured.unreadable_count,
            "notKept": list(captured.not_kept.paths),
            "notKeptCount": captured.not_kept.count,
            "durationMs": round(captured.duration_s * 1000),
        }
    )


async def read_archive(owner: OwnerDep, context: ContextDep, version: Version = None) -> Response:
    """Return all kept files as a tar."""
    async with counted(context, owner):
        handle = await context.services.file_api.open(owner, version)
    return StreamingResponse(
        make_archive(handle.manifest.files, context.services.file_api.stream),
        media_type="application/x-tar",
        headers={
            "Cache-Control": "no-store",
            "Content-Disposition": 'attachment; filename="files.tar"',
            "Content-Security-Policy": DOWNLOAD_CSP,
        },
    )


async def write_archive(
    owner: OwnerDep,
    caller: CallerDep,
    context: ContextDep,
    request: Request,
    replace: bool = False,
) -> Response:
    """Save all files of an uncompressed tar; with `replace`, delete all others."""
    async with counted(context, owner):
        with tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES) as file:
            async for piece in _read_body(request, context.deps.settings.files_total_bytes_max):
                file.write(piece)
            file.seek(0)
            edited = await context.services.file_api.put_archive(owner, file, replace=replace)
    return await _finish_edit(context, caller, owner, edited, AuditAction.FILES_WRITTEN, "")


@asynccontextmanager
async def counted(
    context: ApiContext, owner: Owner, kind: ActivityClass = ActivityClass.INTENT
) -> AsyncIterator[None]:
    """Count the request as activity of the sandbox, at its start and again at its end."""
    sandbox = await context.deps.store.sandboxes.find_by_owner(owner)
    activities = context.services.activities
    if sandbox is not None:
        activities.record(sandbox.id, kind=kind, source="files")
    yield
    if sandbox is not None and kind.keeps_awake:
        activities.record(sandbox.id, kind=kind, source="files")


async def _read_body(request: Request, bytes_max: int) -> AsyncIterator[bytes]:
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > bytes_max:
        raise PayloadTooLargeError(f"The body is larger than {bytes_max} bytes.")
    total = 0
    async for piece in request.stream():
        total += len(piece)
        if total > bytes_max:
            raise PayloadTooLargeError(f"The body is larger than {bytes_max} bytes.")
        if piece:
            yield piece


def render_entry(entry: ManifestEntry) -> dict[str, object]:
    """Return a path as it is on the wire."""
    return {
        "path": entry.path,
        "kind": entry.kind.value,
        "mode": f"{entry.mode:04o}",
        "size": entry.size,
        "sha256": entry.sha256 or None,
        "target": entry.target or None,
        "modifiedAt": EPOCH + timedelta(microseconds=entry.mtime_ns // 1000),
        "pending": entry.is_pending,
    }


def render_version(version: FileVersion) -> dict[str, object]:
    """Return a version as it is on the wire."""
    return {
        "number": version.number,
        "files": version.files,
        "bytes": version.bytes,
        "source": version.source,
        "createdAt": version.created_at,
        "seenAt": version.seen_at,
        "reason": version.reason,
        "actor": version.actor,
        "changed": version.changed,
        "removed": version.removed,
    }


async def _finish_edit(
    context: ApiContext,
    caller: Caller,
    owner: Owner,
    edited: FileEditResult,
    action: AuditAction,
    path: str,
) -> Response:
    """Record who wrote, and answer; an archive has no path of its own."""
    await context.services.audit.record(
        caller.actor, action, owner_slug(owner), path=path[:PATH_MAX], version=edited.version
    )
    return reply(
        {
            "version": edited.version,
            "changed": edited.changed,
            "inside": edited.is_inside,
            "ignored": list(edited.ignored),
        }
    )
