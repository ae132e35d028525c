"""The spawner's workers: processes that each do one order, the next of them forked ahead.

To fork a Python takes half a millisecond, and it copies every page that it then touches, so a
worker that was forked while nobody waited starts at once. One that waits holds nothing but its end
of a socket: no engine's connection, no sandbox's pipe, no name in any folder. It ends with that
socket, so a spawner that is killed leaves nobody behind.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import NamedTuple

from sandkeeper.engine.runtime.bubblewrap import boot, nsenter
from sandkeeper.engine.runtime.linux.cgroups import Parents
from sandkeeper.engine.runtime.spawner import protocol

Answer = tuple[protocol.Record, tuple[int, ...]]


class Worker(NamedTuple):
    """A process that does one order; the link to it ends when it does."""

    pid: int
    channel: socket.socket

    def reap(self) -> None:
        """Wait for the process, whose link has ended."""
        self.channel.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


class WorkerPool:
    """Gives orders to workers, to the one that waits or else to a new one."""

    def __init__(self, parents: Parents | None) -> None:
        """`parents` is where the sandboxes' control groups are made."""
        self._parents = parents
        self._waiting: Worker | None = None

    def prepare(self) -> None:
        """Have a worker wait for the next order; one that waits already is enough."""
        if self._waiting is None:
            self._waiting = self._fork()

    def submit(self, order: protocol.Record, descriptors: tuple[int, ...]) -> Worker:
        """Have an order done. The descriptors stay the caller's.

        The first is the engine's connection, over which the worker answers by itself: packets of
        two writers do not mix. Then it tells its link so. To `spawn` belong the program's own three
        instead, and the worker tells its link how it went.
        """
        worker, self._waiting = self._waiting, None
        if worker is not None:
            try:
                protocol.send(worker.channel, order, descriptors)
            except OSError:
                # Somebody ended it while it waited.
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
        """Be the worker. Never returns."""
        try:
            nsenter.close_all_but({channel.fileno()})
            order, descriptors = protocol.receive(channel)
            if order["op"] == "spawn":
                nsenter.run_command(order, channel, descriptors)
            else:
                self._reply(order, socket.socket(fileno=descriptors[0]))
                protocol.send(channel, {})
        finally:
            os._exit(0)

    def _reply(self, order: protocol.Record, engine: socket.socket) -> None:
        try:
            record, descriptors = self._act(order)
        except Exception as error:  # noqa: BLE001 -- the engine must hear of every cause.
            record, descriptors = nsenter.describe(error), ()
        protocol.send(engine, {"re": order["number"], **record}, descriptors)

    def _act(self, order: protocol.Record) -> Answer:
        acts: dict[str, Callable[[protocol.Record], Answer]] = {
            "boot": lambda order: ({"record": boot.boot(order, self._parents)}, ()),
            "network": _connect,
            "routes": _set_routes,
            "signal": _signal,
            "sockets": _make_sockets,
        }
        return acts[order["op"]](order)


def _connect(order: protocol.Record) -> Answer:
    return nsenter.connect_network(order["sandbox"], order["way_out"], order["routes"]), ()


def _set_routes(order: protocol.Record) -> Answer:
    nsenter.set_routes(order["sandbox"], order["present"], order["routes"])
    return {}, ()


def _signal(order: protocol.Record) -> Answer:
    nsenter.signal_all(order["sandbox"], order["signal"])
    return {}, ()


def _make_sockets(order: protocol.Record) -> Answer:
    made = nsenter.make_sockets(order["sandbox"], order["families"])
    return {"families": [int(one.family) for one in made]}, tuple(one.detach() for one in made)
