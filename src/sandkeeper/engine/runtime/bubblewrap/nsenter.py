"""Entering a living sandbox from outside: to run a command, make a socket or signal all processes.

A process that joins namespaces inherits none of bubblewrap's protections, so everything that holds
the first process is put on here again, before any program of the sandbox runs. All of this happens
in short-lived workers of the spawner. Nothing may be imported after joining: the files are then the
sandbox's own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import socket
import struct
import sys
import termios
from collections.abc import Iterator
from typing import Any

from sandkeeper.engine.runtime.bubblewrap import identity, masking, shown_limits
from sandkeeper.engine.runtime.bubblewrap.user_database import (
    GROUP,
    PASSWD,
    ROOT_ID,
    Account,
    UserDatabase,
    find_groups,
    map_ids,
    read_database,
)
from sandkeeper.engine.runtime.egress import network, veth
from sandkeeper.engine.runtime.linux import cgroups, process_records, syscalls
from sandkeeper.engine.runtime.spawner import protocol

Record = dict[str, Any]

_OOM_SCORE = b"500"
FILES_MAX = 65_536
_DISK_RESERVE_BYTES = 256 * 1024 * 1024
_FILE_BYTES_MIN = 16 * 1024 * 1024
_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class SandboxGoneError(Exception):
    """The sandbox's first process is no more."""


def close_all_but(kept: set[int]) -> None:
    """Close every descriptor of this process except those named."""
    last = 2
    for fd in sorted(kept):
        if fd > 2:
            os.closerange(last + 1, fd)
            last = fd
    os.closerange(last + 1, 1_048_576 if last < 1_048_576 else last + 1)


