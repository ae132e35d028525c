"""`sandkeeper up` and `sandkeeper serve`: run the keeper."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import webbrowser
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer

from sandkeeper.api.auth import Caller, Role
from sandkeeper.api.protocol import KeeperProtocol
from sandkeeper.cli.connection import Exit, fail, make_sign_in_url
from sandkeeper.cli.output import is_terminal
from sandkeeper.cli.server.demo import start_demo
from sandkeeper.cli.server.engine import Runtimes
from sandkeeper.cli.server.on_exit import OnExit, settle_running
from sandkeeper.common.dashboard_host import get_dashboard_url
from sandkeeper.common.tracing import ENDPOINTS, TRACING, MissingExtraError
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.hosting.asgi_server import bind, on_stop_signal, run
from sandkeeper.hosting.asgi_server import serve as serve_asgi
from sandkeeper.hosting.data_dir import OPERATOR_KEY_FILE, create_data_dir, write_url_file
from sandkeeper.hosting.discovery import format_url
from sandkeeper.hosting.keeper_keys import load_keys
from sandkeeper.hosting.local_engine import LocalEngine
from sandkeeper.settings import Settings, read_settings
from sandkeeper.telemetry import configure_logging

if TYPE_CHECKING:
    import socket
    from collections.abc import Coroutine, Iterator, Mapping, Sequence

    from sandkeeper.api.auth import Authenticator
    from sandkeeper.providers.e2b.endpoint import E2BConnection

log = structlog.get_logger(__name__)

LOCAL_CREATIONS_PER_S = 50.0
NO_URL_FILE_HINT = "Commands on this machine need --url or SANDKEEPER_URL to find this keeper."

DataOption = Annotated[Path | None, typer.Option("--data", help="Folder for all data.")]
PortOption = Annotated[int | None, typer.Option("--port", help="Port of API and dashboard.")]
HostOption = Annotated[str | None, typer.Option("--host", help="Address to listen on.")]
DatabaseOption = Annotated[
    str | None, typer.Option("--database", help="postgresql://… or sqlite:///…")
]


def up(
    data: DataOption = None,
    port: PortOption = None,
    *,
    engine_port: Annotated[
        int | None, typer.Option("--engine-port", help="Port of the local engine.")
    ] = None,
    host: HostOption = None,
    database: DatabaseOption = None,
    demo: Annotated[int, typer.Option("--demo", help="Create this many demo sandboxes.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the dashboard.")] = False,
    runtime: Runtimes = None,
    on_exit: Annotated[
        OnExit,
        typer.Option(
            "--on-exit",
            help="What Ctrl-C does with running sandboxes: pause, leave or ask. SIGTERM leaves "
            "them: a service manager starts the keeper again.",
        ),
    ] = OnExit.PAUSE,
) -> None:
    """Run everything: local engine, keeper and dashboard."""
    if sys.platform != "linux":
        raise fail(
            Exit.FAILURE,
            "The local engine needs Linux.",
            "Run `sandkeeper up` in a Linux virtual machine (Lima, Colima, WSL 2), or `sandkeeper "
            "serve` with E2B_API_KEY, or with the E2B_API_URL and E2B_SANDBOX_URL of an engine.",
        )
    from sandkeeper.cli.server.engine_port import take_over  # noqa: PLC0415  Linux only.

    settings = _prepare(data=data, port=port, engine_port=engine_port, host=host, database=database)
    listener = _bind(settings)
    folder = settings.data / "engine"
    take_over(folder, settings.engine_port)
    engine = LocalEngine(
        data=folder,
        port=settings.engine_port,
        keys=load_keys(settings),
        runtimes=runtime or (),
    )
    _finish(_up(settings, listener, engine, demo=demo, open_browser=open_browser, on_exit=on_exit))


def serve(
    data: DataOption = None,
    port: PortOption = None,
    host: HostOption = None,
    database: DatabaseOption = None,
) -> None:
    """Run the keeper without a local engine; E2B's environment variables name the provider.

    On PostgreSQL, `files_url` must name a bucket or a folder that all replicas share, and
    `encryption_key`, `encryption_key_file` or `encryption_kms_command` their common key.
    """
    settings = _prepare(data=data, port=port, host=host, database=database)
    _check_shared(settings)
    _finish(_serve(settings, _bind(settings)))


def gateway(
    data: DataOption = None,
    port: PortOption = None,
    host: HostOption = None,
    database: DatabaseOption = None,
) -> None:
    """Run a replica that serves previews only, beside those that serve the API.

    It needs the settings of `serve`: the same database, keys and provider. `serve` has the gateway,
    too; one alone keeps the previews' traffic away from the API.
    """
    settings = _prepare(data=data, port=port, host=host, database=database)
    if not settings.gateway_domain:
        raise fail(
            Exit.USAGE,
            "gateway_domain is empty, so there are no previews.",
            "Set SANDKEEPER_GATEWAY_DOMAIN, such as preview.example.com.",
        )
    _check_shared(settings)
    _finish(_serve_previews(settings, _bind(settings)))


def _check_shared(settings: Settings) -> None:
    """Refuse replicas that would not find each other's files or read each other's secrets."""
    if settings.database.startswith("postgres") and not settings.files_url:
        raise fail(
            Exit.FAILURE,
            "Replicas on PostgreSQL need one place for kept files, and files_url is empty.",
            "Set SANDKEEPER_FILES_URL to a bucket (s3://bucket/prefix) or to a folder that all "
            "replicas share (file:///path).",
        )
    if settings.database.startswith("postgres") and not settings.has_configured_key:
        raise fail(
            Exit.FAILURE,
            "Replicas on PostgreSQL need one encryption key, and none is configured.",
            "Make one with `openssl rand -base64 32`, keep it apart from the database, and set "
            "SANDKEEPER_ENCRYPTION_KEY or SANDKEEPER_ENCRYPTION_KEY_FILE on every replica.",
        )


async def _up(
    settings: Settings,
    listener: socket.socket,
    engine: LocalEngine,
    *,
    demo: int,
    open_browser: bool,
    on_exit: OnExit,
) -> None:
    stop = _stop_event()
    try:
        await engine.launch()
        # Imported late: this takes a second or two, while the engine starts.
        import sandkeeper.app  # noqa: F401, PLC0415
        from sandkeeper.providers.e2b.endpoint import E2BConnection  # noqa: PLC0415

        await engine.wait_until_ready()
        if "creations_per_s" not in settings.model_fields_set:
            # The default is the limit of an E2B plan; the local engine has none.
            settings = settings.model_copy(update={"creations_per_s": LOCAL_CREATIONS_PER_S})
        connection = E2BConnection(
            api_key=engine.key,
            api_url=engine.url,
            sandbox_url=engine.url,
            preview_url=engine.preview_url,
            request_timeout_s=settings.request_timeout_s,
        )
        await _run(
            settings,
            listener,
            stop,
            connections={"local": connection},
            lines=[("engine", engine.url), ("engine log", str(engine.log_file))],
            demo=demo,
            open_browser=open_browser,
            on_exit=on_exit,
        )
    finally:
        await engine.stop()


async def _serve(settings: Settings, listener: socket.socket) -> None:
    await _run(settings, listener, _stop_event())


async def _serve_previews(settings: Settings, listener: socket.socket) -> None:
    from sandkeeper.app import open_application  # noqa: PLC0415

    stop = _stop_event()
    async with open_application(settings) as application:
        serving = asyncio.create_task(
            serve_asgi(
                application.gateway,
                listener,
                stop=stop,
                protocol=KeeperProtocol,
                trusted_proxies=settings.trusted_proxies,
            )
        )
        url = format_url(settings, listener.getsockname()[1])
        sys.stdout.write(f"The gateway is up at {url} for *.{settings.gateway_domain}.\n")
        sys.stdout.flush()
        await stop.wait()
        application.prepare_to_stop()
        await serving


async def _run(
    settings: Settings,
    listener: socket.socket,
    stop: StopEvent,
    *,
    connections: Mapping[str, E2BConnection] | None = None,
    lines: Sequence[tuple[str, str]] = (),
    demo: int = 0,
    open_browser: bool = False,
    on_exit: OnExit = OnExit.LEAVE,
) -> None:
    """Run one keeper until it is stopped."""
    # Slow; a port in use is reported first.
    from sandkeeper.app import open_application  # noqa: PLC0415
    from sandkeeper.integrations.mcp_http import McpEndpoint, is_available  # noqa: PLC0415

    # Previews have this port in their URLs.
    settings = settings.model_copy(update={"port": listener.getsockname()[1]})
    tools = McpEndpoint()
    routes = [tools.route()] if is_available() else []
    async with (
        open_application(settings, connections, routes=routes) as application,
        tools.serving(application.asgi),
    ):
        serving = asyncio.create_task(
            serve_asgi(
                application.asgi,
                listener,
                stop=stop,
                protocol=KeeperProtocol,
                trusted_proxies=settings.trusted_proxies,
            )
        )
        url = format_url(settings, listener.getsockname()[1])
        left = "Sandboxes keep their state; the next start finds them."
        try:
            with _published(settings.data, url):
                authenticator = application.context.authenticator
                _announce(settings, url, lines, _sign_in_url(authenticator, url))
                if demo:
                    await start_demo(application.context, count=demo)
                if open_browser:
                    webbrowser.open(_sign_in_url(authenticator, url))
                await stop.wait()
                if stop.by_ctrl_c:
                    left = await settle_running(application.context.services, on_exit, _say)
        finally:
            stop.set()
            application.prepare_to_stop()
            await serving
    _say(f"Stopped. {left}\n")


@contextlib.contextmanager
def _published(data: Path, url: str) -> Iterator[None]:
    """Let commands on this machine find the keeper; on a full disk it runs without that."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(write_url_file(data, url))
        except OSError as error:
            log.warning("url_file_not_written", error=str(error), hint=NO_URL_FILE_HINT)
        yield


