"""The spawner: a small process that owns the child processes, so they survive an engine restart.

There is one per data folder, in a session of its own: the engine may crash, be killed or be
replaced while sandboxes and their processes keep running. It holds the near ends of every pipe and
terminal, is the parent of every process it starts, and hands all of that to the engine that
connects. It has no policy: it carries out orders, each in a worker process, so none waits for
another.

It is single-threaded and imports little, because it forks for every order and each fork costs what
is loaded. It exits when no sandbox lives and no engine has been connected for a while.
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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandkeeper.engine.runtime.bubblewrap import nsenter
from sandkeeper.engine.runtime.egress import veth
from sandkeeper.engine.runtime.linux import cgroups, process_records, syscalls
from sandkeeper.engine.runtime.spawner import orphans, protocol
from sandkeeper.engine.runtime.spawner.workers import Worker, WorkerPool

PROTOCOL = 12
"""Raised with every change of an order or an answer. An engine with another version reads the
answer to `hello`, whose format never changes, and replaces the spawner."""
SOCKET_NAME = "spawner.sock"
_LOCK_NAME = "spawner.lock"
_IDLE_S = 10.0
_GONE_S = 1.0
_PIPE_BYTES = 1024 * 1024
_ENDED_MAX = 1024
# Checking every child takes longer the more sandboxes live, so it is not done for each end.
_SWEEP_S = 1.0


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
        self.process: int | None = None
        """A descriptor of the process, followed while it runs."""

    def describe(self) -> dict[str, Any]:
        return {
            "child": self.number,
            "sandbox_id": self.sandbox_id,
            "label": self.label,
            "pid": self.pid,
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
    """The state of the process, and its loop."""

    def __init__(self, data: Path) -> None:
        self._run = data / "run"
        self._prefix = cgroups.name_prefix(data)
        self._parents = cgroups.find_parents()
        self._folder = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._engines: set[socket.socket] = set()
        self._children: dict[int, _Child] = {}
        # An engine may still know processes of an earlier spawner by numbers of that one.
        self._numbers = time.monotonic_ns()
        self._idle_since = time.monotonic()
        self._gone_since: float | None = None
        self._machine = process_records.read_machine()
        address = f"/proc/self/fd/{self._folder}/{SOCKET_NAME}"
        Path(address).unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        Path(address).chmod(0o600)
        self._listener.listen(16)
        self._listener.setblocking(False)
        self._workers = WorkerPool(self._parents)
        self._at_work = 0
        self._wants_worker = True
        self._swept_at = time.monotonic()

    def serve(self) -> None:
        """Carry out orders until the spawner is no longer needed."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        while True:
            is_time_to_prepare = self._wants_worker and not self._at_work
            found = self._selector.select(timeout=0.0 if is_time_to_prepare else 1.0)
            for key, _events in found:
                key.data()
            if is_time_to_prepare and not found:
                self._prepare()
            if time.monotonic() - self._swept_at >= _SWEEP_S:
                self._sweep()
            if self._is_unneeded():
                Path(f"/proc/self/fd/{self._folder}/{SOCKET_NAME}").unlink(missing_ok=True)
                return

    def _is_unneeded(self) -> bool:
        if self._is_folder_gone():
            # The data was deleted, so no engine can use these sandboxes any more.
            self._end_everything()
            return True
        if self._engines or self._at_work or self._has_running():
            self._idle_since = time.monotonic()
            return False
        if time.monotonic() - self._idle_since < _IDLE_S:
            return False
        if any(
            process_records.is_living(record, self._machine)
            for record in process_records.read_records(self._run)
        ):
            self._idle_since = time.monotonic()
            return False
        return True

    def _is_folder_gone(self) -> bool:
        """Return whether the data was deleted; False if it merely cannot be read."""
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
        parents = self._parents
        groups = list(cgroups.list_groups(parents, self._prefix).values()) if parents else []
        pids = set(process_records.list_children(os.getpid()))
        if not self._run.exists():
            # Sandboxes of an earlier spawner are known by their groups. If a new folder of
            # this name exists, the groups might belong to its sandboxes.
            pids |= {pid for group in groups for pid in cgroups.list_processes(group)}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for group in groups:
            if pids & set(cgroups.list_processes(group)):
                # With cgroups version 1, a frozen process ends only after it thaws.
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
            self._selector.register(engine, selectors.EVENT_READ, lambda: self._on_request(engine))

    def _on_request(self, engine: socket.socket) -> None:
        try:
            order, descriptors = protocol.receive(engine)
        except (ConnectionError, ValueError):
            self._drop(engine)
            return
        for fd in descriptors:
            os.close(fd)
        handlers: dict[str, Callable[[socket.socket, dict[str, Any]], None]] = {
            "hello": self._hello,
            "spawn": self._spawn,
            "boot": self._delegate,
            "sockets": self._delegate,
            "intercept": self._delegate,
            "signal": self._delegate,
            "kill_session": self._delegate,
            "limit_files": self._delegate,
            "network": self._delegate,
            "routes": self._delegate,
            "close_stdin": self._close_stdin,
            "forget": self._forget,
        }
        try:
            handlers[order["op"]](engine, order)
        except Exception as error:  # noqa: BLE001 -- one bad order must not end the others.
            self._reply(engine, order, nsenter.describe(error))

    def _drop(self, engine: socket.socket) -> None:
        self._selector.unregister(engine)
        self._engines.discard(engine)
        engine.close()

    def _reply(
        self,
        engine: socket.socket,
        order: dict[str, Any],
        record: dict[str, Any],
        descriptors: tuple[int, ...] = (),
    ) -> None:
        with contextlib.suppress(OSError):
            protocol.send(engine, {"re": order["number"], **record}, descriptors)

    def _notify(self, record: dict[str, Any]) -> None:
        for engine in self._engines:
            with contextlib.suppress(OSError):
                protocol.send(engine, record)

    # Orders about processes

    def _hello(self, engine: socket.socket, order: dict[str, Any]) -> None:
        # There is one engine; what a dead one still had in the queue is not done any more.
        for other in self._engines - {engine}:
            self._drop(other)
        for child in self._children.values():
            with contextlib.suppress(OSError):
                protocol.send(
                    engine, {"event": "child", **child.describe()}, tuple(child.held.values())
                )
        self._reply(engine, order, {"pid": os.getpid(), "protocol": PROTOCOL})

    def _delegate(self, engine: socket.socket, order: dict[str, Any]) -> None:
        """Have a worker carry out and answer an order; answer for it if it is killed."""
        is_answered = False

        def on_record(_record: dict[str, Any], _descriptors: list[int]) -> None:
            nonlocal is_answered
            is_answered = True

        def end() -> None:
            if not is_answered:
                killed = {"error": "fault", "message": f"the worker for '{order['op']}' was killed"}
                self._reply(engine, order, killed)

        self._listen(self._workers.submit(order, (engine.fileno(),)), on_record, end)

    def _spawn(self, engine: socket.socket, order: dict[str, Any]) -> None:
        self._numbers += 1
        child = _Child(self._numbers, order)
        far = () if child.has_terminal else _make_pipes(child, with_stdin=order["stdin"])
        try:
            worker = self._workers.submit(order, far)
        except OSError:
            child.release()
            raise
        finally:
            _close(*far)
        is_answered = False

        def on_record(record: dict[str, Any], descriptors: list[int]) -> None:
            nonlocal is_answered
            is_answered = True
            self._register_child(engine, order, child, record, descriptors)
            # The worker stays the program's parent until this side closes the channel.
            worker.channel.shutdown(socket.SHUT_WR)

        def end() -> None:
            if not is_answered:
                self._register_child(engine, order, child, {}, [])
            if child.number in self._children and child.code is None:
                self._follow(child)

        self._listen(worker, on_record, end)

    def _register_child(
        self,
        engine: socket.socket,
        order: dict[str, Any],
        child: _Child,
        record: dict[str, Any],
        descriptors: list[int],
    ) -> None:
        """Answer a spawn order with its worker's report."""
        child.pid = record.get("pid", 0)
        child.inner = record.get("inner") or process_records.read_inner(child.pid)
        if descriptors:
            os.set_blocking(descriptors[0], False)
            child.held["stdout"] = descriptors[0]
        if child.inner:
            self._children[child.number] = child
            self._reply(engine, order, child.describe(), tuple(child.held.values()))
        else:
            child.release()
            gone = {"error": "gone", "message": "the process ended before it could be registered"}
            self._reply(engine, order, record if "error" in record else gone)

    def _close_stdin(self, _engine: socket.socket, order: dict[str, Any]) -> None:
        child = self._children.get(order["child"])
        if child and not child.has_terminal:
            child.release("stdin")

    def _forget(self, _engine: socket.socket, order: dict[str, Any]) -> None:
        child = self._children.pop(order["child"], None)
        if child:
            self._unfollow(child)
            child.release()

    def _bound_ended(self) -> None:
        """Forget the oldest ended processes that no engine asked for."""
        ended = [child for child in self._children.values() if child.code is not None]
        for child in ended[: max(0, len(ended) - _ENDED_MAX)]:
            self._children.pop(child.number).release()

    # Workers and the processes that end

    def _prepare(self) -> None:
        """Fork a worker ahead. If that fails now, the next order forks its own."""
        self._wants_worker = False
        with contextlib.suppress(OSError):
            self._workers.prepare()

    def _listen(
        self,
        worker: Worker,
        on_record: Callable[[dict[str, Any], list[int]], None],
        end: Callable[[], None],
    ) -> None:
        """Pass a worker's records on until it has ended."""
        worker.channel.setblocking(False)
        self._at_work += 1

        def listen() -> None:
            try:
                record, descriptors = protocol.receive(worker.channel)
            except BlockingIOError:
                return
            except ConnectionError:
                self._selector.unregister(worker.channel)
                worker.reap()
                self._at_work -= 1
                self._wants_worker = True
                end()
            else:
                on_record(record, descriptors)

        self._selector.register(worker.channel, selectors.EVENT_READ, listen)

    def _follow(self, child: _Child) -> None:
        """Watch a child by pidfd. Where that is not possible, the sweep sees its end."""
        with contextlib.suppress(OSError):
            process = os.pidfd_open(child.pid)
            self._selector.register(
                process,
                selectors.EVENT_READ,
                lambda: self._note_end(child, os.waitpid(child.pid, 0)[1]),
            )
            child.process = process

    def _unfollow(self, child: _Child) -> None:
        process, child.process = child.process, None
        if process is not None:
            self._selector.unregister(process)
            os.close(process)

    def _note_end(self, child: _Child, status: int) -> None:
        self._unfollow(child)
        child.code = os.waitstatus_to_exitcode(status)
        self._notify({"event": "exit", "child": child.number, "code": child.code})
        self._bound_ended()

    def _sweep(self) -> None:
        """Reap everything else that has ended: first processes, helpers, orphans."""
        self._swept_at = time.monotonic()
        by_pid = {child.pid: child for child in self._children.values() if child.code is None}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in by_pid:
                self._note_end(by_pid[pid], status)


