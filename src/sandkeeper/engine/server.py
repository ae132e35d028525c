"""The engine as a process: how it is built, started and stopped.

Stopping it stops no sandbox. They keep running, and the next engine in the same data folder adopts
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import logging
import os
import signal
import socket
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import uvicorn

from sandkeeper.common.http_protocol import BoundedHttpProtocol
from sandkeeper.engine.control.account import AccountRoutes
from sandkeeper.engine.control.events import EventRoutes
from sandkeeper.engine.control.routes import ControlPlane, list_other_routes, list_routes
from sandkeeper.engine.control.sandboxes import SandboxRoutes
from sandkeeper.engine.control.secrets import SecretRoutes, read_values
from sandkeeper.engine.control.switched_off import switch_off
from sandkeeper.engine.control.tags import TagRoutes
from sandkeeper.engine.control.templates import TemplateRoutes
from sandkeeper.engine.control.volumes import VolumeRoutes
from sandkeeper.engine.dispatcher import HostRouter
from sandkeeper.engine.egress_proxy.proxy import EgressProxy
from sandkeeper.engine.envd.application import Envd
from sandkeeper.engine.http.active_requests import ActiveRequests
from sandkeeper.engine.images.store import ImageStore
from sandkeeper.engine.interpreter.launcher import PORT as INTERPRETER_PORT
from sandkeeper.engine.interpreter.launcher import Interpreter
from sandkeeper.engine.interpreter.layer import PackagesLayer
from sandkeeper.engine.names.debug_ports import DEBUG_PORTS, DebugSandbox
from sandkeeper.engine.names.endpoint import Tls, TlsOptions, open_endpoint
from sandkeeper.engine.names.tls_listener import TlsListener
from sandkeeper.engine.proxy.application import PortProxy
from sandkeeper.engine.runtime.bubblewrap.binaries import find_uid_base
from sandkeeper.engine.runtime.bubblewrap.runtime import BubblewrapRuntime
from sandkeeper.engine.runtime.contract import RuntimeFaultError
from sandkeeper.engine.runtime.linux import hibernation
from sandkeeper.engine.runtime.linux.engine_lock import hold_lock
from sandkeeper.engine.sandboxes.events import EventLog
from sandkeeper.engine.sandboxes.isolation import BUBBLEWRAP_ONLY, IsolationPolicy
from sandkeeper.engine.sandboxes.lifecycle import SandboxLifecycle
from sandkeeper.engine.sandboxes.maintenance import Maintenance
from sandkeeper.engine.sandboxes.operations import SandboxOperations
from sandkeeper.engine.sandboxes.recovery import recover
from sandkeeper.engine.sandboxes.registry import SandboxRegistry
from sandkeeper.engine.sandboxes.webhooks import RETRY_S, WebhookSender
from sandkeeper.engine.storage.data_dir import DataDir, load_or_create_api_key
from sandkeeper.engine.storage.database import EngineDatabase
from sandkeeper.engine.templates.base_image import find_base
from sandkeeper.engine.templates.builder import Builder
from sandkeeper.engine.templates.catalogue import TemplateCatalog
from sandkeeper.engine.volumes.store import VolumeStore

_log = logging.getLogger("sandkeeper.engine")

STOP_WITHIN_S = 8
"""From a stop signal to the end, whatever is open: a new engine waits for the port and the lock.
Requests get 2 s, closing takes under 3 s on a busy machine. Its parent kills it after 10 s."""


class DataFolderBusyError(Exception):
    """Another engine works in this data folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an engine is run."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 7421
    webhook_retry_s: float = RETRY_S
    key_digests: Collection[str] = ()
    """SHA-256 of the keys that no sandbox may see."""
    isolation: IsolationPolicy = BUBBLEWRAP_ONLY
    base_image: str | None = None
    """The image that the template `base` is; None for this machine's own programs."""
    public_url: str = ""
    """Where clients reach the engine, if a proxy or another address is in front of it."""
    domain: str = ""
    """The domain of `E2B_DOMAIN` clients; by default a name of this machine, with the port."""
    tls: TlsOptions | None = None
    without: Collection[str] = ()
    """The parts of the API that it does not offer; see `switched_off`."""
    debug_ports: bool = False
    """Whether to listen on the ports that clients with `E2B_DEBUG` expect."""
    hibernate_after_s: float | None = None
    """How long a sandbox is paused before its memory is moved to swap; None for never."""
    parent: int = 0
    """The process with which the engine stops; 0 for none."""


