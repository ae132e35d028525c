"""The spawner's workers: processes that each carry out one order, the next one forked ahead.

Forking Python takes half a millisecond and copies every page that is then touched, so a worker that
was forked while the spawner was idle starts faster. A waiting worker holds nothing but its end of a
socket: no engine's connection, no sandbox's pipe, no open folder. It ends with that socket, so a
killed spawner leaves no process behind.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import NamedTuple

from sandkeeper.engine.runtime.bubblewrap import boot, interception, nsenter
from sandkeeper.engine.runtime.gvisor import inside as gvisor
from sandkeeper.engine.runtime.linux.cgroups import Parents
from sandkeeper.engine.runtime.spawner import protocol

Answer = tuple[protocol.Record, tuple[int, ...]]


class Worker(NamedTuple):
    """A process that carries out one order; its channel closes when it ends."""

    pid: int
    channel: socket.socket

    def reap(self) -> None:
        """Wait for the process, whose channel has closed."""
        self.channel.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


class WorkerPool:
    """Passes orders to workers: to the waiting one, or else to a new one."""

    def __init__(self, parents: Parents | None) -> None:
        """Take `parents`, where the sandboxes' control groups are made."""
        self._parents = parents
        self._waiting: Worker | None = None

    def prepare(self) -> None:
        """Fork a worker for the next order, unless one waits already."""
        if self._waiting is None:
            self._waiting = self._fork()

    def submit(self, order: protocol.Record, descriptors: tuple[int, ...]) -> Worker:
        """Pass an order to a worker. The caller keeps its descriptors.

        The first is the engine's connection, over which the worker answers directly: packets of
        two writers do not mix. Then it reports on its channel. `spawn` gets the program's three
        descriptors instead, and the worker reports the outcome on its channel.
        """
        worker, self._waiting = self._waiting, None
        if worker is not None:
            try:
                protocol.send(worker.channel, order, descriptors)
            except OSError:
                # It was killed while it waited.
                worker.reap()
            else:
                return worker
        worker = self._fork()
        protocol.send(worker.channel, order, descriptors)
        return worker

    def _fork(self) -> Worker:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
            if pid == 0:
                self._serve(far)
        except OSError:
            near.close()
            raise
        finally:
            far.close()
        return Worker(pid, near)

    def _serve(self, channel: socket.socket) -> None:
        """Run as the worker process. Never returns."""
        try:
            nsenter.close_all_but({channel.fileno()})
            order, descriptors = protocol.receive(channel)
            if order["op"] == "spawn":
                _run_command(order, channel, descriptors)
            else:
                self._reply(order, socket.socket(fileno=descriptors[0]))
                protocol.send(channel, {})
        finally:
            os._exit(0)

    def _reply(self, order: protocol.Record, engine: socket.socket) -> None:
        try:
            record, descriptors = self._act(order)
        except Exception as error:  # noqa: BLE001 -- the engine must learn every cause.
            record, descriptors = nsenter.describe(error), ()
        protocol.send(engine, {"re": order["number"], **record}, descriptors)

    def _act(self, order: protocol.Record) -> Answer:
        handlers: dict[str, Callable[[protocol.Record], Answer]] = {
            "boot": lambda order: ({"record": boot.boot(order, self._parents)}, ()),
            "intercept": _intercept,
            "kill_session": _kill_session,
            "limit_files": _limit_files,
            "network": _connect,
            "routes": _set_routes,
            "signal": _signal,
            "sockets": _make_sockets,
        }
        return handlers[order["op"]](order)


def _run_command(order: protocol.Record, channel: socket.socket, stdio: list[int]) -> None:
    is_gvisor = order["sandbox"].get("isolation") == gvisor.ISOLATION
    (gvisor if is_gvisor else nsenter).run_command(order, channel, stdio)


def _kill_session(order: protocol.Record) -> Answer:
    gvisor.kill_session(order["sandbox"], order["session"])
    return {}, ()


def _connect(order: protocol.Record) -> Answer:
    return nsenter.connect_network(order["sandbox"], order["backend"], order["routes"]), ()


def _set_routes(order: protocol.Record) -> Answer:
    nsenter.set_routes(order["sandbox"], order["present"], order["routes"])
    return {}, ()


def _limit_files(order: protocol.Record) -> Answer:
    nsenter.limit_files(order["sandbox"])
    return {}, ()


def _signal(order: protocol.Record) -> Answer:
    nsenter.signal_all(order["sandbox"], order["signal"])
    return {}, ()


def _make_sockets(order: protocol.Record) -> Answer:
    made = nsenter.make_sockets(order["sandbox"], order["families"])
    return {"families": [int(one.family) for one in made]}, tuple(one.detach() for one in made)


def _intercept(order: protocol.Record) -> Answer:
    made = interception.intercept(order["sandbox"], order["names"], order["authority"])
    return {}, tuple(one.detach() for one in made)
