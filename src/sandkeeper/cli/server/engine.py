"""`sandkeeper engine`: E2B's API on this machine, and the SDK settings for it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_DATA = Path("~/.local/share/sandkeeper/engine")
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7421

app = typer.Typer(
    add_completion=False,
    invoke_without_command=True,
    help="Run E2B's API on this machine: real sandboxes, no account, no Docker, no root.",
)

Data = Annotated[Path, typer.Option("--data", help="Folder for all data.")]
Host = Annotated[
    str | None, typer.Option("--host", help="Address to listen on.", show_default=DEFAULT_HOST)
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        min=0,
        max=65535,
        help="Port to listen on; 0 chooses a free one.",
        show_default=str(DEFAULT_PORT),
    ),
]
Runtimes = Annotated[
    list[str] | None,
    typer.Option(
        "--runtime",
        metavar="[TEMPLATE=]RUNTIME",
        help="What isolates sandboxes: bubblewrap, or runsc (gVisor, a stronger wall; needs root "
        "and the package runsc). With TEMPLATE= for that template only; can be repeated.",
        show_default="bubblewrap",
    ),
]

KeyDigests = Annotated[
    str,
    typer.Option(
        envvar="SANDKEEPER_KEY_DIGESTS",
        help="Comma-separated SHA-256 digests of keys that no app in a sandbox may see.",
    ),
]
PublicUrl = Annotated[
    str, typer.Option(help="URL at which clients reach the engine, if a proxy is in front.")
]
Parent = Annotated[int, typer.Option(help="Id of the parent process with which it stops.")]


@app.callback()
def engine(
    ctx: typer.Context,
    data: Data = DEFAULT_DATA,
    host: Host = None,
    port: Port = None,
    webhook_retry_s: Annotated[
        float, typer.Option(min=0.01, help="Seconds between attempts of a webhook delivery.")
    ] = 10.0,
    key_digests: KeyDigests = "",
    runtime: Runtimes = None,
    public_url: PublicUrl = "",
    *,
    parent: Parent = 0,
) -> None:
    """Run the engine until Ctrl-C. Its sandboxes keep running for the next engine."""
    ctx.obj = (data, host, port)
    if ctx.invoked_subcommand is not None:
        return
    # Imported late: slow, and `engine env` does not need it.
    import uvloop  # noqa: PLC0415

    from sandkeeper.engine.runtime.bubblewrap import subordinate_ids  # noqa: PLC0415
    from sandkeeper.engine.runtime.contract import RuntimeFaultError  # noqa: PLC0415
    from sandkeeper.engine.sandboxes.isolation import (  # noqa: PLC0415
        IsolationPolicy,
        UnknownRuntimeError,
    )
    from sandkeeper.engine.server import DataFolderBusyError, Options, serve  # noqa: PLC0415

    # The system files of sandboxes get the usual modes, whatever the user's umask is.
    os.umask(0o022)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    folder = data.expanduser()
    address = host or DEFAULT_HOST
    try:
        isolation = IsolationPolicy.parse(runtime or ())
    except UnknownRuntimeError as error:
        raise typer.BadParameter(str(error), param_hint="--runtime") from error
    options = Options(
        data=folder,
        host=address,
        port=DEFAULT_PORT if port is None else port,
        webhook_retry_s=webhook_retry_s,
        key_digests=key_digests.lower().replace(",", " ").split(),
        isolation=isolation,
        public_url=public_url,
        parent=parent,
    )

    def on_ready(bound_port: int) -> None:
        typer.echo(f"engine ready at http://{address}:{bound_port} (data in {folder})", err=True)

    try:
        subordinate_ids.enter(folder)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(options, on_ready))
    except (DataFolderBusyError, RuntimeFaultError, OSError) as error:
        typer.echo(f"the engine could not start: {error}", err=True)
        raise typer.Exit(1) from error


@app.command()
def interpreter() -> None:
    """Install the packages of the template `code-interpreter-v1`: IPython, numpy, pandas, ….

    Once for this user of the machine; sandboxes created afterwards have them.
    """
    from sandkeeper.engine.interpreter.layer import main  # noqa: PLC0415

    main()


@app.command()
def env(
    ctx: typer.Context,
    data: Annotated[Path | None, typer.Option("--data", help="Data folder of the engine.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address of the engine.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port of the engine.")] = None,
) -> None:
    """Print shell exports for the official SDKs: eval "$(sandkeeper engine env)".

    The address is that of the engine which last ran in the data folder, unless one is given.
    """
    from sandkeeper.engine.storage.data_dir import (  # noqa: PLC0415
        load_or_create_api_key,
        read_url_file,
    )

    outer_data, outer_host, outer_port = ctx.obj
    folder = (data or outer_data).expanduser()
    chosen_host, chosen_port = host or outer_host, port or outer_port
    running = None if chosen_host or chosen_port else read_url_file(folder)
    url = running or f"http://{chosen_host or DEFAULT_HOST}:{chosen_port or DEFAULT_PORT}"
    typer.echo(f"export E2B_API_URL={url}")
    typer.echo(f"export E2B_SANDBOX_URL={url}")
    typer.echo(f"export E2B_API_KEY={load_or_create_api_key(folder)}")
