"""Routes of sessions, leases and warm pools."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path as PathParameter
from fastapi import Query, Response

from sandkeeper.api.deps import ApiContext, CallerDep, ContextDep, OwnerDep
from sandkeeper.api.handlers.sandboxes import get_sandbox
from sandkeeper.api.responses import reply
from sandkeeper.api.schemas.sessions import (
    AcquireSessionRequest,
    KindName,
    LeaseReference,
    LeaseRequest,
    PoolRequest,
    RenewRequest,
    TransferRequest,
)
from sandkeeper.api.status.serializers import render_status
from sandkeeper.domain.decisions.adaptive_timeout import compute_idle_timeout_s
from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.policy import IdleAction
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.lease import Lease
from sandkeeper.domain.sessions.session import Session, SessionKind
from sandkeeper.providers.base import SdkConnectionInfo
from sandkeeper.services.sessions.desktop_stream import DesktopStream
from sandkeeper.services.sessions.pools import PoolStatus
from sandkeeper.services.sessions.supplier import AcquireRequest

SessionId = Annotated[str, PathParameter(max_length=64)]
LeaseId = Annotated[str, PathParameter(max_length=64)]
# A holder renews three times within a lease, so that one lost request costs nothing.
RENEWALS = 3


async def acquire(body: AcquireSessionRequest, caller: CallerDep, context: ContextDep) -> Response:
    """Return the conversation's sandbox, running and healthy: reused, woken, replaced or new."""
    found = await context.services.sessions.acquire(_asked(body), actor=caller.actor)
    return reply(
        {
            **_render(context, found.session, found.sandbox),
            "source": found.source.value,
            "taskIdSource": found.key.source.value,
            "codeTimeoutMs": round(found.code_timeout_s * 1000),
            "lease": _render_lease(context, found.lease),
            "connection": _render_access(found.access),
        }
    )


async def show(session: SessionId, context: ContextDep) -> Response:
    """Return an open session and its sandbox."""
    return reply(await _look_up(context, await context.services.sessions.get(session)))


async def list_sessions(
    context: ContextDep,
    kind: Annotated[KindName | None, Query()] = None,
    user: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: Annotated[str | None, Query(max_length=64)] = None,
) -> Response:
    """List the open sessions, in pages."""
    found = await context.deps.store.sessions.list(
        kind=None if kind is None else SessionKind(kind),
        user_id=user or None,
        after_id=_cursor(cursor),
        limit=limit,
    )
    items = [await _look_up(context, session) for session in found]
    more = found[-1].id if len(found) == limit else None
    return reply({"items": items, "nextCursor": more})


async def metrics(context: ContextDep) -> Response:
    """Return the sessions' counts by kind and in total."""
    return reply(await context.services.session_stats.measure())


async def touch(session: SessionId, body: LeaseReference, context: ContextDep) -> Response:
    """Record that the session is in use, and renew the named lease. Wakes nothing."""
    if body.lease_id is not None:
        await context.services.leases.renew(body.lease_id)
    return reply(await _look_up(context, await context.services.sessions.touch(session)))


async def release(
    session: SessionId, context: ContextDep, body: LeaseReference | None = None
) -> Response:
    """Release the sandbox. The session stays open until its idle timeout.

    Without a lease's id no lease is released. The answer names those that remain.
    """
    lease_id = None if body is None else body.lease_id
    released = await context.services.sessions.release(session, lease_id=lease_id)
    sandbox = await context.deps.store.sandboxes.find_by_owner(released.owner)
    remaining = (
        []
        if sandbox is None
        else await context.deps.store.leases.list(sandbox.id, now=context.deps.clock())
    )
    rendered = _render(context, released, sandbox)
    return reply(rendered | {"leases": [_render_lease(context, one) for one in remaining]})


async def transfer(
    session: SessionId, body: TransferRequest, caller: CallerDep, context: ContextDep
) -> Response:
    """Move the sandbox with its files to another conversation of the same user."""
    if not body.task_id and not body.conversation_id:
        raise InvalidRequestError("A transfer names the other conversation, or its task.")
    moved = await context.services.sessions.transfer(
        session,
        task_id=body.task_id,
        conversation_id=body.conversation_id,
        actor=caller.actor,
    )
    return reply(await _look_up(context, moved))


async def close(session: SessionId, caller: CallerDep, context: ContextDep) -> Response:
    """Close the session and end its sandbox, unless another conversation shares it."""
    found = await context.services.sessions.get(session)
    await context.services.session_cleaner.close(found, actor=caller.actor)
    return Response(status_code=204)


async def start_stream(session: SessionId, context: ContextDep) -> Response:
    """Start a desktop's live view, unless it runs already, and wait until it is ready."""
    return reply(_render_stream(await context.services.desktop_streams.start(session)))


async def show_stream(session: SessionId, context: ContextDep) -> Response:
    """Return whether a desktop is streamed, and its URL. Starts and wakes nothing."""
    return reply(_render_stream(await context.services.desktop_streams.show(session)))


async def stop_stream(session: SessionId, context: ContextDep) -> Response:
    """Stop a desktop's live view, if there is one."""
    await context.services.desktop_streams.stop(session)
    return Response(status_code=204)


