"""The port of the local engine: free it of a previous engine, or say who listens there."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from sandkeeper.cli.connection import Exit, fail
from sandkeeper.cli.output import print_lines
from sandkeeper.engine.runtime.linux.engine_lock import find_holder
from sandkeeper.hosting.asgi_server import bind
from sandkeeper.hosting.local_engine import HOST

PORT_WAIT_S = 5.0
"""How long to wait for a port whose listener may just be exiting."""
ORPHAN_WAIT_S = 20.0
"""An engine ends itself within 8 s of SIGTERM; a machine under load gets more."""
_LISTEN = "0A"


def take_over(data: Path, port: int) -> None:
    """Stop an engine that a killed `up` left on this folder, and wait until the port is free.

    Another server on the port would respond instead of our engine.
    """
    _stop_orphan(data)
    deadline = time.monotonic() + PORT_WAIT_S
    while True:
        try:
            bind(HOST, port).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise fail(
                    Exit.FAILURE,
                    f"Port {port} on {HOST} cannot be used: {error.strerror}"
                    f"{_name_listener(data, port)}.",
                    "Pass another --engine-port, or stop the process that listens there.",
                ) from None
            time.sleep(0.1)
        else:
            return


def _stop_orphan(data: Path) -> None:
    holder = find_holder(data)
    if holder is None or not holder.is_orphan:
        return
    print_lines([f"Stopping the engine of a previous start (pid {holder.pid}) …"])
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGTERM)
    deadline = time.monotonic() + ORPHAN_WAIT_S
    while find_holder(data) == holder:
        if time.monotonic() > deadline:
            raise fail(
                Exit.FAILURE,
                f"The engine of a previous start (pid {holder.pid}) did not stop within "
                f"{ORPHAN_WAIT_S:.0f} s.",
                f"End it with `kill -9 {holder.pid}`: its sandboxes keep running.",
            )
        time.sleep(0.1)


def _name_listener(data: Path, port: int) -> str:
    """Return which process listens on the port, as far as this user may see it."""
    pid = _find_listener(port)
    if pid is None:
        return ""
    holder = find_holder(data)
    if holder is not None and holder.pid == pid:
        return f" by a running engine of this data folder (pid {pid})"
    with contextlib.suppress(OSError):
        return f" by {Path(f'/proc/{pid}/comm').read_text().strip()} (pid {pid})"
    return ""


def _find_listener(port: int) -> int | None:
    sockets = {f"socket:[{inode}]" for inode in _list_listening(port)}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()) in sockets:
                return int(link.parts[2])
    return None


def _list_listening(port: int) -> list[str]:
    """Return the inodes of the sockets that listen on this port."""
    found = []
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.append(fields[9])
    return found