class StopEvent(asyncio.Event):
    """Set by the first Ctrl-C or SIGTERM, and by which of them."""

    by_ctrl_c = False


def _stop_event() -> StopEvent:
    """Return an event set by the first Ctrl-C or SIGTERM; a second one exits immediately."""
    stop = StopEvent()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            os._exit(int(Exit.INTERRUPTED))
        stop.by_ctrl_c = number is signal.SIGINT
        stop.set()

    on_stop_signal(on_signal)
    return stop


def _sign_in_url(gate: Authenticator, url: str) -> str:
    """Return the dashboard's URL with a code that signs in the user who started the keeper."""
    return make_sign_in_url(url, gate.issue_login_code(Caller(Role.OPERATOR)).token)


def _announce(
    settings: Settings, url: str, lines: Sequence[tuple[str, str]], sign_in_url: str
) -> None:
    key = "SANDKEEPER_OPERATOR_KEY" if settings.operator_key else settings.data / OPERATOR_KEY_FILE
    database = "PostgreSQL" if settings.database.startswith("postgres") else settings.database_url
    facts = [
        ("dashboard", f"{get_dashboard_url(url)}/"),
        ("API", f"{url}/api"),
        ("key", str(key)),
        ("database", database),
        *lines,
    ]
    if is_terminal():
        # Print the login code on a terminal only, never into a log file.
        facts.insert(1, ("sign in", f"{sign_in_url}  (once, within ten minutes)"))
    # One write, so that a reader of the first line has the others too.
    text = "".join(f"  {name:<11}{value}\n" for name, value in facts)
    _say(f"Sandkeeper is up. Ctrl-C stops it.\n{text}")


