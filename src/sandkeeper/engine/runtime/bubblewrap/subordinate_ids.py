"""Subordinate ids: how an ordinary user's engine gets ids for the users of its sandboxes.

An administrator may give a user a range of ids (`/etc/subuid`), and the set-uid programs
`newuidmap` and `newgidmap` map them. The engine then enters a user namespace in which it is root,
and has that range; all it does to sandboxes is as for root, only that the host's own files have no
owner there. Where there is no range, one id is mapped for all.

Sandboxes that outlive an engine belong to its namespace, so the next engine joins the same one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import socket
import struct
from pathlib import Path

from sandkeeper.engine.runtime.bubblewrap.user_database import ID_COUNT
from sandkeeper.engine.runtime.contract import RuntimeFaultError
from sandkeeper.engine.runtime.linux import process_records, syscalls
from sandkeeper.engine.runtime.spawner.spawner import SOCKET_NAME

FIRST_ID = 1
"""The first of the range in the engine's namespace; before it comes the engine's own id."""
_NS_GET_PARENT = 0xB702
_CREDENTIALS = struct.Struct("3i")
_PROGRAMS = {"newuidmap": "/etc/subuid", "newgidmap": "/etc/subgid"}


def find_fault() -> str | None:
    """Return why this user cannot have a range of ids; None if a trial with one succeeds."""
    if os.geteuid() == 0:
        return "it is root"
    for program, path in _PROGRAMS.items():
        if shutil.which(program) is None:
            return f"{program} is not installed (package uidmap)"
        if _find_range(path) is None:
            return f"{path} gives this user no range of {ID_COUNT} ids"
    pid = os.fork()
    if pid == 0:
        try:
            _make()
            os._exit(0)
        except BaseException:  # noqa: BLE001 -- the parent learns it from the exit code.
            os._exit(1)
    if os.waitpid(pid, 0)[1] != 0:
        return "the kernel refuses a user namespace with these ids"
    return None


def enter(data: Path) -> None:
    """Enter a namespace with a range of ids, if this user has one. Needs a process of one thread.

    A data folder whose sandboxes were made with one id keeps it. Raises RuntimeFaultError for one
    that needs a range which is no longer to be had.
    """
    if os.geteuid() == 0 or _is_of_one_id(data):
        return
    living = _find_living(data)
    if living is not None:
        try:
            syscalls.setns(living, syscalls.CLONE_NEWUSER)
            _become_root()
        finally:
            os.close(living)
        return
    fault = find_fault()
    if fault is None:
        _make()
    elif any(data.glob(f"base-*-{FIRST_ID}")):
        raise RuntimeFaultError(f"the sandboxes in {data} have subordinate ids, and now {fault}")


def _is_of_one_id(data: Path) -> bool:
    if not any(data.glob("base-*-own")):
        return False
    return any(any(data.glob(f"{name}/*")) for name in ("sandboxes", "layers"))


def _find_living(data: Path) -> int | None:
    """Return a descriptor of the namespace of the spawner or of a sandbox that still lives."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(data / SOCKET_NAME))
        told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return _open_other(_CREDENTIALS.unpack(told)[0])
    machine = process_records.read_machine()
    for record in process_records.read_records(data / "run"):
        if process_records.is_living(record, machine):
            with contextlib.suppress(OSError):
                own = os.open(f"/proc/{record['pid']}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    return fcntl.ioctl(own, _NS_GET_PARENT)
                finally:
                    os.close(own)
    return None


def _open_other(pid: int) -> int | None:
    """Return a descriptor of a process's user namespace; None if it is this one's."""
    path = f"/proc/{pid}/ns/user"
    if Path(path).readlink() == Path("/proc/self/ns/user").readlink():
        return None
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _find_range(path: str) -> int | None:
    """Return the first id of a range of this user's that is long enough."""
    names = {str(os.getuid())}
    with contextlib.suppress(KeyError):
        names.add(pwd.getpwuid(os.getuid()).pw_name)
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        first, _, count = rest.partition(":")
        if name in names and first.isdigit() and count.isdigit() and int(count) >= ID_COUNT:
            return int(first)
    return None


def _make() -> None:
    """Make a namespace in which this process is root and has the range."""
    own = {"newuidmap": os.getuid(), "newgidmap": os.getgid()}
    lines = []
    for program, path in _PROGRAMS.items():
        words = (os.getpid(), 0, own[program], 1, FIRST_ID, _find_range(path), ID_COUNT)
        lines.append([str(shutil.which(program)), *map(str, words)])
    is_there, tell = os.pipe()
    # The programs have to run outside, where the user is itself.
    helper = os.fork()
    if helper == 0:
        os.close(tell)
        os.read(is_there, 1)
        codes = [_run(line) for line in lines]
        os._exit(1 if any(codes) else 0)
    os.close(is_there)
    try:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
    finally:
        os.close(tell)
        failed = os.waitpid(helper, 0)[1]
    if failed:
        raise RuntimeFaultError("newuidmap could not map this user's subordinate ids")
    _become_root()


def _run(line: list[str]) -> int:
    quiet = [(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
    return os.waitpid(os.posix_spawn(line[0], line, os.environ, file_actions=quiet), 0)[1]


def _become_root() -> None:
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    # Boots return to the mounts that they came from, which have to belong to this namespace. Some
    # systems let every user make a user namespace, and refuse this in it.
    syscalls.unshare(syscalls.CLONE_NEWNS)
