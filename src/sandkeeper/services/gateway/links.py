"""Share links: created, used, listed and revoked.

A link is exchanged for a pass. Its id is a token's as well, so that its revocation reaches every
replica, and the passes that came from it, as that of any token does.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from typing import Final

from sandkeeper.domain.access import AuditAction
from sandkeeper.domain.errors import TokenNotFoundError
from sandkeeper.domain.gateway.links import ShareLink, check_path
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.token import IssuedToken, TokenUse
from sandkeeper.services.access.audit import AuditLog
from sandkeeper.services.access.tokens import TokenRegistry
from sandkeeper.services.deps import Deps

LISTED_MAX: Final = 1000


class ShareLinks:
    """The share links of every preview."""

    def __init__(self, deps: Deps, tokens: TokenRegistry, audit: AuditLog) -> None:
        self._links = deps.store.share_links
        self._clock = deps.clock
        self._tokens = tokens
        self._audit = audit

    async def create(
        self,
        owner: Owner,
        *,
        port: int | None,
        path: str,
        once: bool,
        expires_in: timedelta,
        actor: str,
    ) -> tuple[ShareLink, str]:
        """Return a new link and its secret, which is not stored."""
        check_path(path)
        secret, now = secrets.token_urlsafe(24), self._clock()
        link = ShareLink(
            id=f"ln-{secrets.token_hex(8)}",
            owner=owner,
            digest=_digest(secret),
            port=port,
            path=path,
            uses_max=1 if once else None,
            created_at=now,
            created_by=actor,
            expires_at=now + expires_in,
        )
        token = IssuedToken(link.id, TokenUse.LINK, now, link.expires_at, holder=actor, owner=owner)
        await self._tokens.record(token)
        await self._links.add(link)
        await self._audit.record(
            actor, AuditAction.LINK_CREATED, str(owner), link=link.id, path=path
        )
        return link, secret

    async def list(self, owner: Owner) -> list[ShareLink]:
        """Return the owner's valid links, newest first."""
        return await self._links.list(owner, now=self._clock(), limit=LISTED_MAX)

    async def use(self, owner: Owner, port: int | None, secret: str) -> ShareLink | None:
        """Count one use; None if the link is not good here, or not any more."""
        return await self._links.use(owner, port, _digest(secret), now=self._clock())

    async def revoke(self, owner: Owner, link_id: str, *, actor: str) -> None:
        """Revoke a link and every pass that came from it, on all replicas within two seconds."""
        if not await self._links.revoke(owner, link_id, now=self._clock()):
            raise TokenNotFoundError(f"{owner} has no share link {link_id!r}.")
        await self._tokens.revoke(link_id, TokenUse.LINK, actor=actor)
        await self._audit.record(actor, AuditAction.LINK_REVOKED, str(owner), link=link_id)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
