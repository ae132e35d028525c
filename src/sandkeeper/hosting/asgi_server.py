"""Running an ASGI application until somebody asks it to stop.

Signals are taken explicitly, because a parent may have left them ignored, and live streams are
ended before connections are waited for, because they would never end by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# How long requests under way may take once we are asked to stop.
STOP_S = 5
# Every live stream is an open file, and the usual soft limit is 1,024. Above what the hard limit
# allows, connections wait in the kernel's queue.
FILES_WANTED = 65_536
# New objects between two looks for cycles. Each costs a look of about 0.3 µs, in one pause: 20,000
# of them held every request up for 6 ms. Fewer make more pauses than the young are worth.
GC_THRESHOLD = 5_000


class KeeperServer(uvicorn.Server):
    """uvicorn, without hands of its own on the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing: whoever runs `serve` has them."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """Take the port now, so that a port in use is told before anything is started."""
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


async def serve(app: ASGIApp, listener: socket.socket, *, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then let requests under way finish."""
    _allow_files()
    _tune_gc()
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        date_header=True,
        timeout_graceful_shutdown=STOP_S,
        timeout_keep_alive=30,
    )
    server = KeeperServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    server.should_exit = True
    await serving


def _allow_files() -> None:
    """Raise this process's soft limit on open files as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _tune_gc() -> None:
    """Keep the garbage collector from walking all that is loaded while a request waits.

    What exists now stays as long as the process does, so it is set aside; what comes is mostly
    freed by its count, so the young are looked at less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 200)


def on_stop_signal(act: Callable[[], None]) -> None:
    """Call `act` at the first SIGINT or SIGTERM of this process."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, act)
