"""Run an ASGI application until it is stopped.

Signal handlers are set explicitly, because a parent process may have left the signals ignored.
Live streams are ended before the server waits for connections, because they never end on their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import uvicorn
from starlette.types import ASGIApp

from sandkeeper.common.http_protocol import BoundedHttpProtocol

if sys.platform != "win32":
    import resource

T = TypeVar("T")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# How long requests in progress may take after a stop signal.
SHUTDOWN_TIMEOUT_S = 5
# Every live stream is an open file, and the usual soft limit is 1,024. Above what the hard limit
# allows, connections wait in the kernel's queue.
OPEN_FILES_LIMIT = 65_536
# New objects between two collections of the youngest generation. Each costs about 0.3 µs of a
# pause: 20,000 of them delayed every request by 6 ms. Lower makes collections too frequent.
GC_THRESHOLD = 5_000


class KeeperServer(uvicorn.Server):
    """`uvicorn.Server` without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: the caller of `serve` handles signals."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """Bind the port now, so that a port in use is reported before anything starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.listen(2048)
    listener.setblocking(False)
    return listener


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    stop: asyncio.Event,
    protocol: type[BoundedHttpProtocol] = BoundedHttpProtocol,
    trusted_proxies: Sequence[str] = (),
) -> None:
    """Serve until `stop` is set, then let requests in progress finish.

    Only `trusted_proxies` may say, by X-Forwarded-For and X-Forwarded-Proto, for whom they ask.
    """
    _raise_open_files_limit()
    _tune_gc()
    config = uvicorn.Config(
        app,
        loop="none",
        http=protocol,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        date_header=True,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        timeout_keep_alive=30,
    )
    server = KeeperServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    server.should_exit = True
    await serving


def _raise_open_files_limit() -> None:
    """Raise this process's soft limit on open files as far as allowed; Windows has none."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_LIMIT if hard == resource.RLIM_INFINITY else min(OPEN_FILES_LIMIT, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _tune_gc() -> None:
    """Freeze startup objects and raise the gen-0 threshold.

    Startup objects live as long as the process, so collections skip them. Most later objects are
    freed by reference counting, so collections can be less frequent.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 200)


def on_stop_signal(act: Callable[[signal.Signals], None]) -> None:
    """Call `act` with the signal on SIGINT and SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        if sys.platform == "win32":
            signal.signal(
                number,
                lambda given, _: loop.call_soon_threadsafe(act, signal.Signals(given)),
            )
        else:
            loop.add_signal_handler(number, act, number)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Return the result, of an event loop of uvloop where that exists (not on Windows)."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
