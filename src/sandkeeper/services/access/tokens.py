"""Logins and client tokens: recorded when issued, revoked by id on every replica.

Each replica holds the revoked ids in memory and asks the database every second for new ones, so
that no request costs a read. While the database is away, the known ids stay revoked.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import structlog

from sandkeeper.domain.errors import TokenNotFoundError, UnauthenticatedError
from sandkeeper.domain.token import IssuedToken, TokenUse
from sandkeeper.services.deps import Deps

log = structlog.get_logger(__name__)

# How often to read all revoked ids although none was added, to forget those that have expired.
READ_ALL_S = 60.0


class TokenRegistry:
    """The tokens of all replicas, and the revoked ones as this replica knows them."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store
        self._clock = deps.clock
        self._client_ttl_max = timedelta(seconds=deps.settings.client_token_ttl_max_s)
        self._revoked: frozenset[str] = frozenset()
        self._stamp: str | None = None
        self._read_at: float | None = None
        self._changing = asyncio.Lock()

    def is_revoked(self, token_id: str) -> bool:
        return token_id in self._revoked

    async def record(self, token: IssuedToken) -> None:
        """Save a token before its holder gets it; an id is valid once, on all replicas."""
        if not await self._store.tokens.add(token):
            raise UnauthenticatedError("This login code was used before: ask for a new one.")

    async def list(
        self, use: TokenUse, *, before: int | None = None, limit: int = 100
    ) -> list[IssuedToken]:
        """Return the tokens that are valid now, newest first."""
        return await self._store.tokens.list(use, now=self._clock(), before=before, limit=limit)

    async def revoke(self, token_id: str, use: TokenUse, *, actor: str) -> None:
        """Revoke a token, here at once and on the other replicas with their next refresh.

        A client token need not be known: a host application that shares the operator's key may
        have signed it itself. None lives longer than the limit, so its id is saved for that time.
        """
        async with self._changing:
            is_done = await self._revoke_known(token_id, use)
            if not is_done and use is TokenUse.CLIENT:
                is_done = await self._forbid(token_id)
            if not is_done:
                raise TokenNotFoundError(f"There is no {use.value} token {token_id!r}.")
            self._revoked |= {token_id}
        log.warning("token_revoked", use=use.value, id=token_id, actor=actor)

    async def refresh(self) -> int:
        """Read what other replicas have revoked; return how many tokens are revoked."""
        async with self._changing:
            stamp = await self._store.tokens.read_stamp()
            is_due = self._read_at is None or time.monotonic() - self._read_at >= READ_ALL_S
            if is_due or stamp != self._stamp:
                self._revoked = await self._store.tokens.list_revoked(now=self._clock())
                self._stamp, self._read_at = stamp, time.monotonic()
            return len(self._revoked)

    async def _revoke_known(self, token_id: str, use: TokenUse) -> bool:
        return await self._store.tokens.revoke(token_id, use, now=self._clock())

    async def _forbid(self, token_id: str) -> bool:
        """Revoke a client token that has no row; return False if the id belongs to a login."""
        now = self._clock()
        unknown = IssuedToken(token_id, TokenUse.CLIENT, now, now + self._client_ttl_max)
        # Between the two reads another replica may have saved it.
        return await self._store.tokens.forbid(unknown) or await self._revoke_known(
            token_id, TokenUse.CLIENT
        )
