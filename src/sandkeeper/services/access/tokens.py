"""Logins and client tokens: written down when issued, revoked by id on every replica.

Each replica holds the revoked ids in memory and asks the database every second whether there are
more, so that no request costs a read. While the database is away the ids that are known hold.
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

# How often all revoked ids are read although none was added, to forget those that have expired.
READ_ALL_S = 60.0


class Tokens:
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
        """Write a token down before its holder gets it; an id is good once, on all replicas."""
        if not await self._store.tokens.add(token):
            raise UnauthenticatedError("This login code was used before: ask for a new one.")

    async def list(
        self, use: TokenUse, *, before: int | None = None, limit: int = 100
    ) -> list[IssuedToken]:
        """Those that are good now, newest first."""
        return await self._store.tokens.list(use, now=self._clock(), before=before, limit=limit)

    async def revoke(self, token_id: str, use: TokenUse, *, actor: str) -> None:
        """Revoke one, here at once and on the other replicas with their next look.

        A client token need not be known: a host application that shares the operator's key may
        have signed it itself. None lives longer than the limit, so its id is kept for that time.
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
        """Learn what other replicas have revoked; gives how many are revoked."""
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
        """Revoke a client token that no row knows; False if the id is a login's."""
        now = self._clock()
        unknown = IssuedToken(token_id, TokenUse.CLIENT, now, now + self._client_ttl_max)
        # Between the two looks another replica may have written it down.
        return await self._store.tokens.forbid(unknown) or await self._revoke_known(
            token_id, TokenUse.CLIENT
        )