async def serve(options: Options, on_ready: Callable[[int], None]) -> None:
    """Run until SIGINT or SIGTERM; call `on_ready` with the port.

    Raises DataFolderBusyError, OSError, RuntimeFaultError.
    """
    data_dir = DataDir(options.data.absolute())
    data_dir.create()
    with (
        _stopping_with_parent(options.parent),
        _exclusive_lock(options),
        contextlib.closing(_bind(options)) as listener,
    ):
        port = listener.getsockname()[1]
        endpoint = open_endpoint(
            data_dir.data, host=options.host, port=port, domain=options.domain, tls=options.tls
        )

        def announce() -> None:
            data_dir.write_url_file(f"http://{options.host}:{port}")
            endpoint.publish(data_dir.data)
            on_ready(port)

        with _bind_debug_ports(options) as extra:
            async with open_engine(options, port, endpoint.domain) as router:
                await _listen(router, [listener, *extra], endpoint.tls, announce)


@contextlib.asynccontextmanager
async def open_engine(options: Options, port: int, domain: str = "") -> AsyncIterator[HostRouter]:
    """Build the engine, recover earlier sandboxes, run its background tasks until the end.

    `port` is where clients reach the router, and `domain` their name for it; API responses have it.
    """
    data_dir = DataDir(options.data.absolute())
    isolation = options.isolation
    key = load_or_create_api_key(data_dir.data)
    async with contextlib.AsyncExitStack() as stack:
        database = _open_database(stack, data_dir)
        team_id = await database.run(_read_team)
        runtime = await stack.enter_async_context(_open_runtime(options, data_dir))
        images = ImageStore(data_dir, find_uid_base())
        catalogue = await _load_catalogue(options, database, data_dir, images)
        event_log = EventLog(database)
        webhooks = WebhookSender(database, team_id, options.webhook_retry_s)
        requests = ActiveRequests(registry := SandboxRegistry())
        packages = PackagesLayer(find_uid_base())
        lifecycle = SandboxLifecycle(
            runtime=runtime,
            database=database,
            catalogue=catalogue,
            data_dir=data_dir,
            registry=registry,
            operations=_make_operations(
                stack, runtime, database, webhooks, data_dir, registry, requests, packages
            ),
        )
        await recover(lifecycle, database)
        envd = _close_at_end(stack, Envd(runtime, lifecycle, requests))
        await envd.start()
        builder = Builder(runtime, catalogue, data_dir, isolation, packages, images)
        stack.push_async_callback(builder.close)
        templates = TemplateRoutes(
            catalogue=catalogue,
            builder=builder,
            lifecycle=lifecycle,
            data_dir=data_dir,
            key=key,
            public_url=options.public_url,
            domain=options.domain,
        )
        volumes = await _open_volumes(database, data_dir, runtime)
        domain = domain or f"localhost:{port}"
        sandboxes = SandboxRoutes(lifecycle, catalogue, event_log, domain, isolation, volumes)
        events = EventRoutes(event_log, webhooks, database, team_id)
        others = list_other_routes(
            TagRoutes(catalogue),
            AccountRoutes(database, team_id, key),
            SecretRoutes(database),
            VolumeRoutes(volumes, lifecycle),
        )
        routes = list_routes(sandboxes, templates, events) + others
        control = ControlPlane(switch_off(routes, options.without), key)
        maintenance = Maintenance(lifecycle, event_log, options.hibernate_after_s).run()
        _run_until_end(stack, maintenance, webhooks.run())
        interpreter = _close_at_end(stack, Interpreter(runtime, packages))
        ports = _open_ports(options, key, runtime, lifecycle, requests, interpreter)
        debug = DebugSandbox(lifecycle, catalogue, isolation) if options.debug_ports else None
        yield HostRouter(control, envd, ports, registry.find_by_token, debug)