async def take_lease(
    owner: OwnerDep, body: LeaseRequest, caller: CallerDep, context: ContextDep
) -> Response:
    """Lease a sandbox, and wake it if it is paused. A leased sandbox is never idle."""
    sandbox = await get_sandbox(context, owner)
    lease, running = await context.services.sessions.take_lease(
        sandbox, holder=body.holder, actor=caller.actor
    )
    access = await context.services.sessions.find_access(running)
    shown = render_status(running, words=context.presentation, now=context.deps.clock())
    return reply(
        {
            "lease": _render_lease(context, lease),
            "sandbox": shown,
            "connection": _render_access(access),
        },
        status=201,
    )


async def renew_lease(lease: LeaseId, body: RenewRequest, context: ContextDep) -> Response:
    """Renew a lease that has not expired."""
    ttl_s = None if body.lease_ms is None else body.lease_ms / 1000
    renewed = await context.services.leases.renew(lease, ttl_s=ttl_s)
    return reply(_render_lease(context, renewed))


async def release_lease(lease: LeaseId, context: ContextDep) -> Response:
    """Release a lease; an expired one is not an error."""
    await context.services.leases.release(lease)
    return Response(status_code=204)


async def list_pools(context: ContextDep) -> Response:
    """List the warm pools with their size, hit rate and failures."""
    found = await context.services.pools.list()
    return reply({"items": [_render_pool(one) for one in found]})


async def set_pool(body: PoolRequest, context: ContextDep) -> Response:
    """Set the pool size for a template, and reset its failure count."""
    return reply(_render_pool(await context.services.pools.set(body.template, target=body.target)))


def _asked(body: AcquireSessionRequest) -> AcquireRequest:
    return AcquireRequest(
        user_id=body.user_id,
        task_id=body.task_id,
        conversation_id=body.conversation_id,
        kind=SessionKind(body.kind),
        template=body.template,
        env=body.env,
        metadata=body.metadata,
        region=body.region,
        tenant=body.tenant,
        idle_timeout_s=None if body.idle_timeout_ms is None else body.idle_timeout_ms / 1000,
        is_adaptive=None if body.idle is None else body.idle == "adaptive",
        on_idle=None if body.on_idle is None else IdleAction(body.on_idle),
        is_shared=body.shared,
        holder=body.holder,
        lease_s=None if body.lease_ms is None else body.lease_ms / 1000,
    )


def _cursor(cursor: str | None) -> str:
    if cursor is not None and not cursor.startswith("se-"):
        raise InvalidRequestError("The cursor is not one of ours.")
    return cursor or ""


async def _look_up(context: ApiContext, session: Session) -> dict[str, Any]:
    sandbox = await context.deps.store.sandboxes.find_by_owner(session.owner)
    return _render(context, session, sandbox)


def _render(context: ApiContext, session: Session, sandbox: Sandbox | None) -> dict[str, Any]:
    now = context.deps.clock()
    return {
        "id": session.id,
        "key": str(session.key),
        "kind": session.kind.value,
        "userId": session.user_id,
        "taskId": session.task_id,
        "shared": session.is_shared,
        "workdir": session.folder,
        "idleTimeoutMs": round(_find_idle_timeout_s(session, sandbox) * 1000),
        "createdAt": session.created_at,
        "lastUsedAt": session.last_used_at,
        "idleAt": session.idle_at,
        "uses": session.uses,
        "sandbox": None
        if sandbox is None
        else render_status(sandbox, words=context.presentation, now=now),
    }


def _find_idle_timeout_s(session: Session, sandbox: Sandbox | None) -> float:
    """Return the session's own idle timeout, or the learned one of its sandbox."""
    if sandbox is None or not sandbox.policy.is_adaptive:
        return session.idle_timeout_s
    return compute_idle_timeout_s(sandbox) or session.idle_timeout_s


def _render_lease(context: ApiContext, lease: Lease) -> dict[str, Any]:
    left_s = (lease.until - context.deps.clock()).total_seconds()
    return {
        "id": lease.id,
        "holder": lease.holder,
        "until": lease.until,
        "renewAfterMs": max(0, round(left_s * 1000 / RENEWALS)),
    }


def _render_access(access: SdkConnectionInfo) -> dict[str, Any]:
    return {
        "instanceId": access.instance_id,
        "apiUrl": access.api_url,
        "sandboxUrl": access.sandbox_url,
        "domain": access.domain,
        "envdVersion": access.envd_version,
        "accessToken": access.access_token,
    }


def _render_stream(stream: DesktopStream) -> dict[str, Any]:
    return {"running": stream.url is not None, "url": stream.url}


def _render_pool(status: PoolStatus) -> dict[str, Any]:
    pool = status.pool
    return {
        "template": pool.template,
        "target": pool.target,
        "ready": status.ready,
        "starting": status.starting,
        "hits": pool.hits,
        "misses": pool.misses,
        "hitRate": pool.hit_rate,
        "failures": pool.failures,
        "stopped": status.is_stopped,
        "retryAt": pool.retry_at,
        "error": pool.error,
    }
