"""Routes of the named API keys and of the audit log."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import Path, Response

from sandkeeper.api.deps import CallerDep, ContextDep
from sandkeeper.api.handlers.sandboxes import Limit, NumberCursor, parse_number_cursor
from sandkeeper.api.responses import reply
from sandkeeper.api.schemas.access import KeyRequest, KeyRotation
from sandkeeper.domain.access import ApiKey, Scope

KeyId = Annotated[str, Path(pattern="^[A-Za-z0-9_-]{1,64}$")]


async def create_key(body: KeyRequest, caller: CallerDep, context: ContextDep) -> Response:
    """Create a key. Its text is returned only once."""
    key, text = await context.services.api_keys.create(
        body.name,
        Scope.parse(body.scope),
        actor=caller.actor,
        expires_in=_to_time(body.expires_in_s),
    )
    return reply(_render(key) | {"key": text}, status=201)


async def list_keys(context: ContextDep) -> Response:
    """List the keys that are valid now, oldest first; their texts are not stored."""
    return reply({"items": [_render(one) for one in await context.services.api_keys.list()]})


async def revoke_key(key_id: KeyId, caller: CallerDep, context: ContextDep) -> Response:
    """Revoke one key, with the logins and tokens that came from it, within two seconds."""
    await context.services.api_keys.revoke(key_id, actor=caller.actor)
    return Response(status_code=204)


async def rotate_key(
    key_id: KeyId, body: KeyRotation, caller: CallerDep, context: ContextDep
) -> Response:
    """Create a key with the same name and scope; the old one stays valid for the overlap."""
    key, text = await context.services.api_keys.rotate(
        key_id,
        actor=caller.actor,
        overlap=timedelta(seconds=body.overlap_s),
        expires_in=_to_time(body.expires_in_s),
    )
    return reply(_render(key) | {"key": text}, status=201)


async def list_audit(
    context: ContextDep, limit: Limit = 100, cursor: NumberCursor = None
) -> Response:
    """List who signed in, and who changed keys, tokens and files, newest first."""
    found = await context.services.audit.list(before=parse_number_cursor(cursor), limit=limit)
    items = [
        {
            "at": one.at,
            "actor": one.actor,
            "action": one.action.value,
            "subject": one.subject,
            "address": one.address,
            "data": one.data,
        }
        for one in found
    ]
    following = str(found[-1].number) if len(found) == limit else None
    return reply({"items": items, "nextCursor": following})


def _to_time(seconds: int | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _render(key: ApiKey) -> dict[str, object]:
    return {
        "id": key.id,
        "name": key.name,
        "scope": str(key.scope),
        "createdAt": key.created_at,
        "createdBy": key.created_by,
        "expiresAt": key.expires_at,
    }
