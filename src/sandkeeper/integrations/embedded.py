"""A keeper inside the host's process: no second program, no port, the same client.

It is the complete keeper: database, background tasks, streams. `EmbeddedKeeper.asgi` is its ASGI
application, for a host that serves it; `sandkeeper.integrations.fastapi_router` mounts it with the
host's own authorization. Several processes may embed a keeper on one PostgreSQL and share the work.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
from starlette.types import ASGIApp

from sandkeeper.app import Application, open_application
from sandkeeper.client.in_process import InProcessTransport
from sandkeeper.client.keeper import AsyncSandkeeper
from sandkeeper.hosting.data_dir import create_data_dir
from sandkeeper.hosting.keeper_keys import load_keys, load_operator_key
from sandkeeper.hosting.local_engine import RunningEngine, engine_context
from sandkeeper.providers.e2b.endpoint import E2BConnection as ProviderConnection
from sandkeeper.settings import Settings, read_settings

# Never resolved: requests go directly to the application.
URL = "http://sandkeeper.invalid"


class EmbeddedKeeper(AsyncSandkeeper):
    """A client whose keeper runs in this process."""

    def __init__(self, application: Application, key: str) -> None:
        super().__init__(URL, key, transport=InProcessTransport(application.asgi))
        self.application = application
        self.operator_key = key

    @property
    def asgi(self) -> ASGIApp:
        """Return the keeper's ASGI application: API and dashboard."""
        return self.application.asgi


@asynccontextmanager
async def open_embedded(
    *, engine: bool | RunningEngine | None = None, **settings: object
) -> AsyncIterator[EmbeddedKeeper]:
    """Run a keeper while the context is open. Sandboxes keep their state afterwards.

    `engine` is a running engine, or whether to use a local one on the data folder; by default a
    local one is used unless E2B's variables or a region name a provider.
    """
    _configure_structlog_for_host()
    chosen = read_settings(**settings)
    create_data_dir(chosen.data)
    wants_engine = not (chosen.regions or os.environ.get("E2B_API_KEY"))
    async with AsyncExitStack() as stack:
        connections = None
        if engine or (engine is None and wants_engine):
            running = (
                await stack.enter_async_context(
                    engine_context(chosen.data / "engine", keys=load_keys(chosen))
                )
                if engine is None or engine is True
                else engine
            )
            connections = _connect(running, chosen)
        application = await stack.enter_async_context(open_application(chosen, connections))
        stack.callback(application.prepare_to_stop)
        key = load_operator_key(chosen)
        yield await stack.enter_async_context(EmbeddedKeeper(application, key))


def _configure_structlog_for_host() -> None:
    """Send our log lines to `logging`, unless the host has configured structlog.

    A library must not print on its own; this way the host's levels and handlers apply.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _connect(engine: RunningEngine, settings: Settings) -> Mapping[str, ProviderConnection]:
    return {
        "local": ProviderConnection(
            api_key=engine.key,
            api_url=engine.url,
            sandbox_url=engine.url,
            preview_url=engine.preview_url,
            request_timeout_s=settings.request_timeout_s,
        )
    }
