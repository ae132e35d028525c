"""Live streams as typed events."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING

from sandkeeper.api import schemas
from sandkeeper.client.connection import HttpConnection

if TYPE_CHECKING:
    from sandkeeper.api.schemas.sandboxes import ChangeOut, Status


async def read_events(
    connection: HttpConnection,
    path: str,
    *,
    query: Mapping[str, object] | None = None,
    after: int | None = None,
) -> AsyncGenerator[Status | ChangeOut, None]:
    """Yield changes and statuses; drop a status that is older than one already yielded."""
    versions: dict[str, int] = {}
    async with contextlib.aclosing(connection.stream(path, query=query, after=after)) as events:
        async for event in events:
            if event.name == "change":
                yield schemas.sandboxes.ChangeOut.model_validate(event.data)
            elif event.name == "status":
                status = schemas.sandboxes.Status.model_validate(event.data)
                if status.version >= versions.get(status.id, 0):
                    versions[status.id] = status.version
                    yield status