def _say(text: str) -> None:
    """Print it; a keeper whose output cannot be written, as on a full disk, runs nevertheless."""
    with contextlib.suppress(OSError):
        sys.stdout.write(text)
        sys.stdout.flush()


def _finish(running: Coroutine[Any, Any, None]) -> None:
    """Run to the end; report an error in one line instead of a traceback."""
    try:
        run(running)
    except SandkeeperError as error:
        raise fail(Exit.FAILURE, str(error), error.hint) from None
    except OSError as error:
        raise fail(
            Exit.FAILURE,
            f"The keeper cannot run: {error}.",
            "Check the room and the permissions of its data folder, and what the error names.",
        ) from None
    finally:
        TRACING.stop()


def _prepare(**flags: object) -> Settings:
    settings = read_settings(**flags)
    configure_logging(settings.log_format, settings.log_level)
    _start_traces()
    try:
        create_data_dir(settings.data)
    except SandkeeperError as error:
        raise fail(Exit.FAILURE, str(error), error.hint) from None
    return settings


def _start_traces() -> None:
    """Send traces where the environment names an endpoint."""
    try:
        TRACING.start(version=version("sandkeeper"))
    except MissingExtraError:
        raise fail(
            Exit.USAGE,
            f"{ENDPOINTS[0]} is set, and OpenTelemetry is not installed.",
            "Install it with `pip install 'sandkeeper[otel]'`, or remove the variable.",
        ) from None


def _bind(settings: Settings) -> socket.socket:
    try:
        return bind(settings.host, settings.port)
    except OSError as error:
        raise fail(
            Exit.FAILURE,
            f"Port {settings.port} on {settings.host} cannot be used: {error.strerror}.",
            "Pass another --port, or stop the process that listens there.",
        ) from None
