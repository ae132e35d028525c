"""Own host names of previews, and which certificates may be made."""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Final

from sandkeeper.common.dashboard_host import parse_hostname
from sandkeeper.domain.access import AuditAction
from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.gateway.addresses import PreviewAddress, find_preview_name
from sandkeeper.domain.gateway.links import PreviewDomain
from sandkeeper.domain.owner import Owner
from sandkeeper.services.access.audit import AuditLog
from sandkeeper.services.deps import Deps
from sandkeeper.services.gateway.urls import PreviewUrls

# Every replica holds them in memory. More need a look-up of each host of a request.
DOMAINS_MAX: Final = 10_000
HOST: Final = re.compile(
    r"(?=.{4,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]{0,61}[a-z0-9]"
)
RESOLVE_WITHIN_S: Final = 5.0


class PreviewDomains:
    """The domains of all replicas, as this one knows them."""

    def __init__(self, deps: Deps, urls: PreviewUrls, audit: AuditLog) -> None:
        self._domains = deps.store.preview_domains
        self._clock = deps.clock
        self._own = parse_hostname(deps.settings.public_url.partition("://")[2].partition("/")[0])
        self._urls = urls
        self._audit = audit
        self._known: dict[str, PreviewDomain] = {}

    async def refresh(self) -> int:
        """Read what other replicas have added or removed; return how many there are."""
        found = await self._domains.list(limit=DOMAINS_MAX)
        self._known = {one.host: one for one in found}
        return len(found)

    def find(self, host: str) -> PreviewDomain | None:
        """Return the domain that a Host header names."""
        return self._known.get(parse_hostname(host)) if self._known else None

    def find_address(self, host: str) -> PreviewAddress | None:
        """Return the preview that a Host header names by an own domain."""
        found = self.find(host)
        return None if found is None else PreviewAddress(find_preview_name(found.owner), found.port)

    async def list(self) -> list[PreviewDomain]:
        """Return all domains in the order of their names."""
        return await self._domains.list(limit=DOMAINS_MAX)

    async def add(self, host: str, owner: Owner, port: int | None, *, actor: str) -> PreviewDomain:
        """Map a host name to a preview, once it leads here."""
        name = host.strip().lower().removesuffix(".")
        is_ours = self._urls.owns(name) or name in {self._own, "localhost", "sandkeeper.localhost"}
        if not HOST.fullmatch(name) or is_ours:
            raise InvalidRequestError(f"{host[:80]!r} is not a domain name of your own.")
        await self._check_dns(name, owner)
        if len(self._known) >= DOMAINS_MAX:
            raise InvalidRequestError(f"There are {DOMAINS_MAX} domains: remove one first.")
        domain = PreviewDomain(name, owner, port, self._clock(), actor)
        if not await self._domains.add(domain):
            known = {one.host: one for one in await self._domains.list(limit=DOMAINS_MAX)}
            taken = known.get(name)
            if taken is None or (taken.owner, taken.port) != (owner, port):
                raise InvalidRequestError(f"{name!r} leads to another project: remove it first.")
            return taken
        self._known = {**self._known, name: domain}
        await self._audit.record(actor, AuditAction.DOMAIN_ADDED, str(owner), host=name)
        return domain

    async def remove(self, host: str, *, actor: str) -> bool:
        """Remove a domain, here at once and on the other replicas within seconds."""
        self._known = {name: one for name, one in self._known.items() if name != host}
        if not await self._domains.remove(host):
            return False
        await self._audit.record(actor, AuditAction.DOMAIN_REMOVED, host)
        return True

    async def _check_dns(self, host: str, owner: Owner) -> None:
        """Refuse a name that does not lead where the project's own address leads."""
        own = parse_hostname(self._urls.build(owner).partition("://")[2])
        here, there = await asyncio.gather(_resolve(own), _resolve(host))
        if not here & there:
            raise InvalidRequestError(
                f"{host!r} leads to {sorted(there) or 'nothing'}, and previews are at "
                f"{sorted(here) or 'no address'}: add a CNAME record to {own}, then try again."
            )


async def _resolve(host: str) -> set[str]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_WITHIN_S):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        # Programs need not resolve what every browser on this machine does.
        return {"127.0.0.1"} if host.endswith(".localhost") else set()
    return {str(one[4][0]) for one in found}
