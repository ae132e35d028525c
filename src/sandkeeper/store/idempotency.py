"""Stored responses: an Idempotency-Key makes a repeated request the same request."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select, update

from sandkeeper.domain.errors import IdempotencyInFlightError, IdempotencyMismatchError
from sandkeeper.store.database import Database
from sandkeeper.store.tables.sandboxes import ANSWERS

_T = ANSWERS.c


@dataclass(frozen=True, slots=True)
class StoredReply:
    """The response to the first request."""

    status: int
    body: str


class IdempotencyKeys:
    """Responses by scope (caller and route) and key."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(
        self,
        *,
        scope: str,
        key: str,
        fingerprint: str,
        holder: str,
        now: datetime,
        held_until: datetime,
    ) -> StoredReply | None:
        """Return the stored response, or None for the first caller, which goes on.

        Raise IdempotencyMismatchError for a different body, IdempotencyInFlightError while the
        first call is unanswered. ``holder`` is the replica that answers it. A first caller whose
        replica died is replaced, at the latest when ``held_until`` has passed.
        """
        row = {
            "scope": scope,
            "key": key,
            "fingerprint": fingerprint,
            "started_at": now,
            "held_until": held_until,
            "holder": holder,
        }
        async with self._database.writing() as connection:
            statement = self._database.insert_ignoring(ANSWERS, ["scope", "key"])
            if (await connection.execute(statement, row)).rowcount == 1:
                return None
            known = (
                await connection.execute(select(ANSWERS).where(_T.scope == scope, _T.key == key))
            ).first()
            if known is None:  # The first call failed at this very moment.
                raise IdempotencyInFlightError(retry_after_s=1)
            if known.fingerprint != fingerprint:
                raise IdempotencyMismatchError
            if known.status is not None:
                return StoredReply(known.status, known.body)
            taken = await connection.execute(
                update(ANSWERS)
                .where(_T.scope == scope, _T.key == key, _T.status.is_(None), _T.held_until <= now)
                .values(started_at=now, held_until=held_until, holder=holder)
            )
            if taken.rowcount != 1:
                raise IdempotencyInFlightError(retry_after_s=1)
        return None

    async def finish(self, *, scope: str, key: str, status: int, body: str) -> None:
        """Store the response of the first call."""
        async with self._database.writing() as connection:
            await connection.execute(
                update(ANSWERS)
                .where(_T.scope == scope, _T.key == key)
                .values(status=status, body=body)
            )

    async def abandon(self, *, scope: str, key: str) -> None:
        """Delete a first call that failed and may be tried again."""
        async with self._database.writing() as connection:
            await connection.execute(
                delete(ANSWERS).where(_T.scope == scope, _T.key == key, _T.status.is_(None))
            )
