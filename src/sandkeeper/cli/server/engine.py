"""`sandkeeper engine`: E2B's API on this machine, and the SDK settings for it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sandkeeper.engine.server import Options

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

Base = Annotated[
    str | None,
    typer.Option(
        "--base",
        metavar="IMAGE",
        help="Image that the template `base` is: a name in a registry such as python:3.12, "
        "oci:FOLDER or docker-archive:FILE.",
        show_default="this machine's own programs",
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
Domain = Annotated[
    str,
    typer.Option(
        metavar="NAME[:PORT]",
        help="Domain of clients that set E2B_DOMAIN: api.NAME and *.NAME must lead here.",
        show_default="a name of this machine",
    ),
]
WithTls = Annotated[
    bool,
    typer.Option(
        "--tls",
        help="Speak TLS as well on the same port, with a certificate of a local authority that is "
        "made in the data folder.",
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="Your own certificate with its chain (PEM), instead of a local one; implies --tls.",
    ),
]
CertificateKey = Annotated[
    Path | None,
    typer.Option(
        exists=True, dir_okay=False, help="Key of --tls-certificate, if it is not in that file."
    ),
]
DebugPorts = Annotated[
    bool,
    typer.Option(
        "--debug-ports",
        help="Serve clients with E2B_DEBUG=true on the ports they expect (3000, 8080, 49983, "
        "49999), as far as these are free: one sandbox, without a token for every local program.",
    ),
]
HibernateAfter = Annotated[
    float | None,
    typer.Option(
        min=1,
        metavar="SECONDS",
        help="Move the memory of sandboxes to swap that have been paused for this long.",
        show_default="never",
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PART",
        help="Do not offer this part of the API, as some other servers do not: pause, events, "
        "webhooks, metrics or timeout. For tests; can be repeated.",
    ),
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
    domain: Domain = "",
    tls: WithTls = False,
    tls_certificate: Certificate = None,
    tls_key: CertificateKey = None,
    debug_ports: DebugPorts = False,
    base: Base = None,
    hibernate_after: HibernateAfter = None,
    without: Without = None,
    parent: Parent = 0,
) -> None:
    """Run the engine until Ctrl-C. Its sandboxes keep running for the next engine."""
    ctx.obj = (data, host, port)
    if ctx.invoked_subcommand is not None:
        return
    # Imported late: slow, and `engine env` does not need it.
    from sandkeeper.engine.names.endpoint import TlsOptions  # noqa: PLC0415
    from sandkeeper.engine.sandboxes.isolation import (  # noqa: PLC0415
        IsolationPolicy,
        UnknownRuntimeError,
    )
    from sandkeeper.engine.server import Options  # noqa: PLC0415

    # The system files of sandboxes get the usual modes, whatever the user's umask is.
    os.umask(0o022)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        isolation = IsolationPolicy.parse(runtime or ())
    except UnknownRuntimeError as error:
        raise typer.BadParameter(str(error), param_hint="--runtime") from error
    options = Options(
        data=data.expanduser(),
        host=host or DEFAULT_HOST,
        port=DEFAULT_PORT if port is None else port,
        webhook_retry_s=webhook_retry_s,
        key_digests=key_digests.lower().replace(",", " ").split(),
        isolation=isolation,
        base_image=base,
        public_url=public_url,
        domain=_check_domain(domain),
        tls=TlsOptions(tls_certificate, tls_key) if tls or tls_certificate else None,
        debug_ports=debug_ports,
        hibernate_after_s=hibernate_after,
        without=_check_parts(without or ()),
        parent=parent,
    )

    _run(options)


def _run(options: Options) -> None:
    import uvloop  # noqa: PLC0415

    from sandkeeper.engine.runtime.bubblewrap import subordinate_ids  # noqa: PLC0415
    from sandkeeper.engine.runtime.contract import RuntimeFaultError  # noqa: PLC0415
    from sandkeeper.engine.server import DataFolderBusyError, serve  # noqa: PLC0415

    def on_ready(port: int) -> None:
        url = f"http://{options.host}:{port}"
        typer.echo(f"engine ready at {url} (data in {options.data})", err=True)

    try:
        subordinate_ids.enter(options.data)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(options, on_ready))
    except (DataFolderBusyError, RuntimeFaultError, OSError) as error:
        typer.echo(f"the engine could not start: {error}", err=True)
        raise typer.Exit(1) from error


def _check_parts(parts: Collection[str]) -> Collection[str]:
    """Return the parts of the API. Raises BadParameter for an unknown one."""
    from sandkeeper.engine.control.switched_off import PATHS  # noqa: PLC0415

    unknown = ", ".join(sorted(set(parts) - set(PATHS)))
    if unknown:
        raise typer.BadParameter(
            f"there is no part {unknown}; there are {', '.join(PATHS)}", param_hint="--without"
        )
    return parts


def _check_domain(text: str) -> str:
    """Return the domain in lower case. Raises BadParameter for what is no name."""
    if text and not re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+(:[0-9]{1,5})?", text.lower()):
        raise typer.BadParameter(
            f"{text!r} is not a domain such as sandboxes.example.com", param_hint="--domain"
        )
    return text.lower()


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
    *,
    tls: Annotated[
        bool,
        typer.Option(
            "--tls",
            help="Print the domain of an engine with TLS and the files to trust, instead of URLs.",
        ),
    ] = False,
) -> None:
    """Print shell exports for the official SDKs: eval "$(sandkeeper engine env)".

    The address is that of the engine which last ran in the data folder, unless one is given.
    """
    from sandkeeper.engine.names.endpoint import read_names  # noqa: PLC0415
    from sandkeeper.engine.storage.data_dir import (  # noqa: PLC0415
        load_or_create_api_key,
        read_url_file,
    )

    outer_data, outer_host, outer_port = ctx.obj
    folder = (data or outer_data).expanduser()
    if tls:
        names = read_names(folder)
        if not names.get("tls"):
            typer.echo(f"no engine with TLS ran in {folder}: start one with --tls", err=True)
            raise typer.Exit(1)
        _export("E2B_DOMAIN", names["domain"])
        _export("SSL_CERT_FILE", names["bundle"])
        _export("NODE_EXTRA_CA_CERTS", names["ca"])
        _export("E2B_API_KEY", load_or_create_api_key(folder))
        # Set, they would come before the domain.
        typer.echo("unset E2B_API_URL E2B_SANDBOX_URL")
        return
    chosen_host, chosen_port = host or outer_host, port or outer_port
    running = None if chosen_host or chosen_port else read_url_file(folder)
    url = running or f"http://{chosen_host or DEFAULT_HOST}:{chosen_port or DEFAULT_PORT}"
    _export("E2B_API_URL", url)
    _export("E2B_SANDBOX_URL", url)
    _export("E2B_VOLUME_API_URL", url)
    _export("E2B_API_KEY", load_or_create_api_key(folder))


def _export(name: str, value: str | bool | None) -> None:
    if value:
        typer.echo(f"export {name}={shlex.quote(str(value))}")
