"""The engine as a process: what it is made of, how it starts, and how it ends.

Ending it ends no sandbox: they live on, and the next engine over the same data folder takes them
back.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from sandkeeper.engine.control.events import EventRoutes
from sandkeeper.engine.control.routes import ControlPlane, list_routes
from sandkeeper.engine.control.sandboxes import SandboxRoutes
from sandkeeper.engine.control.templates import TemplateRoutes
from sandkeeper.engine.dispatcher import HostRouter
from sandkeeper.engine.envd.application import Envd
from sandkeeper.engine.interpreter.launcher import PORT as INTERPRETER_PORT
from sandkeeper.engine.interpreter.launcher import Interpreter
from sandkeeper.engine.proxy.application import PortProxy
from sandkeeper.engine.runtime.bubblewrap.runtime import BubblewrapRuntime
from sandkeeper.engine.sandboxes.events import EventLog
from sandkeeper.engine.sandboxes.lifecycle import SandboxLifecycle
from sandkeeper.engine.sandboxes.maintenance import Maintenance
from sandkeeper.engine.sandboxes.recovery import recover
from sandkeeper.engine.sandboxes.webhooks import RETRY_S, WebhookSender
from sandkeeper.engine.storage.data_dir import DataDir, load_or_create_api_key
from sandkeeper.engine.storage.database import EngineDatabase
from sandkeeper.engine.templates.builder import Builder
from sandkeeper.engine.templates.catalogue import TemplateCatalog

_log = logging.getLogger("sandkeeper.engine")


class DataFolderBusyError(Exception):
    """Another engine works in this data folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an engine is run."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 7421
    webhook_retry_s: float = RETRY_S


async def serve(options: Options, on_ready: Callable[[int], None]) -> None:
    """Run until SIGINT or SIGTERM; `on_ready` hears the port.

    Raises DataFolderBusyError, OSError, RuntimeFaultError.
    """
    premises = DataDir(options.data.absolute())
    premises.create()
    with _sole(premises.data), contextlib.closing(_bind(options)) as listener:
        port = listener.getsockname()[1]

        def tell() -> None:
            premises.write_url_file(f"http://{options.host}:{port}")
            on_ready(port)

        async with _assembled(premises, options, port) as front:
            await _listen(front, listener, tell)


@contextlib.asynccontextmanager
async def _assembled(premises: DataDir, options: Options, port: int) -> AsyncIterator[HostRouter]:
    """Put the engine together, take back what an earlier one left, and keep house meanwhile."""
    key = load_or_create_api_key(premises.data)
    async with contextlib.AsyncExitStack() as stack:
        ledger = EngineDatabase(premises.database)
        ledger.open()
        stack.callback(ledger.close)
        team_id = await ledger.run(_read_team)
        runtime = BubblewrapRuntime(premises.data)
        await runtime.start()
        stack.push_async_callback(runtime.close)
        catalogue = TemplateCatalog(ledger)
        await catalogue.load()
        journal = EventLog(ledger)
        webhooks = WebhookSender(ledger, team_id, options.webhook_retry_s)
        lifecycle = SandboxLifecycle(
            runtime=runtime,
            ledger=ledger,
            catalogue=catalogue,
            webhooks=webhooks,
            premises=premises,
        )
        await recover(lifecycle, ledger)
        envd = Envd(runtime, lifecycle)
        await envd.start()
        stack.push_async_callback(envd.close)
        lifecycle.on_departure.append(envd.cancel_for_sandbox)
        builder = Builder(runtime, catalogue, premises)
        stack.push_async_callback(builder.close)
        domain = f"localhost:{port}"
        routes = list_routes(
            SandboxRoutes(lifecycle, catalogue, journal, domain),
            TemplateRoutes(
                catalogue=catalogue,
                builder=builder,
                lifecycle=lifecycle,
                premises=premises,
                key=key,
            ),
            EventRoutes(journal, webhooks, ledger, team_id),
        )
        housekeeping = asyncio.create_task(Maintenance(lifecycle, journal).run())
        delivery = asyncio.create_task(webhooks.run())
        for task in (housekeeping, delivery):
            task.add_done_callback(_report)
        stack.push_async_callback(_cancel, housekeeping, delivery)
        starters = {INTERPRETER_PORT: Interpreter(runtime).start}
        proxy = PortProxy(runtime, lifecycle, key, starters)
        yield HostRouter(control=ControlPlane(routes, key), envd=envd, ports=proxy)


def _report(task: asyncio.Task[None]) -> None:
    """Say it when a task that runs for ever ended by itself: that is a fault of ours."""
    if not task.cancelled() and task.exception() is not None:
        _log.critical("a background task ended", exc_info=task.exception())


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _bind(options: Options) -> socket.socket:
    """Take the port before anything else is begun; connections are accepted when all is ready."""
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


async def _listen(front: HostRouter, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until a signal comes. Open streams are dropped: their readers come back."""
    config = uvicorn.Config(
        front,
        http="httptools",
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
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    server = _Server(config, on_ready)
    loop = asyncio.get_running_loop()
    # Named explicitly: a parent may have started us with these signals ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    await server.serve(sockets=[listener])


def _is_news(line: logging.LogRecord) -> bool:
    """Leave out what uvicorn says of a connection we dropped because its sandbox is gone."""
    return "without completing response" not in line.msg


class _Server(uvicorn.Server):
    """uvicorn, with our own signals and a word when it listens."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.on_ready = on_ready

    def stop(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_ready()


@contextlib.contextmanager
def _sole(data: Path) -> Iterator[None]:
    """Hold the data folder; a second engine over it would fight for its sandboxes."""
    descriptor = os.open(data / "engine.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataFolderBusyError(f"another engine works in {data}") from None
        yield
    finally:
        os.close(descriptor)


def _read_team(connection: sqlite3.Connection) -> str:
    """Give this engine's team id, made once."""
    connection.execute(
        "INSERT OR IGNORE INTO facts (name, value) VALUES ('team_id', ?)", (str(uuid.uuid4()),)
    )
    row = connection.execute("SELECT value FROM facts WHERE name = 'team_id'").fetchone()
    return str(row[0])