async def _load_catalogue(
    options: Options, database: EngineDatabase, data_dir: DataDir, images: ImageStore
) -> TemplateCatalog:
    """Read the templates, and fetch the image that `base` shall be. Raises RuntimeFaultError."""
    catalogue = TemplateCatalog(database)
    await catalogue.load()
    if options.base_image:
        catalogue.set_base(await find_base(options.base_image, images, database, data_dir))
    return catalogue


def _make_operations(
    stack: contextlib.AsyncExitStack,
    runtime: BubblewrapRuntime,
    database: EngineDatabase,
    webhooks: WebhookSender,
    data_dir: DataDir,
    registry: SandboxRegistry,
    requests: ActiveRequests,
    packages: PackagesLayer,
) -> SandboxOperations:
    read_secrets = functools.partial(read_values, database)
    egress_proxy = EgressProxy(runtime, data_dir.data / "tls", read_secrets)
    stack.push_async_callback(egress_proxy.stop)
    return SandboxOperations(
        runtime=runtime,
        database=database,
        webhooks=webhooks,
        data_dir=data_dir,
        registry=registry,
        packages=packages,
        egress_proxy=egress_proxy,
        drop_connections=requests.cancel_for_sandbox,
    )


async def _open_volumes(
    database: EngineDatabase, data_dir: DataDir, runtime: BubblewrapRuntime
) -> VolumeStore:
    volumes = VolumeStore(database, data_dir, find_uid_base())
    await volumes.load()
    await volumes.sweep(runtime)
    return volumes


def _open_ports(
    options: Options,
    key: str,
    runtime: BubblewrapRuntime,
    lifecycle: SandboxLifecycle,
    requests: ActiveRequests,
    interpreter: Interpreter,
) -> PortProxy:
    return PortProxy(
        runtime,
        lifecycle,
        requests,
        key=key,
        key_digests=options.key_digests,
        starters={INTERPRETER_PORT: interpreter.start},
    )


class _Closable(Protocol):
    async def close(self) -> None: ...


_Part = TypeVar("_Part", bound=_Closable)


def _close_at_end(stack: contextlib.AsyncExitStack, part: _Part) -> _Part:
    stack.push_async_callback(part.close)
    return part


def _open_database(stack: contextlib.AsyncExitStack, data_dir: DataDir) -> EngineDatabase:
    database = EngineDatabase(data_dir.database)
    database.open()
    stack.callback(database.close)
    return database


@contextlib.asynccontextmanager
async def _open_runtime(options: Options, data_dir: DataDir) -> AsyncIterator[BubblewrapRuntime]:
    """Start the runtime, and prove what was chosen. Raises RuntimeFaultError."""
    runtime = BubblewrapRuntime(data_dir.data)
    await runtime.start()
    try:
        for chosen in options.isolation.list_chosen():
            await runtime.prove(chosen)
        fault = hibernation.find_fault() if options.hibernate_after_s is not None else None
        if fault is not None:
            raise RuntimeFaultError(f"--hibernate-after cannot be used: {fault}")
        yield runtime
    finally:
        await runtime.close()


def _run_until_end(
    stack: contextlib.AsyncExitStack, *background: Coroutine[None, None, None]
) -> None:
    stack.push_async_callback(_cancel, *map(_run, background))


