"""The exchange of a share link, or of a member's code, for a pass in a cookie."""

from __future__ import annotations

import time
from typing import Final
from urllib.parse import parse_qs

from sandkeeper.domain.gateway.addresses import PreviewAddress
from sandkeeper.domain.gateway.links import is_own_path
from sandkeeper.domain.owner import Owner
from sandkeeper.relay.asgi import Fields, Scope
from sandkeeper.services.gateway.links import ShareLinks
from sandkeeper.services.gateway.passes import (
    HOST_PASS_COOKIE,
    PASS_COOKIE,
    PASS_TTL_S,
    PassRight,
    PreviewPass,
    PreviewPasses,
)
from sandkeeper.services.gateway.urls import LINK_PATH, VISIT_PATH

SECRET_MAX: Final = 2_000


def is_exchange(path: str) -> bool:
    """Return whether this path exchanges something for a pass."""
    return path.startswith(LINK_PATH) or path == VISIT_PATH


class PassExchange:
    """Give a browser a pass, and send it to the page that it came for."""

    def __init__(self, links: ShareLinks, passes: PreviewPasses, *, is_secure: bool) -> None:
        self._links = links
        self._passes = passes
        self._is_secure = is_secure

    async def make_answer(
        self, scope: Scope, owner: Owner, address: PreviewAddress
    ) -> Fields | None:
        """Return the headers of the redirect; None for what is not good, or not any more."""
        path = scope["path"]
        if path.startswith(LINK_PATH):
            found = await self._use_link(path.removeprefix(LINK_PATH), owner, address)
        else:
            found = self._use_code(scope["query_string"], owner, address)
        if found is None:
            return None
        given, target = found
        return [
            (b"location", target.encode("ascii")),
            (b"set-cookie", self._render_cookie(given).encode("ascii")),
            (b"cache-control", b"no-store"),
            (b"referrer-policy", b"no-referrer"),
        ]

    async def _use_link(
        self, secret: str, owner: Owner, address: PreviewAddress
    ) -> tuple[PreviewPass, str] | None:
        if len(secret) > SECRET_MAX:
            return None
        link = await self._links.use(owner, address.port, secret)
        if link is None:
            return None
        expires_at = min(int(link.expires_at.timestamp()), int(time.time()) + PASS_TTL_S)
        given = PreviewPass(
            str(owner), address.port, f"link:{link.id}", PassRight.LINK, (link.id,), expires_at
        )
        return given, link.path

    def _use_code(
        self, query: bytes, owner: Owner, address: PreviewAddress
    ) -> tuple[PreviewPass, str] | None:
        asked = parse_qs(query.decode("latin-1"))
        code, target = asked.get("code", [""])[0], asked.get("to", ["/"])[0]
        if len(code) > SECRET_MAX:
            return None
        given = self._passes.redeem(code, owner=str(owner), port=address.port)
        return None if given is None else (given, target if is_own_path(target) else "/")

    def _render_cookie(self, given: PreviewPass) -> str:
        name = HOST_PASS_COOKIE if self._is_secure else PASS_COOKIE
        age_s = max(0, given.expires_at - int(time.time()))
        # Partitioned, so that it also works in a frame of another site, and in that site only.
        scope = "; Secure; SameSite=None; Partitioned" if self._is_secure else "; SameSite=Lax"
        return f"{name}={self._passes.issue(given)}; Path=/; Max-Age={age_s}; HttpOnly{scope}"