class NamespaceHandles:
    """The namespaces of one living sandbox, held open for joining."""

    def __init__(self, record: Record) -> None:
        try:
            self.first = os.pidfd_open(record["pid"])
        except ProcessLookupError:
            raise SandboxGoneError from None
        if not process_records.is_same(record["pid"], record["started"]):
            raise SandboxGoneError
        self.owner: int | None = None
        self.uid_base: int | None = record["uid_base"]
        self.own = (os.getuid(), os.getgid())
        """Who this process is outside."""
        self._own_groups = tuple(os.getgroups())
        self._view: identity.HostView | None = None
        if not self.is_range:
            # bubblewrap nests two user namespaces; the outer one owns all the others.
            mounts = os.open(f"/proc/{record['pid']}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            self.owner = syscalls.owner_of(mounts)
            os.close(mounts)

    @property
    def is_range(self) -> bool:
        """Return whether the sandbox has its own ids on the host."""
        return self.uid_base is not None

    @property
    def descriptors(self) -> set[int]:
        return {self.first} | ({self.owner} if self.owner is not None else set())

    def close(self) -> None:
        for fd in self.descriptors:
            os.close(fd)
        if self._view is not None:
            self._view.close()

    def join(self, kinds: int) -> None:
        """Join the user namespace that owns the others, and the others of the given kinds.

        Where the sandbox has its own ids, this process is then root inside and unprivileged on the
        host: nothing that is read inside can raise its privileges.
        """
        self._view = identity.HostView()
        if self.uid_base is not None:
            syscalls.setns(self.first, syscalls.CLONE_NEWUSER | kinds)
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            syscalls.set_undumpable()
            identity.check_inside(ROOT_ID, ROOT_ID, [])
            return
        assert self.owner is not None
        syscalls.setns(self.owner, syscalls.CLONE_NEWUSER)
        syscalls.setns(self.first, kinds)

    def check_identity(self, uid: int, gid: int, groups: list[int], capabilities: int) -> None:
        """Raise WrongIdentityError unless the host sees this process with these ids and no others.

        `groups` are by the sandbox's numbers. An ordinary user's cannot be changed.
        """
        assert self._view is not None
        seen = self._own_groups
        if self.uid_base is not None:
            seen = tuple(self.uid_base + one for one in groups)
        self._view.check(identity.Identity(uid, gid, seen, capabilities))

    def become_user(self) -> None:
        """Enter the inner user namespace, where the one mapped id is called `user`."""
        syscalls.setns(self.first, syscalls.CLONE_NEWUSER)


def connect_network(record: Record, backend: str, routes: list[network.Route]) -> Record:
    """Connect a sandbox to the network, limited to the routes; return the fields of its record."""
    if backend == veth.NAME:
        with _opened_network(record) as inside:
            device = veth.connect(inside, [_pair(one) for one in routes])
        return {"device": device, "helper": None, "routes": routes}
    namespaces = NamespaceHandles(record)
    pid = network.start_helper(
        backend, record["pid"], namespaces.first, namespaces.owner, is_root=namespaces.is_range
    )
    known: process_records.Known = {"pid": pid, "started": process_records.read_start(pid)}
    try:
        set_routes(record, list(network.AS_SET_UP), routes)
    except BaseException:
        process_records.kill_known(known)
        raise
    return {"device": None, "helper": known, "routes": routes}


def set_routes(record: Record, present: list[network.Route], wanted: list[network.Route]) -> None:
    """Turn one set of routes into another inside the sandbox's network."""
    before, after = [_pair(one) for one in present], [_pair(one) for one in wanted]

    def change(namespaces: NamespaceHandles) -> None:
        namespaces.join(syscalls.CLONE_NEWNET)
        network.apply_routes(before, after)

    if record.get("device"):
        with _opened_network(record) as inside:
            veth.set_routes(record["device"], inside, before, after)
    else:
        run_in_child(record, change)


def mask_kernel(record: Record) -> None:
    """Close the kernel's own files and the device nodes to a sandbox that has run nothing yet."""

    shown = shown_limits.describe(record)

    def mask(namespaces: NamespaceHandles) -> None:
        namespaces.join(syscalls.CLONE_NEWNS)
        shown_limits.mount(shown)
        masking.apply()

    run_in_child(record, mask)


def signal_all(record: Record, number: int) -> None:
    """Signal every process inside but the first, including those that fork during the call."""

    def send(namespaces: NamespaceHandles) -> None:
        namespaces.join(syscalls.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, number)
            os._exit(0)
        os.waitpid(pid, 0)

    run_in_child(record, send)


def make_sockets(record: Record, families: list[int]) -> list[socket.socket]:
    """Make unconnected TCP sockets that belong to the sandbox's network. Ends as the joiner."""
    namespaces = NamespaceHandles(record)
    namespaces.join(syscalls.CLONE_NEWNET)
    made = []
    for family in families:
        with contextlib.suppress(OSError):
            made.append(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
    return made


def run_command(order: Record, channel: socket.socket, stdio: list[int]) -> None:
    """Start the ordered program inside and tell `channel` its process id, or what went wrong.

    This process goes inside and puts on all that holds a sandbox's programs; then its one child is
    the program from the first moment on, which spares a copy of this process. It stays the parent
    until the other side of the channel has looked the program up, so that it cannot be missed.
    """
    try:
        record = order["sandbox"]
        _write("/proc/self/oom_score_adj", _OOM_SCORE)
        syscalls.set_undumpable()
        namespaces = NamespaceHandles(record)
        cgroups.enter(record["group"])
        _set_limits(record)
        shown = shown_limits.describe(record)
        # Whatever is imported from here on would be the sandbox's own files.
        sys.path.clear()
        sys.meta_path.clear()
        namespaces.join(syscalls.ALL_BUT_USER)
        shown_limits.refresh(shown)
        pid, handed = _start_program(order, namespaces, stdio)
        for fd in stdio:
            # Readers of the output wait until every writer has closed it.
            os.close(fd)
        protocol.send(channel, {"pid": pid}, handed)
        channel.recv(1)
    except BaseException as error:  # noqa: BLE001 -- the engine must learn every cause.
        protocol.send(channel, describe(error))


def describe(error: BaseException) -> Record:
    """Return an error the form in which it travels to the engine."""
    kind = "fault"
    if isinstance(error, SandboxGoneError | ProcessLookupError):
        kind = "gone"
    elif isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
        kind = "missing"
    elif isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        kind = "full"
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, BlockingIOError):
        error = OSError(error.errno, "the sandbox has as many processes as it may have")
    message = (isinstance(error, OSError) and error.strerror) or str(error)
    return {"error": kind, "errno": number, "message": message or type(error).__name__}


def _start_program(
    order: Record, namespaces: NamespaceHandles, stdio: list[int]
) -> tuple[int, tuple[int, ...]]:
    """Return the program's process id and, where it has a terminal, that one's master."""
    os.umask(0o022)
    program_filter = bytes.fromhex(order["filter"])
    home, is_filtered = _switch_identity(order["user"], namespaces, program_filter)
    namespaces.close()
    handed: tuple[int, ...] = ()
    opens: list[tuple[Any, ...]] = []
    if order["size"]:
        master, name = make_terminal(order["size"])
        handed = (master,)
        # The first terminal that the leader of a session opens becomes its controlling one.
        opens = [(os.POSIX_SPAWN_OPEN, 0, name, os.O_RDWR, 0)]
        opens += [(os.POSIX_SPAWN_DUP2, 0, target) for target in (1, 2)]
    else:
        opens = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(stdio)]
    cwd = order["cwd"] or home
    try:
        os.chdir(cwd)
    except OSError as error:
        if order["cwd"]:
            raise type(error)(error.errno, f"cwd '{cwd}': {error.strerror}") from None
        os.chdir("/")
    if not is_filtered:
        syscalls.set_no_new_privileges()
        if program_filter:
            syscalls.load_filter(program_filter)
    own = {"HOME": home, "USER": order["user"], "LOGNAME": order["user"]}
    return _execute(order["argv"], {**own, **order["env"]}, opens), handed


