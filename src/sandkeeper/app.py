"""Run a keeper: settings → deps → services → scheduler → ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from sandkeeper.api.app import create_asgi_app
from sandkeeper.api.deps import ApiContext, make_context
from sandkeeper.background.scheduler import TaskRun
from sandkeeper.background.tasks import wake_tasks_by_feed
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.events import SandboxCreated, StateChanged
from sandkeeper.domain.tasks import TaskName
from sandkeeper.gateway.application import Gateway
from sandkeeper.hosting.data_keys import open_data_keys
from sandkeeper.hosting.keeper_id import load_or_create_keeper_id
from sandkeeper.providers.e2b.endpoint import E2BConnection
from sandkeeper.providers.factory import make_providers, read_connections
from sandkeeper.services.clock import ProcessClock, read_database_time
from sandkeeper.services.composition import Overrides, Services
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.store_mark import check_file_store
from sandkeeper.services.jobs.credits import CreditHook
from sandkeeper.services.monitoring.feature_flags import FeatureFlag
from sandkeeper.settings import Settings
from sandkeeper.store import LoggedEvent, Store, open_store
from sandkeeper.telemetry import Metrics
from sandkeeper.web import web_routes

log = structlog.get_logger(__name__)

NO_LIMIT_HINT = "A statement may hang for ever: see 'PgBouncer' in docs/postgresql.md."
NO_INDEX_HINT = "A search reads every record: see 'Search' in docs/postgresql.md."
REGISTER_RETRY_S = 30.0


@dataclass(frozen=True, slots=True)
class Application:
    """A running keeper: what answers requests, and what works behind them."""

    asgi: ASGIApp
    """The API and the pages, and the previews in front of them."""
    gateway: Gateway
    """Previews alone."""
    context: ApiContext

    @property
    def services(self) -> Services:
        return self.context.services

    def prepare_to_stop(self) -> None:
        """End open streams, which would never end on their own."""
        self.context.hub.close()
        self.gateway.close()


@asynccontextmanager
async def open_application(
    settings: Settings,
    connections: Mapping[str, E2BConnection] | None = None,
    credit: CreditHook | None = None,
    routes: Sequence[BaseRoute] = (),
) -> AsyncIterator[Application]:
    """Run a keeper, with its background tasks, while the context is open.

    On leaving, buffered activity is flushed; sandboxes keep running. `credit` replaces the credit
    URL of the settings. `routes` are served beside the API's and the pages'.
    """
    async with open_store(settings.database_url, pool_size=settings.database_connections) as store:
        await _check_database(store)
        deps = await make_deps(settings, store, connections or read_connections(settings))
        services = Services(deps, Overrides(credit=credit))
        await check_file_store(deps, services.blobs)
        context = make_context(services)
        wake_tasks_by_feed(services, context.scheduler)
        services.feed.subscribe(lambda events: _count(services, events))
        await services.clock_monitor.check()
        await services.feature_flags.refresh()
        await services.provider_features.refresh()
        await services.tokens.refresh()
        await services.api_keys.refresh()
        await services.preview_domains.refresh()
        await services.slots.refresh()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(services.recovery.stop)
            stack.push_async_callback(services.close)
            await services.recovery.start()
            await stack.enter_async_context(services.feed)
            await stack.enter_async_context(context.scheduler)
            for work in (
                context.hub.ping_forever(settings.sse_ping_s),
                services.process_metrics.measure_forever(),
                _register(services),
            ):
                stack.push_async_callback(_cancel, asyncio.create_task(work))
            pages = [*routes, *web_routes(has_own_host=not settings.public_url)]
            if settings.oidc_issuer:
                pages += _sign_in_routes(context)
            gateway = Gateway(context)
            asgi = gateway.in_front_of(create_asgi_app(context, pages))
            yield Application(asgi, gateway, context)


async def _check_database(store: Store) -> None:
    """Say what the database lacks; without it everything works, only worse."""
    if not await store.sandboxes.has_search_index():
        log.warning("search_has_no_index", hint=NO_INDEX_HINT)
    if not await store.has_statement_limit():
        log.warning("database_has_no_limits", hint=NO_LIMIT_HINT)


async def make_deps(
    settings: Settings, store: Store, connections: Mapping[str, E2BConnection]
) -> Deps:
    """Return what every service needs. The keeper's id is made on the first start."""
    metrics = Metrics()
    clock = ProcessClock()
    replica = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    if store.is_shared:
        await clock.follow(lambda: read_database_time(store, replica))
    await open_data_keys(store, settings, now=clock())
    keeper_id = await load_or_create_keeper_id(store, settings.data, now=clock())
    return Deps(
        settings=settings,
        store=store,
        providers=make_providers(
            settings, connections, metrics=metrics, clock=clock, keeper_id=keeper_id
        ),
        metrics=metrics,
        clock=clock,
        keeper_id=keeper_id,
        replica=replica,
    )


async def sweep_once(settings: Settings) -> TaskRun:
    """Run one idle sweep without a server, for a cron job."""
    quiet = settings.model_copy(
        update={"enforcer": False, "reconciler": False, "catch_up": False, "public_url": ""}
    )
    async with open_application(quiet) as application:
        return await application.context.scheduler.run_now(TaskName.IDLE_SWEEP)


def _sign_in_routes(context: ApiContext) -> list[Route]:
    """Return the pages of a sign-in; the libraries for it are loaded only where it is used."""
    from sandkeeper.api.handlers.sign_in import sign_in_routes  # noqa: PLC0415

    return sign_in_routes(context)


def _count(services: Services, events: Sequence[LoggedEvent]) -> None:
    for event in events:
        if event.type == StateChanged.type:
            services.health.record_change(by_webhook=event.data.get("source") == "webhook")
        if event.type == SandboxCreated.type and event.data.get("recreated"):
            services.deps.metrics.recreations.labels(event.reason or "unknown").inc()


async def _register(services: Services) -> None:
    """Register the webhook if a public URL is set; retry while the provider is unreachable."""
    url = services.deps.settings.public_url
    while url and services.feature_flags.is_on(FeatureFlag.WEBHOOKS):
        try:
            await services.webhook_registration.register(url)
        except SandkeeperError as error:
            log.warning("webhook_not_registered", error=str(error))
            await asyncio.sleep(REGISTER_RETRY_S)
        else:
            return


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
