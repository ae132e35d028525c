"""Renew a lease while its holder works."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from sandkeeper.api import schemas
from sandkeeper.client.connection import HttpConnection
from sandkeeper.domain.errors import LeaseNotFoundError, SandkeeperError

if TYPE_CHECKING:
    from sandkeeper.api.schemas.sessions import LeaseOut

log = logging.getLogger(__name__)

# The shortest interval between two renewals.
RENEW_MIN_S = 0.2


@contextlib.asynccontextmanager
async def hold_lease(
    connection: HttpConnection, lease: LeaseOut, *, lease_s: float | None = None
) -> AsyncIterator[None]:
    """Renew the lease during the block, each time for `lease_s`, and release it afterwards."""
    body = {} if lease_s is None else {"leaseMs": round(lease_s * 1000)}
    renewal = asyncio.create_task(_renew_forever(connection, lease, body))
    try:
        yield
    finally:
        renewal.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await renewal
        # A lease that cannot be released expires on its own; the work is done.
        with contextlib.suppress(SandkeeperError):
            await asyncio.shield(connection.send("DELETE", f"/api/leases/{lease.id}"))


async def _renew_forever(
    connection: HttpConnection, lease: LeaseOut, body: Mapping[str, int]
) -> None:
    """Renew in time. Log a lost lease once; the next acquire gets a new one."""
    while True:
        await asyncio.sleep(max(RENEW_MIN_S, lease.renew_after_ms / 1000))
        try:
            lease = await connection.request(
                schemas.sessions.LeaseOut, "POST", f"/api/leases/{lease.id}", body=body
            )
        except LeaseNotFoundError:
            log.warning("The lease %s was lost.", lease.id)
            return
        except SandkeeperError as error:
            log.warning("The lease %s was not renewed: %s", lease.id, error)