def _execute(argv: list[str], env: dict[str, str], opens: list[tuple[Any, ...]]) -> int:
    """Start a program in a session of its own, found as a shell would; give its process id."""
    program = argv[0]
    folders = [""] if "/" in program else env.get("PATH", _PATH).split(":")
    cause: OSError = FileNotFoundError(errno.ENOENT, f"{program}: command not found")
    for folder in folders:
        path = f"{folder}/{program}" if folder else program
        try:
            return os.posix_spawn(
                path,
                argv,
                env,
                file_actions=opens,
                setsid=True,
                setsigmask=(),
                setsigdef=_SIGNALS,
            )
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            cause = type(error)(error.errno, f"{path}: {error.strerror}")
    raise cause


def _switch_identity(
    user: str, namespaces: NamespaceHandles, program_filter: bytes
) -> tuple[str, bool]:
    """Become the user, without any capability; return the home folder, and if the filter is on.

    Only where the sandbox has ids of its own does its root keep the few that let it own, read and
    hand over the sandbox's files. They count in its own user namespace and nowhere else. There, a
    set-uid program may make a user that root (`sudo`), so the filter is loaded before this process
    gives up the right to do so without forbidding such programs. What the kernel then reports for
    this process must match exactly, or nothing is executed.
    """
    account, groups = find_account(user, namespaces)
    uid, gid = map_ids(account, namespaces.uid_base, namespaces.own)
    is_root = account.uid == ROOT_ID
    may_gain = namespaces.is_range and not is_root and bool(program_filter)
    kept = syscalls.ROOT_CAPABILITIES if namespaces.is_range and is_root else 0
    if may_gain:
        syscalls.load_filter(program_filter)
    syscalls.bound_capabilities(syscalls.ROOT_CAPABILITIES if may_gain else kept)
    if namespaces.is_range:
        os.setgroups(groups)
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
        identity.check_inside(account.uid, account.gid, groups)
    elif not is_root:
        namespaces.become_user()
        syscalls.bound_capabilities()
    syscalls.set_capabilities(kept)
    syscalls.set_undumpable()
    namespaces.check_identity(uid, gid, groups, kept)
    return account.home, may_gain


