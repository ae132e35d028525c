"""Named API keys: created, rotated and revoked here, known to every replica within a second.

Each replica holds the valid keys by the hash of their text and asks the database every second
whether they changed, so that no request costs a read. While the database is away, the known keys
stay valid until they expire.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from sandkeeper.domain.access import ApiKey, AuditAction, AuditEntry, Scope
from sandkeeper.domain.errors import KeyExistsError, KeyNotFoundError
from sandkeeper.services.deps import Deps

log = structlog.get_logger(__name__)

ID_PREFIX: Final = "key_"
# Every replica holds all of them in memory.
KEYS_MAX: Final = 1000
# How often to read all keys although none changed, to forget those that have expired.
READ_ALL_S: Final = 60.0


class ApiKeyRegistry:
    """The keys of all replicas, as this replica knows them."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store
        self._clock = deps.clock
        self._by_digest: dict[str, ApiKey] = {}
        self._by_id: dict[str, ApiKey] = {}
        self._stamp: str | None = None
        self._read_at: float | None = None
        self._changing = asyncio.Lock()

    def find(self, text: str) -> ApiKey | None:
        """Return the valid key with this text."""
        key = self._by_digest.get(_digest(text))
        return key if key is not None and key.is_valid(self._clock()) else None

    def is_revoked(self, key_id: str) -> bool:
        """Return True for the id of a key that is revoked, expired or unknown."""
        if not key_id.startswith(ID_PREFIX):
            return False
        key = self._by_id.get(key_id)
        return key is None or not key.is_valid(self._clock())

    async def create(
        self, name: str, scope: Scope, *, actor: str, expires_in: timedelta | None = None
    ) -> tuple[ApiKey, str]:
        """Create a key; return it and its text, which is not stored."""
        async with self._changing:
            valid = await self._read()
            if any(one.name == name for one in valid):
                raise KeyExistsError(f"There is a valid key {name!r} already.")
            if len(valid) >= KEYS_MAX:
                raise KeyExistsError(f"There are {KEYS_MAX} valid keys already: revoke some.")
            key, text = self._make(name, scope, actor, expires_in)
            await self._store.api_keys.add(key, _entry(key, AuditAction.KEY_CREATED, actor))
            self._hold([*valid, key])
        return key, text

    async def rotate(
        self, key_id: str, *, actor: str, overlap: timedelta, expires_in: timedelta | None = None
    ) -> tuple[ApiKey, str]:
        """Create a key with the same name and scope; the old one stays valid for the overlap."""
        async with self._changing:
            old = _choose(await self._read(), key_id)
            key, text = self._make(old.name, old.scope, actor, expires_in)
            until = self._clock() + overlap
            entry = _entry(key, AuditAction.KEY_ROTATED, actor, replaces=old.id)
            await self._store.api_keys.replace(old.id, key, entry, until=until)
            self._hold(await self._read())
        return key, text

    async def revoke(self, key_id: str, *, actor: str) -> None:
        """Revoke a key, here at once and on the other replicas with their next refresh."""
        async with self._changing:
            known = self._by_id.get(key_id)
            name = known.name if known is not None else key_id
            entry = AuditEntry(
                self._clock(), actor, AuditAction.KEY_REVOKED, name, data={"id": key_id}
            )
            if not await self._store.api_keys.revoke(key_id, entry):
                raise KeyNotFoundError(f"There is no key {key_id!r}.")
            self._hold(await self._read())
        log.warning("key_revoked", id=key_id, name=name, actor=actor)

    async def list(self) -> Sequence[ApiKey]:
        """Return the valid keys, oldest first."""
        return await self._read()

    async def refresh(self) -> int:
        """Read what other replicas have changed; return how many keys are valid."""
        async with self._changing:
            stamp = await self._store.api_keys.read_stamp()
            is_due = self._read_at is None or time.monotonic() - self._read_at >= READ_ALL_S
            if is_due or stamp != self._stamp:
                self._hold(await self._read())
                self._stamp, self._read_at = stamp, time.monotonic()
            return len(self._by_id)

    async def _read(self) -> Sequence[ApiKey]:
        return await self._store.api_keys.list_valid(now=self._clock())

    def _hold(self, valid: Sequence[ApiKey]) -> None:
        self._by_digest = {key.digest: key for key in valid}
        self._by_id = {key.id: key for key in valid}

    def _make(
        self, name: str, scope: Scope, actor: str, expires_in: timedelta | None
    ) -> tuple[ApiKey, str]:
        now: datetime = self._clock()
        text = f"sk_{secrets.token_hex(24)}"
        key = ApiKey(
            id=f"{ID_PREFIX}{secrets.token_hex(8)}",
            name=name,
            scope=scope,
            digest=_digest(text),
            created_at=now,
            created_by=actor,
            expires_at=now + expires_in if expires_in is not None else None,
        )
        return key, text


def _digest(text: str) -> str:
    """Return the hash of a key. Its 192 random bits need no slow hash and no salt."""
    return hashlib.sha256(text.encode()).hexdigest()


def _choose(valid: Sequence[ApiKey], key_id: str) -> ApiKey:
    for key in valid:
        if key.id == key_id:
            return key
    raise KeyNotFoundError(f"There is no valid key {key_id!r}.")


def _entry(key: ApiKey, action: AuditAction, actor: str, **data: str) -> AuditEntry:
    facts = {"id": key.id, "scope": str(key.scope), **data}
    return AuditEntry(key.created_at, actor, action, key.name, data=facts)
