"""The list of sandboxes from the database, for when no keeper runs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from sandkeeper.api.status.serializers import PresentationTable, render_status
from sandkeeper.cli.connection import Exit, fail
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.states import State
from sandkeeper.hosting.asgi_server import run
from sandkeeper.settings import Settings, read_settings
from sandkeeper.store import SandboxQuery, open_store


def list_recorded(*, state: str, search: str, tenant: str, limit: int) -> list[dict[str, Any]]:
    """Return statuses as they were recorded last; exit if there is no database of a keeper."""
    settings = read_settings()
    found = urlsplit(settings.database_url)
    if found.scheme.startswith("sqlite") and not Path(found.path).is_file():
        raise fail(
            Exit.FAILURE,
            f"No keeper responds, and there is no database at {found.path}.",
            "Start it with `sandkeeper up`, or pass --url.",
        )
    try:
        states = tuple(State(name.strip()) for name in state.split(",") if name)
    except ValueError as error:
        raise fail(Exit.USAGE, f"{error}.") from None
    query = SandboxQuery(
        states=states, search=search or None, tenant=tenant or None, limit=limit, descending=True
    )
    try:
        return run(_read(settings, query))
    except SandkeeperError as error:
        raise fail(Exit.FAILURE, f"No keeper responds. {error}", error.hint) from None


async def _read(settings: Settings, query: SandboxQuery) -> list[dict[str, Any]]:
    words = PresentationTable.from_settings(settings, lambda _: None)
    async with open_store(settings.database_url, migrate=False) as store:
        page = await store.sandboxes.list(query)
    now = datetime.now(UTC)
    statuses = [render_status(one, words=words, now=now) for one in page.items]
    items: list[dict[str, Any]] = orjson.loads(orjson.dumps(statuses))
    return items
