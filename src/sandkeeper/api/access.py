"""Routes about the caller: login, tokens for browsers, tickets for streams, passes for logins."""

# ruff: noqa: TC001  FastAPI reads the annotations at run time.

from __future__ import annotations

from fastapi import Response

from sandkeeper.api.auth import COOKIE, Role
from sandkeeper.api.context import CallerNow, ContextNow
from sandkeeper.api.rendering import from_epoch
from sandkeeper.api.replies import reply
from sandkeeper.api.schemas import ClientTokenAsked, LoginAsked
from sandkeeper.domain.errors import ForbiddenError


async def log_in(body: LoginAsked, context: ContextNow) -> Response:
    """Exchange a key, or a pass, for a cookie that no script can read."""
    gate = context.gate
    caller = gate.redeem_pass(body.pass_) if body.pass_ else gate.identify_bearer(body.key)
    if caller.role is Role.CLIENT:
        raise ForbiddenError("A client token is not a key to the dashboard.")
    ttl_s = context.settings.login_ttl_s
    issued = gate.issue_login(caller, ttl_s=ttl_s)
    answer = reply({"role": caller.role.value, "owner": None})
    answer.set_cookie(
        COOKIE,
        issued.token,
        max_age=ttl_s,
        httponly=True,
        samesite="strict",
        secure=context.settings.public_url.startswith("https://"),
        path="/",
    )
    return answer


async def log_out() -> Response:
    """Forget the login."""
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


async def me(caller: CallerNow) -> Response:
    """Tell the caller who they are."""
    owner = {"kind": caller.owner_kind, "id": caller.owner_id} if caller.owner_id else None
    return reply({"role": caller.role.value, "owner": owner})


async def issue_pass(caller: CallerNow, context: ContextNow) -> Response:
    """Issue a pass for one login to the dashboard, good once and for ten minutes."""
    issued = context.gate.issue_pass(caller)
    return reply({"token": issued.token, "expiresAt": from_epoch(issued.expires_at)}, status=201)


async def issue_client_token(body: ClientTokenAsked, context: ContextNow) -> Response:
    """Issue a short-lived token that is good for one owner's sandbox."""
    settings = context.settings
    ttl_s = min(body.ttl_s or settings.client_token_ttl_s, settings.client_token_ttl_max_s)
    issued = context.gate.issue_client_token(kind=body.kind, owner_id=body.project, ttl_s=ttl_s)
    return reply({"token": issued.token, "expiresAt": from_epoch(issued.expires_at)}, status=201)


async def issue_stream_ticket(caller: CallerNow, context: ContextNow) -> Response:
    """Issue a ticket for one live stream, good once and for half a minute, sent as `?ticket=`."""
    issued = context.gate.issue_ticket(caller)
    return reply({"token": issued.token, "expiresAt": from_epoch(issued.expires_at)}, status=201)
