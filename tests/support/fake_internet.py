"""The internet as a process in a network of its own, with one line to the machine under test.

It answers TCP on port 8000 with the address it was asked from, and every name with its own address.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from types import TracebackType
from typing import Self

from support.eventually import eventually_sync

LINE, NETWORK = "wan0", "192.88.99"
HOST, ADDRESS, NAMESERVER = (f"{NETWORK}.{last}" for last in (1, 2, 53))
"""The machine's end of the line, and where the internet and its name server are."""
PORT = 8000

_SERVE = """
import socket, sys, threading
own, nameserver, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
def answer_names():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((nameserver, 53))
    while True:
        asked, who = sock.recvfrom(512)
        end = asked.index(b"\\0", 12) + 5
        answer = b""
        if asked[end - 4 : end - 2] == b"\\0\\1":
            answer = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\0\\0\\4" + socket.inet_aton(own)
        counts = bytes([0, 1, 0, 1 if answer else 0, 0, 0, 0, 0])
        sock.sendto(asked[:2] + b"\\x81\\x80" + counts + asked[12:end] + answer, who)
sys.stdin.readline()
threading.Thread(target=answer_names, daemon=True).start()
server = socket.create_server(("0.0.0.0", port))
print("ready", flush=True)
while True:
    connection, (address, _port) = server.accept()
    connection.sendall(address.encode())
    connection.close()
"""


class Outside:
    """Started on entry, gone with its line on exit."""

    line, network, is_default = LINE, NETWORK, True

    @property
    def host(self) -> str:
        return f"{self.network}.1"

    @property
    def address(self) -> str:
        return f"{self.network}.2"

    @property
    def nameserver(self) -> str:
        return f"{self.network}.53"

    def __enter__(self) -> Self:
        places = (self.address, self.nameserver, str(PORT))
        self._process = subprocess.Popen(
            ["unshare", "--net", sys.executable, "-c", _SERVE, *places],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lay_line()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        with suppress(subprocess.CalledProcessError):
            run("ip", "link", "delete", self.line)

    def run(self, *line: str) -> str:
        """Run a command out there."""
        return run("nsenter", "-t", str(self._process.pid), "-n", *line)

    def start(self, *line: str) -> subprocess.Popen[str]:
        """Start a command out there, and return once it says so."""
        entering = ["nsenter", "-t", str(self._process.pid), "-n", *line]
        process = subprocess.Popen(entering, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def reaches(self, address: str, port: int) -> bool:
        program = f"import socket; socket.create_connection(('{address}', {port}), 2)"
        try:
            self.run(sys.executable, "-c", program)
        except subprocess.CalledProcessError:
            return False
        return True

    def _lay_line(self) -> None:
        own, pid = _read_network("self"), str(self._process.pid)
        eventually_sync(lambda: _read_network(pid) != own)
        run("ip", "link", "add", self.line, "type", "veth", "peer", "name", "far0", "netns", pid)
        run("ip", "addr", "add", f"{self.host}/24", "dev", self.line)
        run("ip", "link", "set", self.line, "up")
        for address in (self.address, self.nameserver):
            self.run("ip", "addr", "add", f"{address}/24", "dev", "far0")
        self.run("ip", "link", "set", "far0", "up")
        self.run("ip", "route", "add", "default", "via", self.host)
        if self.is_default:
            run("ip", "route", "replace", "default", "via", self.address)


def run(*line: str) -> str:
    """Run a command on the machine under test; return its output."""
    return subprocess.run(line, check=True, capture_output=True, text=True, timeout=60).stdout


def _read_network(pid: str) -> str:
    return run("readlink", f"/proc/{pid}/ns/net")