def _make_pipes(child: _Child, *, with_stdin: bool) -> tuple[int, int, int]:
    """Make a process's pipes: hold the near ends, return the far ends in stdio's order."""
    out, out_far = os.pipe()
    err, err_far = os.pipe()
    child.held = {"stdout": out, "stderr": err}
    if with_stdin:
        in_far, child.held["stdin"] = os.pipe()
    else:
        in_far = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for fd in (out_far, err_far, in_far):
        # A program that reopens /dev/stdout does so as the sandbox's user, not as ours.
        with contextlib.suppress(OSError):
            if with_stdin or fd != in_far:
                os.fchmod(fd, 0o666)
    for fd in (out, err):
        # A larger buffer while no engine reads; the kernel may refuse it, which is harmless.
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    for fd in child.held.values():
        os.set_blocking(fd, False)
    return in_far, out_far, err_far


def _close(*descriptors: int) -> None:
    for fd in descriptors:
        os.close(fd)


def main(data: Path) -> None:
    """Serve one data folder; return if another spawner already does."""
    lock = os.open(data / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    syscalls.become_subreaper()
    if os.geteuid() == 0:
        syscalls.limit_capabilities(syscalls.SPAWNER_CAPABILITIES)
    os.chdir("/")
    spawner = Spawner(data)
    gc.collect()
    gc.freeze()
    orphans.note_folder(data)
    spawner.serve()
    orphans.forget_folder(data)
    veth.release()
