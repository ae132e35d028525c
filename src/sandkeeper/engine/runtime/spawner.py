"""The spawner: a small process that starts everything inside sandboxes and holds what must not end.

One per data folder, in a session of its own, so that the engine may crash, be killed or be replaced
while sandboxes and their processes go on. It holds the near ends of every pipe and terminal, is the
parent of every process it starts, and hands all of it to the engine that connects. It knows no
rules: it does what it is ordered, each order in a worker of its own, so none waits for another.

It is single-threaded and imports little, because it forks for every order. It ends by itself when
no sandbox lives and no engine has been there for a while.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import resource
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandkeeper.engine.runtime import (
    booting,
    cgroups,
    joining,
    kernel,
    orphans,
    processes,
    veth,
    wire,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PROTOCOL = 2
"""Raised with every change of an order or an answer. An engine that speaks another one takes what
`hello` gives, which stays as it is for good, and replaces the spawner."""
SOCKET_NAME = "spawner.sock"
_LOCK_NAME = "spawner.lock"
_IDLE_S = 10.0
_GONE_S = 1.0
_PIPE_BYTES = 1024 * 1024
_STRAY_CODES_MAX = 4096
_ENDED_MAX = 1024


class _Child:
    """A started process and what is held for it."""

    def __init__(self, number: int, order: dict[str, Any]) -> None:
        self.number = number
        self.sandbox_id: str = order["sandbox"]["id"]
        self.label: str = order["label"]
        self.has_terminal = order["size"] is not None
        self.pid = 0
        self.inner = 0
        self.code: int | None = None
        self.held: dict[str, int] = {}

    def describe(self) -> dict[str, Any]:
        return {
            "child": self.number,
            "sandbox_id": self.sandbox_id,
            "label": self.label,
            "pid": self.pid,
            "started": processes.read_start(self.pid) if self.code is None else 0,
            "inner": self.inner,
            "code": self.code,
            "terminal": self.has_terminal,
            "held": list(self.held),
        }

    def release(self, name: str | None = None) -> None:
        for key in [name] if name else list(self.held):
            fd = self.held.pop(key, None)
            if fd is not None:
                os.close(fd)


class Spawner:
    """Everything the process keeps, and its loop."""

    def __init__(self, data: Path) -> None:
        self._run = data / "run"
        self._prefix = cgroups.name_prefix(data)
        self._folder = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._engines: set[socket.socket] = set()
        self._children: dict[int, _Child] = {}
        self._stray_codes: dict[int, int] = {}
        # An engine may still know processes of an earlier spawner by numbers of that one.
        self._numbers = time.monotonic_ns()
        self._lonely_since = time.monotonic()
        self._gone_since: float | None = None
        self._machine = processes.read_machine()
        address = f"/proc/self/fd/{self._folder}/{SOCKET_NAME}"
        Path(address).unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        Path(address).chmod(0o600)
        self._listener.listen(16)
        self._listener.setblocking(False)
        self._woken, wake = socket.socketpair()
        self._woken.setblocking(False)
        wake.setblocking(False)
        self._wake = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Do orders until nobody needs it any more."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, self._reap)
        while True:
            for key, _events in self._selector.select(timeout=1.0):
                key.data()
            if self._is_unneeded():
                Path(f"/proc/self/fd/{self._folder}/{SOCKET_NAME}").unlink(missing_ok=True)
                return

    def _is_unneeded(self) -> bool:
        if self._is_folder_gone():
            # Somebody deleted the data, so no engine can do anything with these any more.
            self._end_everything()
            return True
        if self._engines or self._has_running():
            self._lonely_since = time.monotonic()
            return False
        if time.monotonic() - self._lonely_since < _IDLE_S:
            return False
        if any(
            processes.is_living(record, self._machine)
            for record in processes.read_records(self._run)
        ):
            self._lonely_since = time.monotonic()
            return False
        return True

    def _is_folder_gone(self) -> bool:
        """Whether the data has been deleted for a moment; a folder that cannot be read has not."""
        try:
            os.stat("run", dir_fd=self._folder)
        except FileNotFoundError:
            self._gone_since = self._gone_since or time.monotonic()
            return time.monotonic() - self._gone_since >= _GONE_S
        except OSError:
            return False
        self._gone_since = None
        return False

    def _has_running(self) -> bool:
        return any(child.code is None for child in self._children.values())

    def _end_everything(self) -> None:
        parents = cgroups.find_parents()
        groups = list(cgroups.list_groups(parents, self._prefix).values()) if parents else []
        pids = set(processes.list_children(os.getpid()))
        if not self._run.exists():
            # Sandboxes of an earlier spawner are known by their groups. Had somebody made a new
            # folder of this name, the groups might be those of its own sandboxes.
            pids |= {pid for group in groups for pid in cgroups.list_processes(group)}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for group in groups:
            if pids & set(cgroups.list_processes(group)):
                # A frozen process of version 1 takes note of its end only when it thaws.
                with contextlib.suppress(OSError):
                    cgroups.set_frozen(group, frozen=False)
        # A first process ends only after all others inside were reaped, in whichever order.
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        for group in groups:
            if not set(cgroups.list_processes(group)) - pids:
                with contextlib.suppress(OSError):
                    cgroups.remove(group)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            engine, _address = self._listener.accept()
            engine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * 1024 * 1024)
            self._engines.add(engine)
            self._selector.register(engine, selectors.EVENT_READ, lambda: self._hear(engine))

    def _hear(self, engine: socket.socket) -> None:
        try:
            order, descriptors = wire.receive(engine)
        except (ConnectionError, ValueError):
            self._drop(engine)
            return
        for fd in descriptors:
            os.close(fd)
        acts: dict[str, Callable[[socket.socket, dict[str, Any]], None]] = {
            "hello": self._hello,
            "boot": self._boot,
            "spawn": self._spawn,
            "sockets": self._sockets,
            "signal": self._signal,
            "network": self._network,
            "routes": self._routes,
            "close_stdin": self._close_stdin,
            "forget": self._forget,
        }
        try:
            acts[order["op"]](engine, order)
        except Exception as error:  # noqa: BLE001 -- one bad order must not end the others.
            self._answer(engine, order, joining.describe(error))

    def _drop(self, engine: socket.socket) -> None:
        self._selector.unregister(engine)
        self._engines.discard(engine)
        engine.close()

    def _answer(
        self,
        engine: socket.socket,
        order: dict[str, Any],
        record: dict[str, Any],
        descriptors: tuple[int, ...] = (),
    ) -> None:
        with contextlib.suppress(OSError):
            wire.send(engine, {"re": order["number"], **record}, descriptors)

    def _tell(self, record: dict[str, Any]) -> None:
        for engine in self._engines:
            with contextlib.suppress(OSError):
                wire.send(engine, record)

    # Orders about processes

    def _hello(self, engine: socket.socket, order: dict[str, Any]) -> None:
        # There is one engine; what a dead one still had in the queue is not done any more.
        for other in self._engines - {engine}:
            self._drop(other)
        for child in self._children.values():
            with contextlib.suppress(OSError):
                wire.send(
                    engine, {"event": "child", **child.describe()}, tuple(child.held.values())
                )
        self._answer(engine, order, {"pid": os.getpid(), "protocol": PROTOCOL})

    def _spawn(self, engine: socket.socket, order: dict[str, Any]) -> None:
        door = joining.Door(order["sandbox"])
        self._numbers += 1
        child = _Child(self._numbers, order)
        far: tuple[int, int, int] | None = None
        if not child.has_terminal:
            far = _make_pipes(child, with_stdin=order["stdin"])
        near, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with door.aim_forks():
                pid = os.fork()
                if pid == 0:
                    joining.run_command(order, door, link, far)
        except OSError:
            child.release()
            near.close()
            raise
        finally:
            door.close()
            _close(link.detach(), *(far or ()))
        child.pid = pid if door.is_range else 0
        near.setblocking(False)
        failure: dict[str, Any] = {}

        def hear() -> None:
            try:
                record, descriptors = wire.receive(near)
            except BlockingIOError:
                return
            except ConnectionError:
                self._selector.unregister(near)
                near.close()
                self._settle(engine, order, child, failure)
                return
            failure.update(record if "error" in record else {})
            child.pid = record.get("pid", child.pid)
            child.inner = record.get("inner", child.inner)
            if descriptors:
                os.set_blocking(descriptors[0], False)
                child.held["stdout"] = descriptors[0]

        self._selector.register(near, selectors.EVENT_READ, hear)

    def _settle(
        self,
        engine: socket.socket,
        order: dict[str, Any],
        child: _Child,
        failure: dict[str, Any],
    ) -> None:
        """Answer an order to spawn once its link has ended."""
        if failure or not child.pid or not child.inner:
            child.release()
            failure = failure or {"error": "gone", "message": "it ended before it began"}
            self._answer(engine, order, failure)
            return
        child.code = self._stray_codes.pop(child.pid, None)
        self._children[child.number] = child
        self._answer(engine, order, child.describe(), tuple(child.held.values()))
        self._bound_ended()

    def _close_stdin(self, _engine: socket.socket, order: dict[str, Any]) -> None:
        child = self._children.get(order["child"])
        if child and not child.has_terminal:
            child.release("stdin")

    def _forget(self, _engine: socket.socket, order: dict[str, Any]) -> None:
        child = self._children.pop(order["child"], None)
        if child:
            child.release()

    def _bound_ended(self) -> None:
        """Let the oldest ended processes go when nobody ever asks for them."""
        ended = [child for child in self._children.values() if child.code is not None]
        for child in ended[: max(0, len(ended) - _ENDED_MAX)]:
            self._children.pop(child.number).release()

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        by_pid = {child.pid: child for child in self._children.values() if child.code is None}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            child = by_pid.get(pid)
            if child is None:
                self._stray_codes[pid] = code
                while len(self._stray_codes) > _STRAY_CODES_MAX:
                    self._stray_codes.pop(next(iter(self._stray_codes)))
                continue
            child.code = code
            self._tell({"event": "exit", "child": child.number, "code": code})
            self._bound_ended()

    # Orders done by a worker that answers for itself

    def _boot(self, engine: socket.socket, order: dict[str, Any]) -> None:
        self._work(engine, order, lambda: ({"record": booting.boot(order)}, ()))

    def _sockets(self, engine: socket.socket, order: dict[str, Any]) -> None:
        def act() -> tuple[dict[str, Any], tuple[int, ...]]:
            made = joining.make_sockets(order["sandbox"], order["families"])
            families = [int(one.family) for one in made]
            return {"families": families}, tuple(one.detach() for one in made)

        self._work(engine, order, act)

    def _signal(self, engine: socket.socket, order: dict[str, Any]) -> None:
        def act() -> tuple[dict[str, Any], tuple[int, ...]]:
            joining.signal_everyone(order["sandbox"], order["signal"])
            return {}, ()

        self._work(engine, order, act)

    def _network(self, engine: socket.socket, order: dict[str, Any]) -> None:
        def act() -> tuple[dict[str, Any], tuple[int, ...]]:
            return joining.connect_network(order["sandbox"], order["way_out"], order["routes"]), ()

        self._work(engine, order, act)

    def _routes(self, engine: socket.socket, order: dict[str, Any]) -> None:
        def act() -> tuple[dict[str, Any], tuple[int, ...]]:
            joining.set_routes(order["sandbox"], order["present"], order["routes"])
            return {}, ()

        self._work(engine, order, act)

    def _work(
        self,
        engine: socket.socket,
        order: dict[str, Any],
        act: Callable[[], tuple[dict[str, Any], tuple[int, ...]]],
    ) -> None:
        """Fork a worker; it answers the engine itself, since packets of two writers do not mix."""
        if os.fork():
            return
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            joining.close_all_but({engine.fileno()})
            try:
                record, descriptors = act()
            except Exception as error:  # noqa: BLE001 -- the engine must hear of every cause.
                record, descriptors = joining.describe(error), ()
            self._answer(engine, order, record, descriptors)
        finally:
            os._exit(0)


def _make_pipes(child: _Child, *, with_stdin: bool) -> tuple[int, int, int]:
    """Make a process's pipes: the near ends are held, the far ends given back in stdio's order."""
    out, out_far = os.pipe()
    err, err_far = os.pipe()
    child.held = {"stdout": out, "stderr": err}
    if with_stdin:
        in_far, child.held["stdin"] = os.pipe()
    else:
        in_far = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for fd in (out_far, err_far, in_far):
        # A program that opens /dev/stdout anew does so as the sandbox's user, not as ours.
        with contextlib.suppress(OSError):
            if with_stdin or fd != in_far:
                os.fchmod(fd, 0o666)
    for fd in (out, err):
        # More room while no engine reads; refused beyond the user's share, which does no harm.
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    for fd in child.held.values():
        os.set_blocking(fd, False)
    return in_far, out_far, err_far


def _close(*descriptors: int) -> None:
    for fd in descriptors:
        os.close(fd)


def main(data: Path) -> None:
    """Serve one data folder; gives up if another spawner already does."""
    lock = os.open(data / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    kernel.become_subreaper()
    os.chdir("/")
    spawner = Spawner(data)
    gc.collect()
    gc.freeze()
    orphans.note_folder(data)
    spawner.serve()
    orphans.forget_folder(data)
    veth.release()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
