"""Routes about the caller: login, tokens for browsers, tokens for streams, codes for logins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Path, Request, Response

from sandkeeper.api.auth import (
    COOKIE,
    HOST_COOKIE,
    Access,
    Authenticator,
    Caller,
    Role,
    SignedToken,
    admit,
    refuse_foreign_pages,
)
from sandkeeper.api.deps import ApiContext, CallerDep, ContextDep, get_address
from sandkeeper.api.handlers.sandboxes import Limit, NumberCursor, parse_number_cursor
from sandkeeper.api.responses import reply
from sandkeeper.api.schemas.access import ClientTokenRequest, LoginRequest
from sandkeeper.api.status.serializers import from_epoch, owner_slug
from sandkeeper.common.dashboard_host import (
    DASHBOARD_HOST,
    get_dashboard_url,
    is_shared_name,
    parse_hostname,
)
from sandkeeper.domain.access import AuditAction
from sandkeeper.domain.errors import (
    AccessError,
    ForbiddenError,
    SandkeeperError,
    UnauthenticatedError,
)
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.token import IssuedToken, TokenUse

SIGN_IN_PATH = "/login/oidc"
TokenId = Annotated[str, Path(pattern="^[A-Za-z0-9_-]{1,64}$")]


async def log_in(body: LoginRequest, context: ContextDep, request: Request) -> Response:
    """Exchange a key, or a login code, for a cookie that no script can read."""
    refuse_shared_name(context, request)
    try:
        caller, token_id = _identify(context.authenticator, body)
        answer = reply(_render_me(caller))
        await start_login(context, request, answer, caller, token_id=token_id)
    except AccessError as error:
        if isinstance(error, UnauthenticatedError):
            context.limits.count_failure(get_address(request.scope))
        await record_failed_login(context, request, error)
        raise
    return answer


def _identify(gate: Authenticator, body: LoginRequest) -> tuple[Caller, str | None]:
    """Return who signs in, and the id of the login code that was used, if any."""
    if body.code:
        return gate.redeem_login_code(body.code)
    caller = gate.identify_bearer(body.key)
    if caller.role is Role.CLIENT:
        raise ForbiddenError("A client token is not a key to the dashboard.")
    return caller, None


async def start_login(
    context: ApiContext,
    request: Request,
    answer: Response,
    caller: Caller,
    *,
    token_id: str | None = None,
    **facts: str,
) -> None:
    """Record a login and set its cookie; an id that was used before is refused."""
    admit(caller, Access.READ_ALL)
    ttl_s = context.deps.settings.login_ttl_s
    issued = context.authenticator.issue_login(caller, ttl_s=ttl_s, token_id=token_id)
    await context.services.tokens.record(
        _to_issued_token(context, issued, TokenUse.LOGIN, caller, role=caller.role.value)
    )
    await _audit(context, request, caller, AuditAction.LOGIN, issued.id, **facts)
    secure = has_tls(context, request)
    answer.set_cookie(
        HOST_COOKIE if secure else COOKIE,
        issued.token,
        max_age=ttl_s,
        httponly=True,
        samesite="strict",
        secure=secure,
        path="/",
    )


async def record_failed_login(
    context: ApiContext, request: Request, error: SandkeeperError, *, actor: str = "unknown"
) -> None:
    """Record that someone tried to sign in and why it failed, without what was sent."""
    await context.services.audit.record(
        actor,
        AuditAction.LOGIN_FAILED,
        error.message,
        address=get_address(request.scope),
    )


async def show_sign_in(context: ContextDep) -> Response:
    """Return the identity provider with which people sign in, if there is one."""
    found = context.services.identity_provider
    provider = {"name": found.name, "path": SIGN_IN_PATH} if found is not None else None
    return reply({"provider": provider})


async def log_out(context: ContextDep, request: Request) -> Response:
    """Revoke the login and delete its cookie."""
    try:
        caller = context.authenticator.identify_login(request.headers)
    except UnauthenticatedError:
        caller = None  # It is over already; its cookie goes all the same.
    if caller is not None and caller.token_id is not None:
        refuse_foreign_pages(caller, request.method, request.headers)
        await context.services.tokens.revoke(caller.token_id, TokenUse.LOGIN, actor=caller.actor)
        await _audit(context, request, caller, AuditAction.LOGOUT, caller.token_id)
    answer = Response(status_code=204)
    for name in {COOKIE, HOST_COOKIE} & request.cookies.keys() or {COOKIE}:
        # Browsers take a `__Host-` cookie back only from an answer that says `Secure`.
        secure = name == HOST_COOKIE
        answer.delete_cookie(name, path="/", httponly=True, samesite="strict", secure=secure)
    return answer


async def list_logins(
    caller: CallerDep, context: ContextDep, limit: Limit = 100, cursor: NumberCursor = None
) -> Response:
    """List the valid logins, newest first."""
    before = parse_number_cursor(cursor)
    found = await context.services.tokens.list(TokenUse.LOGIN, before=before, limit=limit)
    items = [
        {
            "id": one.id,
            "role": one.role,
            "holder": one.holder or one.role,
            "issuedAt": one.issued_at,
            "expiresAt": one.expires_at,
            "current": one.id == caller.token_id,
        }
        for one in found
    ]
    return reply({"items": items, "nextCursor": _next_cursor(found, limit)})


async def revoke_login(
    token_id: TokenId, caller: CallerDep, context: ContextDep, request: Request
) -> Response:
    """Revoke one login, on every replica within two seconds."""
    await context.services.tokens.revoke(token_id, TokenUse.LOGIN, actor=caller.actor)
    await _audit(context, request, caller, AuditAction.LOGIN_REVOKED, token_id)
    return Response(status_code=204)


async def list_client_tokens(
    context: ContextDep, limit: Limit = 100, cursor: NumberCursor = None
) -> Response:
    """List the valid client tokens, newest first."""
    before = parse_number_cursor(cursor)
    found = await context.services.tokens.list(TokenUse.CLIENT, before=before, limit=limit)
    items = [
        {
            "id": one.id,
            "project": owner_slug(one.owner),
            "issuedBy": one.holder,
            "issuedAt": one.issued_at,
            "expiresAt": one.expires_at,
        }
        for one in found
        if one.owner is not None
    ]
    return reply({"items": items, "nextCursor": _next_cursor(found, limit)})


async def revoke_client_token(
    token_id: TokenId, caller: CallerDep, context: ContextDep, request: Request
) -> Response:
    """Revoke one client token by its id, on every replica within two seconds."""
    await context.services.tokens.revoke(token_id, TokenUse.CLIENT, actor=caller.actor)
    await _audit(context, request, caller, AuditAction.TOKEN_REVOKED, token_id)
    return Response(status_code=204)


async def me(caller: CallerDep) -> Response:
    """Return the role and the name of the caller."""
    return reply(_render_me(caller))


async def issue_login_code(caller: CallerDep, context: ContextDep) -> Response:
    """Issue a code for one login to the dashboard, valid once and for ten minutes."""
    if caller.by_cookie:  # A stolen login could live on in others, after it was revoked.
        raise ForbiddenError("A login cannot make another one: ask with a key.")
    issued = context.authenticator.issue_login_code(caller)
    return reply({"token": issued.token, "expiresAt": from_epoch(issued.expires_at)}, status=201)


async def issue_client_token(
    body: ClientTokenRequest, caller: CallerDep, context: ContextDep, request: Request
) -> Response:
    """Issue a short-lived token for one owner's sandbox; an editor needs its prefix."""
    admit(caller, Access.OPERATE_ONE, owner_kind=body.kind, owner_id=body.project)
    settings = context.deps.settings
    ttl_s = min(body.ttl_s or settings.client_token_ttl_s, settings.client_token_ttl_max_s)
    issued = context.authenticator.issue_client_token(
        kind=body.kind, owner_id=body.project, ttl_s=ttl_s, key_id=caller.key_id
    )
    owner = Owner(OwnerKind(body.kind), body.project)
    await context.services.tokens.record(
        _to_issued_token(context, issued, TokenUse.CLIENT, caller, owner=owner)
    )
    await _audit(
        context, request, caller, AuditAction.TOKEN_ISSUED, issued.id, project=owner_slug(owner)
    )
    return reply(
        {"id": issued.id, "token": issued.token, "expiresAt": from_epoch(issued.expires_at)},
        status=201,
    )


