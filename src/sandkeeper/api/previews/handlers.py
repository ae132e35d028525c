"""Routes of previews: share links, visits of members, own domains, the last requests."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from typing import Annotated
from urllib.parse import quote, urlsplit

from fastapi import Path, Query, Response

from sandkeeper.api.auth import Access, Caller, Role, admit
from sandkeeper.api.deps import ApiContext, CallerDep, ContextDep, OwnerDep
from sandkeeper.api.handlers.sandboxes import get_sandbox
from sandkeeper.api.responses import reply
from sandkeeper.api.schemas.previews import DomainRequest, PreviewVisitRequest, ShareLinkRequest
from sandkeeper.api.status.serializers import from_epoch, owner_slug, parse_owner_slug
from sandkeeper.api.wire_errors import FeatureDisabledError, RouteNotFoundError
from sandkeeper.domain.errors import ForbiddenError, InvalidRequestError
from sandkeeper.domain.gateway.addresses import PreviewAddress
from sandkeeper.domain.gateway.links import (
    PreviewDomain,
    PreviewRequest,
    ShareLink,
    is_own_path,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.services.gateway.passes import CODE_TTL_S, PASS_TTL_S, PassRight, PreviewPass
from sandkeeper.services.gateway.urls import LINK_PATH, VISIT_PATH

LinkId = Annotated[str, Path(pattern="^[A-Za-z0-9_-]{1,64}$")]
Host = Annotated[str, Path(max_length=253, pattern=r"^[A-Za-z0-9.-]+$")]
Requests = Annotated[int, Query(ge=1, le=200)]


async def create_link(
    body: ShareLinkRequest, owner: OwnerDep, caller: CallerDep, context: ContextDep
) -> Response:
    """Create a share link. Its URL is returned only once."""
    _require_gateway(context)
    await get_sandbox(context, owner)
    link, secret = await context.services.share_links.create(
        owner,
        port=body.port,
        path=body.path,
        once=body.once,
        expires_in=timedelta(seconds=body.expires_in_s),
        actor=caller.actor,
    )
    url = f"{context.services.preview_urls.build(owner, body.port)}{LINK_PATH}{secret}"
    return reply(_render_link(link) | {"url": url}, status=201)


async def list_links(owner: OwnerDep, context: ContextDep) -> Response:
    """List the valid share links, newest first."""
    found = await context.services.share_links.list(owner)
    return reply({"items": [_render_link(one) for one in found]})


async def revoke_link(
    link_id: LinkId, owner: OwnerDep, caller: CallerDep, context: ContextDep
) -> Response:
    """Revoke a share link, and close the browsers that it opened, within two seconds."""
    await context.services.share_links.revoke(owner, link_id, actor=caller.actor)
    return Response(status_code=204)


async def begin_visit(
    body: PreviewVisitRequest, caller: CallerDep, context: ContextDep
) -> Response:
    """Return a URL that opens a preview in this browser, for those who may see it."""
    _require_gateway(context)
    parts = urlsplit(body.url)
    address, owner = await _find_preview(context, parts.netloc)
    right = _find_right(caller, owner)
    expires_at = int(time.time()) + PASS_TTL_S
    if caller.expires_at is not None:
        expires_at = min(expires_at, caller.expires_at)
    given = PreviewPass(
        owner=str(owner),
        port=address.port,
        name=caller.actor,
        right=right,
        source_ids=caller.credential_ids,
        expires_at=expires_at,
    )
    code = context.preview_passes.issue_code(given, secrets.token_hex(12))
    path = parts.path if is_own_path(parts.path) else "/"
    origin = f"{context.services.preview_urls.scheme}://{parts.netloc}"
    url = f"{origin}{VISIT_PATH}?code={code}&to={quote(path, safe='')}"
    return reply({"url": url, "expiresAt": from_epoch(time.time() + CODE_TTL_S)})


async def _find_preview(context: ApiContext, host: str) -> tuple[PreviewAddress, Owner]:
    services = context.services
    address = services.preview_urls.parse(host) or services.preview_domains.find_address(host)
    owner = None if address is None else await services.preview_names.find(address.name)
    if address is None or owner is None:
        raise InvalidRequestError("This is no URL of a preview: previewUrl in the status is one.")
    return address, owner


def _find_right(caller: Caller, owner: Owner) -> PassRight:
    """Return what the caller may do with the project; raise ForbiddenError if nothing."""
    named = {"owner_kind": owner.kind.value, "owner_id": owner.id}
    if caller.role is Role.CLIENT:
        admit(caller, Access.READ_ONE, **named)
        return PassRight.OPERATE  # It was issued for this very project.
    try:
        admit(caller, Access.OPERATE_ONE, **named)
    except ForbiddenError:
        admit(caller, Access.READ_ONE, **named)
        return PassRight.READ
    return PassRight.OPERATE


async def list_requests(owner: OwnerDep, context: ContextDep, limit: Requests = 200) -> Response:
    """List the last requests to the preview, newest first."""
    sandbox = await get_sandbox(context, owner)
    found = await context.services.request_log.list(sandbox.id, limit=limit)
    return reply({"items": [_render_request(one) for one in found]})


async def add_domain(body: DomainRequest, caller: CallerDep, context: ContextDep) -> Response:
    """Map a domain of your own to a preview; its DNS must lead to the gateway already."""
    _require_gateway(context)
    owner = parse_owner_slug(body.project)
    await get_sandbox(context, owner)
    domain = await context.services.preview_domains.add(
        body.host, owner, body.port, actor=caller.actor
    )
    return reply(_render_domain(context, domain), status=201)


async def list_domains(context: ContextDep) -> Response:
    """List the domains in the order of their names."""
    found = await context.services.preview_domains.list()
    return reply({"items": [_render_domain(context, one) for one in found]})


async def remove_domain(host: Host, caller: CallerDep, context: ContextDep) -> Response:
    """Remove a domain."""
    if not await context.services.preview_domains.remove(host.lower(), actor=caller.actor):
        raise InvalidRequestError(f"There is no domain {host!r}.")
    return Response(status_code=204)


async def ask(context: ContextDep, domain: Annotated[str, Query(max_length=300)]) -> Response:
    """Answer 200 if a certificate may be made for this host name, as Caddy asks; else 404."""
    services = context.services
    if services.preview_domains.find(domain) is not None:
        return Response(status_code=200)
    address = services.preview_urls.parse(domain)
    owner = None if address is None else await services.preview_names.find(address.name)
    if owner is None or await context.statuses.get(owner) is None:
        raise RouteNotFoundError
    return Response(status_code=200)


def _require_gateway(context: ApiContext) -> None:
    if not context.services.preview_urls.domain:
        raise FeatureDisabledError("No previews are served: gateway_domain is empty.")


def _render_link(link: ShareLink) -> dict[str, object]:
    return {
        "id": link.id,
        "port": link.port,
        "path": link.path,
        "once": link.uses_max == 1,
        "uses": link.uses,
        "createdAt": link.created_at,
        "createdBy": link.created_by,
        "expiresAt": link.expires_at,
    }


def _render_domain(context: ApiContext, domain: PreviewDomain) -> dict[str, object]:
    urls = context.services.preview_urls
    return {
        "host": domain.host,
        "project": owner_slug(domain.owner),
        "port": domain.port,
        "url": f"{urls.scheme}://{domain.host}{urls.port}",
        "createdAt": domain.created_at,
        "createdBy": domain.created_by,
    }


def _render_request(request: PreviewRequest) -> dict[str, object]:
    return {
        "at": request.at,
        "method": request.method,
        "path": request.path,
        "status": request.status,
        "tookMs": request.took_ms,
        "receivedBytes": request.received,
        "sentBytes": request.sent,
        "kind": request.kind,
        "who": request.who,
    }
