"""The keeper inside the host's own process: no second program, no port, the same client.

It is the whole keeper: database, background, streams. `EmbeddedKeeper.asgi` is its application, for
a host that wants to serve it, and `sandkeeper.integrations.fastapi_router` mounts it behind the
host's own rules. Two processes may embed a keeper over one PostgreSQL, and then share the work.
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
from sandkeeper.hosting.data_dir import load_or_create_operator_key, prepare_folder
from sandkeeper.hosting.local_engine import RunningEngine, engine_context
from sandkeeper.providers.e2b.provider import E2BConnection as ProviderConnection
from sandkeeper.settings import Settings, read_settings

# Never resolved: requests go to the application itself.
URL = "http://sandkeeper.invalid"


class EmbeddedKeeper(AsyncSandkeeper):
    """A client whose keeper is in this process."""

    def __init__(self, application: Application, key: str) -> None:
        super().__init__(URL, key, transport=InProcessTransport(application.asgi))
        self.application = application
        self.operator_key = key

    @property
    def asgi(self) -> ASGIApp:
        """The keeper's whole application: API, dashboard and all."""
        return self.application.asgi


@asynccontextmanager
async def open_embedded(
    *, engine: bool | RunningEngine | None = None, **settings: object
) -> AsyncIterator[EmbeddedKeeper]:
    """A keeper that works while the context is open. Leaving it leaves every sandbox as it is.

    `engine` is a running one, or whether there should be a local one over the data folder; by
    default there is unless E2B's own variables or a region name a provider.
    """
    _configure_structlog_for_host()
    chosen = read_settings(**settings)
    prepare_folder(chosen.data)
    wants_engine = not (chosen.regions or os.environ.get("E2B_API_KEY"))
    async with AsyncExitStack() as stack:
        connections = None
        if engine or (engine is None and wants_engine):
            running = (
                await stack.enter_async_context(engine_context(chosen.data / "engine"))
                if engine is None or engine is True
                else engine
            )
            connections = _connect(running, chosen)
        application = await stack.enter_async_context(open_application(chosen, connections))
        stack.callback(application.prepare_to_stop)
        given = chosen.operator_key
        key = given.get_secret_value() if given else load_or_create_operator_key(chosen.data)
        yield await stack.enter_async_context(EmbeddedKeeper(application, key))


def _configure_structlog_for_host() -> None:
    """Send our lines to `logging`, unless the host has its own way with structlog.

    A library that prints by itself is a nuisance; with this the host's levels and handlers hold.
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