def find_account(user: str, namespaces: NamespaceHandles) -> tuple[Account, list[int]]:
    """Return a user of the sandbox and the ids of its groups, where it can have any."""
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        account = UserDatabase(read_database(root, PASSWD)).find(user)
        groups = find_groups(read_database(root, GROUP), account) if namespaces.is_range else []
    finally:
        os.close(root)
    return account, groups


def make_terminal(size: list[int]) -> tuple[int, str]:
    """Make a terminal inside the sandbox; give its master and its name."""
    master, slave = os.openpty()
    columns, rows = size
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    name = os.ttyname(slave)
    os.close(slave)
    return master, name


def _set_limits(record: Record) -> None:
    """Set what holds without any control group as well: processes, open files, one file's size."""
    shown_limits.bind_to_processors(record["id"], record["limits"]["cpu_count"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_NOFILE, FILES_MAX)
    if record["group"] is None:
        _lower(resource.RLIMIT_NPROC, record["limits"]["pids_max"])
    _lower(resource.RLIMIT_FSIZE, find_file_bytes_max(record))
    _limit_files_of(0, is_full=record.get("full", False))


def _limit_files_of(pid: int, *, is_full: bool) -> None:
    """Let a process write no file, or any that is not too large; 0 is this process.

    Only the soft limit: the kernel lets no process in a sandbox raise the other one again.
    """
    _soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if is_full else hard, hard))


def limit_files(record: Record) -> None:
    """Let every process inside write files, or none if the sandbox's disk is full."""

    def limit(namespaces: NamespaceHandles) -> None:
        namespaces.join(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS)
        pid = os.fork()
        if pid == 0:
            # Twice, because one may fork after the first look at it.
            for name in (*os.listdir("/proc"), *os.listdir("/proc")):  # noqa: PTH208
                if name.isdigit() and name != "1":
                    with contextlib.suppress(OSError):
                        _limit_files_of(int(name), is_full=record["full"])
            os._exit(0)
        os.waitpid(pid, 0)

    run_in_child(record, limit)


def find_file_bytes_max(record: Record) -> int:
    """Return how large one file may become."""
    stats = os.statvfs(record["upper"])
    free = stats.f_bavail * stats.f_frsize
    # One runaway file stops short of the last of the disk, which the engine itself needs.
    room = max(free - _DISK_RESERVE_BYTES, _FILE_BYTES_MIN)
    # Sandboxes that an earlier version booted have no limit for their disk.
    disk_mb = record["limits"].get("disk_mb")
    return room if disk_mb is None else min(room, disk_mb * 1024 * 1024)


def _write(path: str, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


def _lower(kind: int, wanted: int) -> None:
    _soft, hard = resource.getrlimit(kind)
    bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (bound, bound))


def run_in_child(record: Record, act: Any) -> None:
    """Do something in a process of its own, because joining cannot be undone."""
    errors_r, errors_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            act(NamespaceHandles(record))
        except BaseException as error:  # noqa: BLE001 -- the parent must learn every cause.
            os.write(errors_w, str(error).encode()[:4000] or b"failed")
        finally:
            os._exit(0)
    os.close(errors_w)
    try:
        reason = os.read(errors_r, 4096)
        os.waitpid(pid, 0)
    finally:
        os.close(errors_r)
    if reason:
        raise OSError(reason.decode(errors="replace"))


@contextlib.contextmanager
def _opened_network(record: Record) -> Iterator[int]:
    """Open a descriptor of the sandbox's network namespace."""
    try:
        inside = os.open(f"/proc/{record['pid']}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SandboxGoneError from None
    try:
        if not process_records.is_same(record["pid"], record["started"]):
            raise SandboxGoneError
        yield inside
    finally:
        os.close(inside)


def _pair(route: Any) -> network.Route:
    kind, cidr = route
    return kind, cidr
