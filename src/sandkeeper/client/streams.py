"""Live streams as what they carry."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sandkeeper.api.schemas.sandboxes import Change, Status

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from sandkeeper.client.connection import Connection


async def read_events(
    connection: Connection,
    path: str,
    *,
    query: Mapping[str, object] | None = None,
    after: int | None = None,
) -> AsyncGenerator[Status | Change, None]:
    """Changes and the statuses they led to; a status older than one already given is dropped."""
    versions: dict[str, int] = {}
    async with contextlib.aclosing(connection.follow(path, query=query, after=after)) as events:
        async for event in events:
            if event.name == "change":
                yield Change.model_validate(event.data)
            elif event.name == "status":
                status = Status.model_validate(event.data)
                if status.version >= versions.get(status.id, 0):
                    versions[status.id] = status.version
                    yield status
