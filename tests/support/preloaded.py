"""Processes of the `sandkeeper` command that need not import it again.

Importing the keeper costs more than most tests. So each worker has one process that has imported
every command, and forks itself for each one that is asked for: a process of its own, with its own
arguments, environment, streams and session, which runs the shipped `main`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

REQUEST_BYTES_MAX = 200_000
"""A request with its environment is far smaller; what is longer fails in the sender."""
MODULES = ("sandkeeper.app", "sandkeeper.client.keeper", "sandkeeper.client.blocking")


class PreloadedProcess:
    """A command at work; it has the part of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: IO[bytes],
        stderr: IO[Any],
    ) -> None:
        self.args = arguments
        self.returncode: int | None = None
        self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {"arguments": list(arguments), "env": dict(env), "folder": str(Path.cwd())}
        with theirs, Path(os.devnull).open("rb") as nothing:
            streams = [stream.fileno() for stream in (nothing, stdout, stderr)]
            socket.send_fds(
                _start_template(), [json.dumps(request).encode()], [theirs.fileno(), *streams]
            )
        self.pid = int(self._status.recv(100))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                said = self._status.recv(100)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0) from None
            assert said, "the process that forks the others has ended"
            self._status.close()
            self.returncode = int(said)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


@cache
def _start_template() -> socket.socket:
    """Start the process that is forked; it ends with the worker, whose end of the socket it has."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    tests = str(Path(__file__).parents[1])
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.preloaded", str(theirs.fileno())],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        process.wait(60)

    atexit.register(end)
    return ours


class Template:
    """The process that is forked: it knows which fork reports to which socket."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)

    def run(self) -> None:
        """Fork for each request and report each end, until the worker has gone."""
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    message, descriptors, _, _ = socket.recv_fds(
                        self._requests, REQUEST_BYTES_MAX, 4
                    )
                    if not message:
                        return
                    self._fork(json.loads(message), *descriptors)
                else:
                    self._report(key.fd, *key.data)

    def _fork(self, request: dict[str, Any], status: int, *streams: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._requests.close()
            self._selector.close()
            os.close(status)
            _become(request, streams)
        for stream in streams:
            os.close(stream)
        reporting = socket.socket(fileno=status)
        reporting.send(str(pid).encode())
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, reporting))

    def _report(self, pidfd: int, pid: int, reporting: socket.socket) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with reporting, contextlib.suppress(OSError):
            reporting.send(str(code).encode())


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Run the command in this fork, and end with its exit code."""
    code: Any = 1
    try:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["folder"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["sandkeeper", *request["arguments"]]
        import_module("sandkeeper.cli.main").main()
        code = 0
    except SystemExit as ending:
        code = ending.code or 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:  # noqa: BLE001  As the interpreter does it.
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main() -> None:
    commands = import_module("sandkeeper.cli.main").COMMANDS
    for name in sorted({target.partition(":")[0] for target in commands.values()} | {*MODULES}):
        import_module(name)
    gc.collect()
    gc.freeze()
    Template(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