def _run(work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    task.add_done_callback(_report)
    return task


def _report(task: asyncio.Task[None]) -> None:
    """Log a background task that ended although it should run until cancelled."""
    if not task.cancelled() and task.exception() is not None:
        _log.critical("a background task ended", exc_info=task.exception())


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _bind(options: Options) -> socket.socket:
    """Bind the port first, so that a taken port fails early; accept connections once ready."""
    family, kind, _, _, address = socket.getaddrinfo(
        options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


@contextlib.contextmanager
def _bind_debug_ports(options: Options) -> Iterator[list[socket.socket]]:
    """Bind the ports that clients with `E2B_DEBUG` expect; one that is taken is left out."""
    with contextlib.ExitStack() as stack:
        bound = []
        for port in DEBUG_PORTS if options.debug_ports else ():
            try:
                listener = _bind(replace(options, host="127.0.0.1", port=port))
            except OSError as error:
                _log.warning("E2B_DEBUG clients do not find port %d: %s", port, error)
            else:
                bound.append(stack.enter_context(contextlib.closing(listener)))
        yield bound


async def _listen(
    router: HostRouter,
    listeners: list[socket.socket],
    tls: Tls | None,
    on_ready: Callable[[], None],
) -> None:
    """Serve until a signal arrives. Open streams are dropped; their clients reconnect."""
    config = uvicorn.Config(
        router,
        http=BoundedHttpProtocol,
        proxy_headers=False,
        ws="websockets-sansio",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=300,
        backlog=4096,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_relevant)
    server = _Server(config, tls, on_ready)
    loop = asyncio.get_running_loop()
    # Named explicitly: a parent may have started us with these signals ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    renewal = [] if tls is None else [_run(tls.keep_fresh())]
    try:
        await server.serve(sockets=listeners)
    finally:
        await _cancel(*renewal)


def _is_relevant(line: logging.LogRecord) -> bool:
    """Filter uvicorn's complaint about a connection that we dropped because its sandbox stopped."""
    return "without completing response" not in line.msg


class _Server(uvicorn.Server):
    """uvicorn.Server without its signal handlers, and with a callback once it listens.

    With TLS, each of its ports speaks plain HTTP as well.
    """

    def __init__(
        self, config: uvicorn.Config, tls: Tls | None, on_ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._tls = tls
        self.on_ready = on_ready

    def stop(self) -> None:
        """Stop; what still blocks the process at the bound is logged, and the process ends."""
        if not self.should_exit:
            faulthandler.dump_traceback_later(STOP_WITHIN_S, exit=True)
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets if self._tls is None else [])
        if self._tls is not None:
            for one in sockets or ():
                listener = TlsListener(one, self._make_protocol, self._tls.context)
                listener.start(self.config.backlog)
                self.servers.append(listener)  # type: ignore[arg-type]  # closed as asyncio's is
        self.on_ready()

    def _make_protocol(self) -> asyncio.Protocol:
        return BoundedHttpProtocol(self.config, self.server_state, self.lifespan.state)


@contextlib.contextmanager
def _exclusive_lock(options: Options) -> Iterator[None]:
    """Lock the data folder; a second engine in it would fight over the same sandboxes."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(options.data, parent=options.parent))
        except BlockingIOError:
            raise DataFolderBusyError(f"another engine works in {options.data}") from None
        yield


@contextlib.contextmanager
def _stopping_with_parent(parent: int) -> Iterator[None]:
    """Send this process SIGTERM when its parent ends. Raises ProcessLookupError if it has ended.

    The kernel's own signal (PR_SET_PDEATHSIG) is lost with the first change of identity, which
    happens with the first file written into a sandbox.
    """
    if parent == 0:
        yield
        return
    descriptor = os.pidfd_open(parent)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(descriptor)
        signal.raise_signal(signal.SIGTERM)

    try:
        if os.getppid() != parent:
            raise ProcessLookupError("the process that started it has ended")
        loop.add_reader(descriptor, stop)
        yield
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _read_team(connection: sqlite3.Connection) -> str:
    """Return this engine's team id; create it on first use."""
    connection.execute(
        "INSERT OR IGNORE INTO facts (name, value) VALUES ('team_id', ?)", (str(uuid.uuid4()),)
    )
    row = connection.execute("SELECT value FROM facts WHERE name = 'team_id'").fetchone()
    return str(row[0])
