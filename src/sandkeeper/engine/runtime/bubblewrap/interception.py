"""Leads a sandbox's connections to some host names to the engine, which it then trusts.

In the sandbox's `/etc/hosts`, those names stand for a loopback address of its own network. The
sockets that listen there are made in that network and handed to the engine, so nothing of the host
becomes reachable. The files are shown over those of the disk, which stay as they are. A sandbox's
root may change all of it and would only lose what the engine adds to its requests.

Used by the spawner's workers, so this module imports next to nothing, and nothing once inside.
"""

from __future__ import annotations

import contextlib
import os
import socket

from sandkeeper.engine.runtime.bubblewrap.nsenter import NamespaceHandles, Record
from sandkeeper.engine.runtime.linux import syscalls

ADDRESS = "127.105.0.1"
PORTS = (80, 443)
AUTHORITY = "/run/sandkeeper/authority.pem"
BUNDLE = "/run/sandkeeper/bundle.pem"
"""What the system of the sandbox trusts, and the engine's authority."""
_FOLDER = "/run/sandkeeper"
_HOSTS = "/etc/hosts"
_SYSTEM_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_MARK = b" # by network.rules\n"
_FILE_BYTES_MAX = 4 << 20
_BACKLOG = 128


def intercept(record: Record, names: list[str], authority: str) -> list[socket.socket]:
    """Return a listening socket for each of the ports; none without names. Ends as the joiner."""
    namespaces = NamespaceHandles(record)
    os.umask(0o022)
    namespaces.join(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET)
    with contextlib.suppress(FileExistsError):
        os.mkdir(_FOLDER, 0o755)  # noqa: PTH102 -- nothing is imported inside.
    _trust(authority.encode())
    _name(names)
    return [_listen(port) for port in PORTS] if names else []


def _trust(authority: bytes) -> None:
    trusted = _read(_SYSTEM_BUNDLE)
    if authority not in trusted:
        trusted += authority
    _write(AUTHORITY, authority)
    _write(BUNDLE, trusted)
    if os.access(_SYSTEM_BUNDLE, os.F_OK):
        _show(BUNDLE, _SYSTEM_BUNDLE)


def _name(names: list[str]) -> None:
    lines = [line for line in _read(_HOSTS).splitlines(keepends=True) if not line.endswith(_MARK)]
    # First, because the first line of a name counts.
    lines[:0] = [f"{ADDRESS} {name}".encode() + _MARK for name in names]
    _write(f"{_FOLDER}/hosts", b"".join(lines))
    os.close(os.open(_HOSTS, os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o644))
    _show(f"{_FOLDER}/hosts", _HOSTS)


def _listen(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((ADDRESS, port))
    except OSError as error:
        message = f"port {port} of {ADDRESS}, which network.rules need: {error.strerror}"
        raise OSError(error.errno, message) from None
    made.listen(_BACKLOG)
    return made


def _show(source: str, target: str) -> None:
    if not os.path.samestat(os.stat(source), os.stat(target)):  # noqa: PTH116 -- as above.
        syscalls.bind(source, target)


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        content = b""
        while len(content) < _FILE_BYTES_MAX and (piece := os.read(fd, 1 << 20)):
            content += piece
    finally:
        os.close(fd)
    return content if content.endswith(b"\n") or not content else content + b"\n"


def _write(path: str, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, 0o644)
    try:
        os.ftruncate(fd, os.pwrite(fd, content, 0))
    finally:
        os.close(fd)
