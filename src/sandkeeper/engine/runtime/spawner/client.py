"""The engine's client of the spawner.

It finds the spawner of a data folder or starts one, matches answers to orders, and passes on the
spawner's events. When the spawner dies, every sent order fails with SpawnerLostError; the next
order starts a new spawner.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandkeeper.common.private_files import open_private
from sandkeeper.engine.runtime.contract import RuntimeFaultError
from sandkeeper.engine.runtime.spawner import protocol
from sandkeeper.engine.runtime.spawner.spawner import PROTOCOL, SOCKET_NAME

log = logging.getLogger(__name__)

_START_WAIT_S = 20.0
_ANSWER_WAIT_S = 90.0
_HELLO_ATTEMPTS = 5
_ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_LAUNCH = (
    "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]);"
    "from sandkeeper.engine.runtime.spawner.spawner import main; main(Path(sys.argv[2]))"
)

SpawnerReply = tuple[dict[str, Any], list[int]]


class SpawnerLostError(RuntimeFaultError):
    """The spawner ended during an order; whether the order was carried out is not known."""


class _NotSentError(SpawnerLostError):
    """The spawner ended before the order could be sent, so it was not carried out."""


class SpawnerClient:
    """One connection to the spawner of one data folder, made when needed."""

    def __init__(
        self,
        data: Path,
        on_event: Callable[[dict[str, Any], list[int]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._data = data
        self._on_event = on_event
        self._on_lost = on_lost
        self._socket: socket.socket | None = None
        self._waiting: dict[int, asyncio.Future[SpawnerReply]] = {}
        self._numbers = itertools.count(1)
        self._connecting = asyncio.Lock()
        self._copy_failed = False
        self._process: subprocess.Popen[bytes] | None = None

    async def connect(self) -> None:
        """Connect to the spawner, starting one if needed; no-op when connected."""
        async with self._connecting:
            if self._socket is not None:
                return
            for attempt in range(_HELLO_ATTEMPTS):
                self._socket = await self._reach()
                asyncio.get_running_loop().add_reader(self._socket, self._receive_loop)
                try:
                    answer, _descriptors = await self._ask(self._socket, {"op": "hello"})
                except SpawnerLostError:
                    # It was ending, or dead with a worker still holding its address for a moment.
                    self._disconnect()
                    if attempt == _HELLO_ATTEMPTS - 1:
                        raise
                else:
                    if answer.get("protocol") == PROTOCOL:
                        return
                    self._replace(answer)
            raise RuntimeFaultError("a spawner of another version is started again and again")

    def _replace(self, answer: dict[str, Any]) -> None:
        """Kill the spawner of another engine version. Its sandboxes keep running."""
        log.warning(
            "the spawner %d speaks protocol %s and this engine %d, so it is replaced; sandboxes and"
            " their commands keep running, but exit codes of running commands are lost",
            answer["pid"],
            answer.get("protocol", "0"),
            PROTOCOL,
        )
        with contextlib.suppress(ProcessLookupError):
            os.kill(answer["pid"], signal.SIGKILL)
        self._disconnect()
        self._on_lost()

    async def call(self, record: dict[str, Any]) -> SpawnerReply:
        """Send an order and return the answer; the caller owns its descriptors.

        An order that could not be sent goes to the next spawner. One that was sent is not repeated.
        """
        try:
            return await self._ask(await self._get_connected(), record)
        except _NotSentError:
            # The event loop has not seen the end of the connection yet. Read what is left in it,
            # exit codes for example, and notice the end.
            self._receive_loop()
            return await self._ask(await self._get_connected(), record)

    async def _get_connected(self) -> socket.socket:
        if self._socket is None:
            await self.connect()
        if self._socket is None:
            raise SpawnerLostError("the spawner ended right after the connection was made")
        return self._socket

    def notify(self, record: dict[str, Any]) -> None:
        """Send an order without an answer; if the spawner is gone, the order is not needed."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                protocol.send(self._socket, {"number": 0, **record})

    async def close(self) -> None:
        """Disconnect. The spawner keeps running as long as sandboxes live."""
        self._disconnect()
        if self._process is not None:
            self._process.poll()

    async def _ask(self, sock: socket.socket, record: dict[str, Any]) -> SpawnerReply:
        number = next(self._numbers)
        future: asyncio.Future[SpawnerReply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await self._send(sock, {"number": number, **record})
            return await asyncio.wait_for(future, _ANSWER_WAIT_S)
        except TimeoutError:
            raise RuntimeFaultError(
                f"the spawner did not answer '{record['op']}' in {_ANSWER_WAIT_S:.0f} s"
            ) from None
        finally:
            del self._waiting[number]

    async def _send(self, sock: socket.socket, record: dict[str, Any]) -> None:
        while True:
            try:
                protocol.send(sock, record)
            except BlockingIOError:
                # The spawner is busy with many orders; it reads on within milliseconds.
                await asyncio.sleep(0.002)
            except OSError as error:
                raise _NotSentError(f"the spawner is gone: {error}") from None
            else:
                return

    def _receive_loop(self) -> None:
        sock = self._socket
        while sock is not None and sock is self._socket:
            try:
                record, descriptors = protocol.receive(sock)
            except BlockingIOError:
                return
            except OSError:
                self._disconnect()
                self._on_lost()
                return
            future = self._waiting.get(record.get("re", 0))
            if "event" in record:
                self._on_event(record, descriptors)
            elif future is not None and not future.done():
                future.set_result((record, descriptors))
            else:
                for fd in descriptors:
                    os.close(fd)

    def _disconnect(self) -> None:
        sock, self._socket = self._socket, None
        if sock is None:
            return
        asyncio.get_running_loop().remove_reader(sock)
        sock.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(SpawnerLostError("the spawner ended before it answered"))

    async def _reach(self) -> socket.socket:
        deadline = asyncio.get_running_loop().time() + _START_WAIT_S
        launched = None
        while True:
            sock = self._try_connect()
            if sock is not None:
                return sock
            if launched is not None and (launched.poll() or 0) > 0:
                # A Python that finds its libraries relative to itself cannot run from a copy.
                self._copy_failed = True
            if launched is None or launched.poll() is not None:
                # One that ended found another spawner at work, perhaps one about to end.
                launched = self._launch()
            if asyncio.get_running_loop().time() > deadline:
                log = self._data / "spawner.log"
                raise RuntimeFaultError(f"the spawner did not start; see {log}")
            await asyncio.sleep(0.01)

    def _try_connect(self) -> socket.socket | None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The way over a descriptor keeps long folder names within the address's 108 bytes.
        try:
            folder = os.open(self._data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            sock.close()
            raise RuntimeFaultError(f"the data folder cannot be opened: {error}") from error
        try:
            sock.connect(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
        except OSError:
            sock.close()
            return None
        finally:
            os.close(folder)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * 1024 * 1024)
        return sock

    def _launch(self) -> subprocess.Popen[bytes]:
        """Start a spawner from a sealed copy of this Python.

        For a moment before it executes a program, a process that enters a sandbox still runs what
        the spawner runs, and the program may hold on to that file. A copy that cannot be written
        keeps a sandbox of the same user from changing the Python on the host.
        """
        package_root = Path(__file__).resolve().parents[4]
        program = None if self._copy_failed or os.geteuid() == 0 else _copy_python()
        with open_private(self._data / "spawner.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCH, str(package_root), str(self._data)],
                executable=sys.executable if program is None else f"/proc/self/fd/{program}",
                pass_fds=() if program is None else (program,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
            )
        if program is not None:
            os.close(program)
        return self._process


def _copy_python() -> int:
    """Return a descriptor of a sealed copy of the running Python's program file."""
    program = Path("/proc/self/exe").read_bytes()
    copy = os.memfd_create("python", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(copy, "wb", closefd=False) as file:
        file.write(program)
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _ALL_SEALS)
    return copy