async def issue_stream_token(caller: CallerDep, context: ContextDep) -> Response:
    """Issue a token for one live stream, valid once and for 30 s, sent as `?token=`."""
    issued = context.authenticator.issue_stream_token(caller)
    return reply({"token": issued.token, "expiresAt": from_epoch(issued.expires_at)}, status=201)


def refuse_shared_name(context: ApiContext, request: Request) -> None:
    """Refuse a host name of the whole machine: its cookies go to every server there."""
    host = request.headers.get("host", "")
    if not context.deps.settings.public_url and is_shared_name(host):
        page = get_dashboard_url(f"http://{host}/")
        raise ForbiddenError(f"Sign in at {page}: a login here would reach other servers, too.")


def has_tls(context: ApiContext, request: Request) -> bool:
    """Return True if the scheme or the public URL says that the browser uses TLS."""
    if request.url.scheme == "https":
        return True
    is_local = parse_hostname(request.headers.get("host", "")) == DASHBOARD_HOST
    return context.deps.settings.public_url.startswith("https://") and not is_local


def _to_issued_token(
    context: ApiContext,
    issued: SignedToken,
    use: TokenUse,
    caller: Caller,
    *,
    role: str = "",
    owner: Owner | None = None,
) -> IssuedToken:
    return IssuedToken(
        issued.id,
        use,
        issued_at=context.deps.clock(),
        expires_at=from_epoch(issued.expires_at),
        role=role,
        holder=caller.actor,
        owner=owner,
    )


def _render_me(caller: Caller) -> dict[str, object]:
    owner = {"kind": caller.owner_kind, "id": caller.owner_id} if caller.owner_id else None
    return {
        "role": caller.role.value,
        "name": caller.actor,
        "prefix": caller.prefix,
        "owner": owner,
    }


async def _audit(
    context: ApiContext,
    request: Request,
    caller: Caller,
    action: AuditAction,
    subject: str,
    **data: str,
) -> None:
    address = get_address(request.scope)
    await context.services.audit.record(caller.actor, action, subject, address=address, **data)


def _next_cursor(found: Sequence[IssuedToken], limit: int) -> str | None:
    return str(found[-1].number) if len(found) == limit else None
