"""Routes of a sandbox's files through time: versions, comparisons, checkpoints and forks."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request, Response

from sandkeeper.api.auth import Access, admit
from sandkeeper.api.deps import CallerDep, ContextDep, OwnerDep
from sandkeeper.api.handlers.files import PATH_MAX, counted, render_entry, render_version
from sandkeeper.api.idempotency import IdempotencyKey, once
from sandkeeper.api.responses import reply
from sandkeeper.api.schemas.files import CheckpointRequest, ForkRequest, RestoreRequest
from sandkeeper.api.status.serializers import owner_slug, parse_owner_slug
from sandkeeper.domain.access import AuditAction
from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.files.manifest import PathChange

Number = Annotated[int, Path(ge=1, le=2**31 - 1)]
Against = Annotated[
    int | None,
    Query(ge=0, le=2**31 - 1, description="0 is no files. [default: the version saved before]"),
]


async def list_versions(
    owner: OwnerDep,
    context: ContextDep,
    named: Annotated[bool, Query(description="Only checkpoints.")] = False,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: Annotated[str | None, Query(pattern="^[0-9]{1,9}$")] = None,
) -> Response:
    """List the versions of the kept files, newest first: when, why, and how much changed."""
    async with counted(context, owner, ActivityClass.PASSIVE):
        found = await context.services.file_history.list(
            owner,
            before=None if cursor is None else int(cursor),
            limit=limit + 1,
            only_named=named,
        )
    page = found[:limit]
    return reply(
        {
            "items": [render_version(one.version) | {"names": list(one.names)} for one in page],
            "nextCursor": str(page[-1].version.number) if len(found) > limit else None,
        }
    )


async def compare(
    owner: OwnerDep,
    context: ContextDep,
    number: Number,
    against: Against = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    cursor: Annotated[str, Query(max_length=4000)] = "",
) -> Response:
    """List the paths that differ between a version and another one, in pages."""
    async with counted(context, owner, ActivityClass.PASSIVE):
        found = await context.services.file_history.compare(owner, number, against)
    removed = sum(one.new is None for one in found.changes)
    rest = [one for one in found.changes if one.path > cursor]
    page = rest[:limit]
    return reply(
        {
            "old": found.old,
            "new": found.new,
            "changed": len(found.changes) - removed,
            "removed": removed,
            "items": [_render_change(one) for one in page],
            "nextCursor": page[-1].path if len(rest) > limit else None,
        }
    )


async def compare_file(
    owner: OwnerDep, context: ContextDep, number: Number, path: str, against: Against = None
) -> Response:
    """Compare one file of a version with another one, as a unified diff of its text."""
    async with counted(context, owner, ActivityClass.PASSIVE):
        found = await context.services.file_history.compare_file(owner, path, number, against)
    return reply(
        {
            "old": found.old,
            "new": found.new,
            "change": _render_change(found.change),
            "diff": found.text,
            "problem": found.problem,
        }
    )


async def restore(
    body: RestoreRequest, owner: OwnerDep, caller: CallerDep, context: ContextDep
) -> Response:
    """Restore a file, a folder or all files as they were in a version; the present ones are saved.

    The sandbox has to run, or to have ended: the disk of a paused one may hold unsaved changes.
    """
    async with counted(context, owner):
        done = await context.services.version_restore.restore(
            owner, body.version, body.path, actor=caller.actor
        )
    await context.services.audit.record(
        caller.actor,
        AuditAction.FILES_RESTORED,
        owner_slug(owner),
        path=body.path[:PATH_MAX],
        version=done.version,
        from_version=done.from_version,
    )
    return reply(
        {
            "version": done.version,
            "fromVersion": done.from_version,
            "undoVersion": done.undo_version,
            "changed": done.changed,
            "removed": done.removed,
            "inside": done.is_inside,
            "left": [{"path": one.path, "reason": one.reason} for one in done.left],
            "leftCount": done.left_count,
        }
    )


async def fork(
    body: ForkRequest,
    owner: OwnerDep,
    caller: CallerDep,
    context: ContextDep,
    request: Request,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create a new project from a version of this one, with the same template, app and policy."""
    target = parse_owner_slug(body.project)
    if "/" in body.project:
        raise InvalidRequestError("A project's name has no slash: no URL could address it.")
    # The key's prefix has to cover both.
    admit(caller, Access.OPERATE_ONE, owner_kind=target.kind.value, owner_id=target.id)

    async def perform() -> Response:
        made = await context.services.project_fork.fork(
            owner, target, number=body.version, actor=caller.actor
        )
        await context.services.audit.record(
            caller.actor,
            AuditAction.PROJECT_FORKED,
            owner_slug(owner),
            project=owner_slug(target),
            version=made.from_version,
        )
        answer = {
            "project": owner_slug(target),
            "id": made.sandbox.id,
            "status": made.sandbox.state.value,
            "fromVersion": made.from_version,
        }
        return reply(answer, status=201)

    return await once(request, context, idempotency_key, body, perform)


async def add_checkpoint(
    body: CheckpointRequest, owner: OwnerDep, caller: CallerDep, context: ContextDep
) -> Response:
    """Give a version a name that keeps it: the files as they are now, or an earlier version."""
    async with counted(context, owner):
        made = await context.services.file_history.add_checkpoint(
            owner, body.name, number=body.version, actor=caller.actor
        )
    await context.services.audit.record(
        caller.actor,
        AuditAction.CHECKPOINT_ADDED,
        owner_slug(owner),
        name=made.name,
        version=made.number,
    )
    return reply(
        {
            "name": made.name,
            "version": made.number,
            "createdAt": made.created_at,
            "actor": made.actor,
        },
        status=201,
    )


async def remove_checkpoint(
    owner: OwnerDep, name: str, caller: CallerDep, context: ContextDep
) -> Response:
    """Remove a checkpoint's name; its version is pruned like all others from then on."""
    await context.services.file_history.remove_checkpoint(owner, name)
    await context.services.audit.record(
        caller.actor, AuditAction.CHECKPOINT_REMOVED, owner_slug(owner), name=name[:PATH_MAX]
    )
    return Response(status_code=204)


def _render_change(change: PathChange) -> dict[str, object]:
    return {
        "path": change.path,
        "change": change.verb,
        "old": None if change.old is None else render_entry(change.old),
        "new": None if change.new is None else render_entry(change.new),
    }
