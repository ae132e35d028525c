"""Boots a sandbox's first process, step by step, in a worker of the spawner.

The worker may block without delaying anything else. It ends either with the sandbox's record
written or with everything it made undone.

As root, bubblewrap runs inside a user namespace made here. Its ids are a range that no host user
has, so the sandbox's root and user are unprivileged on the host. The folders are first bound at a
neutral place, because those ids may not traverse the path to them. As an ordinary user, bubblewrap
makes its own namespace around that one user.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sandkeeper.engine.runtime.base import halves
from sandkeeper.engine.runtime.bubblewrap import first_process, identity, nsenter, shown_limits
from sandkeeper.engine.runtime.bubblewrap.user_database import ID_COUNT
from sandkeeper.engine.runtime.gvisor import inside as gvisor
from sandkeeper.engine.runtime.linux import cgroups, process_records, syscalls
from sandkeeper.engine.runtime.spawner import orphans, protocol

_STAGE = "/mnt"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 -- of the sandbox.
_READY_WAIT_S = 30.0
_POLL_S = 0.0002
_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
# It only has to exist: with child signals ignored, the kernel reaps orphans.
_FIRST_PROCESS = ("/usr/bin/sleep", "infinity")

Order = dict[str, Any]


class BootError(Exception):
    """The first process could not be started; the message is the machine's own."""


def boot(order: Order, parents: cgroups.Parents | None) -> dict[str, Any]:
    """Boot a sandbox as ordered and return its record.

    A sandbox that lives already, because an earlier order was carried out whose answer got lost, is
    given as it is.
    """
    run = Path(order["run"])
    with process_records.lock_boot(run, order["id"]):
        record = process_records.find_record(run, order["id"])
        if record is not None and process_records.is_living(record, order["machine"]):
            return record
        try:
            return _boot(order, parents)
        except BaseException:
            process_records.forget(run, order["id"])
            raise


def _boot(order: Order, parents: cgroups.Parents | None) -> dict[str, Any]:
    group = None
    pid = None
    way: dict[str, Any] = {"device": None, "helper": None, "routes": []}
    shown_limits.bind_to_processors(order["id"], order["limits"]["cpu_count"])
    with contextlib.closing(_Bubblewrap(order)) as bubblewrap:
        try:
            # Bubblewrap prepares in parallel, in another process.
            _make_folders(order)
            group = _make_group(order, parents)
            pid = bubblewrap.start(group)
            record: dict[str, Any] = {
                "id": order["id"],
                "pid": pid,
                "started": process_records.read_start(pid),
                "machine": order["machine"],
                "group": group,
                "uid_base": order["uid_base"],
                "limits": order["limits"],
                "upper": order["upper"],
                "frozen": False,
                "isolation": order["isolation"],
                "sentry": None,
            }
            if order["uid_base"] is None:
                # Its user namespace has no ids before bubblewrap is through.
                bubblewrap.finish()
            if order["backend"] and order["routes"]:
                way = nsenter.connect_network(record, order["backend"], order["routes"])
            bubblewrap.finish()
            if order["isolation"] == gvisor.ISOLATION:
                record["runsc"] = gvisor.describe_state(order)
                record["sentry"] = gvisor.start(record, order)
            nsenter.mask_kernel(record)
            record |= way
            process_records.write_record(Path(order["run"]), record)
        except BaseException:
            _undo(pid, group, way["helper"])
            raise
    return record


def _undo(
    pid: int | None, group: cgroups.Group | None, helper: process_records.Known | None
) -> None:
    """End and remove what has been made of a sandbox that did not come to be."""
    if helper:
        process_records.kill_known(helper)
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if group:
        for stray in cgroups.list_processes(group):
            with contextlib.suppress(ProcessLookupError):
                os.kill(stray, signal.SIGKILL)
        cgroups.remove(group)


def _make_folders(order: Order) -> None:
    for layer in order["layers"]:
        if not Path(layer).is_dir():
            raise BootError(f"the layer {layer} does not exist")
    owner = order["uid_base"]
    for top in (order["upper"], order["work"]):
        for half in halves.list_halves(_list_shown(order)):
            folder = Path(top, half)
            if not folder.exists():
                folder.mkdir(parents=True)
                folder.chmod(0o755)
                if owner is not None:
                    os.chown(folder, owner, owner)


def _list_shown(order: Order) -> dict[str, str]:
    """Return the folders of the host that the sandbox shows; a whole system shows none."""
    return {} if order["is_whole"] else halves.list_shown()


def _choose_first(order: Order) -> tuple[str, ...]:
    return (first_process.PATH,) if order["is_whole"] else _FIRST_PROCESS


def _make_group(order: Order, parents: cgroups.Parents | None) -> cgroups.Group | None:
    if parents is None:
        return None
    limits = order["limits"]
    pids = limits["pids_max"]
    if order["isolation"] == gvisor.ISOLATION:
        pids = pids * gvisor.TASKS_PER_PROCESS + gvisor.OWN_TASKS
    return cgroups.make_group(
        parents,
        order["group_prefix"] + order["id"],
        cpus=limits["cpu_count"],
        memory_mb=limits["memory_mb"],
        pids=pids,
    )


class _Bubblewrap:
    """Bubblewrap from its fork until the sandbox's first process runs, seen from outside.

    As root, the mounts are made here, in a mount namespace that both share, while the process that
    will be bubblewrap makes the user namespace; neither has the right to do the other's part.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._is_range = order["uid_base"] is not None
        # Looked up before the fork: what is mounted then may hide a folder from the other process.
        self._places = _Places(order)
        self._first = 0
        self._own_mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        if self._is_range:
            syscalls.unshare(syscalls.CLONE_NEWNS)
            syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        self._words, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._words.settimeout(_READY_WAIT_S)
        self._complaint, complaint_w = os.pipe()
        self._info, info_w = os.pipe()
        self._outer = os.fork()
        if self._outer == 0:
            try:
                _become_bubblewrap(order, self._places, far, complaint_w, info_w)
            except BaseException as error:  # noqa: BLE001 -- the parent must learn every cause.
                os.write(complaint_w, f"{error}".encode())
            finally:
                os._exit(126)
        far.close()
        os.close(complaint_w)
        os.close(info_w)

    def start(self, group: cgroups.Group | None) -> int:
        """Let it continue in the group; return the first process's id once it has namespaces."""
        try:
            protocol.send(self._words, {"group": group})
            if self._is_range:
                self._prepare_mounts()
        except (ConnectionError, TimeoutError):
            raise self._fail() from None
        text = _read_all(self._info, until=b"}")
        if not text:
            raise self._fail()
        self._first = int(json.loads(text)["child-pid"])
        return self._first

    def finish(self) -> None:
        """Wait until the first process runs."""
        if not _has_become(self._first, Path(_choose_first(self._order)[0]).name):
            raise self._fail()

    def close(self) -> None:
        """End the outer process, which only watches; the inner one lives on without it."""
        os.kill(self._outer, signal.SIGKILL)
        os.waitpid(self._outer, 0)
        self._words.close()
        for fd in (self._complaint, self._info, self._own_mounts):
            os.close(fd)

    def _prepare_mounts(self) -> None:
        try:
            _stage(self._places.sources, self._places.shown)
            protocol.receive(self._words)
            self._map_ids()
            protocol.send(self._words, {})
        finally:
            # What is mounted there may hide the folders of the engine from this process.
            syscalls.setns(self._own_mounts, syscalls.CLONE_NEWNS)

    def _map_ids(self) -> None:
        """Map the sandbox's id range in the new user namespace, as owner of the host's programs."""
        for kind in ("uid_map", "gid_map"):
            line = f"0 {self._order['uid_base']} {ID_COUNT}\n"
            Path(f"/proc/{self._outer}/{kind}").write_text(line)
        namespace = os.open(f"/proc/{self._outer}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        for name, path in _list_shown(self._order).items():
            try:
                if not self._order["maps_owners"]:
                    syscalls.bind(path, f"{_STAGE}/{name}")
                    continue
                syscalls.bind_mapped(path, f"{_STAGE}/{name}", namespace)
            except OSError as error:
                # An older kernel or filesystem: the host's programs then have no owner inside.
                sys.stderr.write(f"cannot map the owners of {path}: {error}\n")
                syscalls.bind(path, f"{_STAGE}/{name}")
        os.close(namespace)

    def _fail(self) -> BootError:
        """Return bubblewrap's own words for why there is no first process."""
        if self._first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._first, signal.SIGKILL)
        reason = _read_all(self._complaint).decode(errors="replace").strip()
        return BootError(reason or "the sandbox's first process ended without an error message")


def _has_become(pid: int, name: str) -> bool:
    """Wait until a process has executed a program of that name; False if it ends instead."""
    deadline = time.monotonic() + _READY_WAIT_S
    try:
        comm = os.open(f"/proc/{pid}/comm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        while time.monotonic() < deadline:
            if os.pread(comm, 64, 0).strip() == name.encode():
                return True
            if process_records.read_start(pid) == 0:
                return False
            time.sleep(_POLL_S)
    except ProcessLookupError:
        return False
    finally:
        os.close(comm)
    return False


def _read_all(fd: int, until: bytes | None = None) -> bytes:
    """Read to the end, or until a mark has come, within a generous time."""
    deadline = time.monotonic() + _READY_WAIT_S
    text = b""
    while until is None or until not in text:
        readable, _w, _x = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            break
        piece = os.read(fd, 4096)
        if not piece:
            break
        text += piece
    return text


def _become_bubblewrap(
    order: Order, places: _Places, words: socket.socket, complaint_w: int, info_w: int
) -> None:
    is_range = order["uid_base"] is not None
    arguments = [*_options(order, places, is_range=is_range), "--info-fd", str(info_w)]
    passed = [info_w]
    if order["is_whole"]:
        passed.append(_make_file(first_process.build_program()))
        arguments += ["--perms", "0555", "--ro-bind-data", str(passed[-1]), first_process.PATH]
    for path, text in order["notes"].items():
        passed.append(_make_file(text.encode()))
        arguments += ["--perms", "0644", "--file", str(passed[-1]), path]
    if order["filter"]:
        passed.append(_make_file(bytes.fromhex(order["filter"])))
        arguments += ["--seccomp", str(passed[-1])]
    passed.append(_make_file(b"\0".join(one.encode() for one in arguments) + b"\0"))
    for fd in passed:
        os.set_inheritable(fd, True)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(complaint_w, 2)
    _reset_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    heard, _descriptors = protocol.receive(words)
    cgroups.enter(heard["group"])
    if is_range:
        view = identity.HostView()
        os.setgroups([])
        # Its network is made here, not by bubblewrap, so that it can be connected in parallel.
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNET)
        syscalls.raise_loopback()
        protocol.send(words, {})
        protocol.receive(words)
        _drop_identity(view, order)
    line = [places.tool, "--args", str(passed[-1]), "--", *_choose_first(order)]
    own = {"PATH": "/usr/bin:/bin", orphans.MARK: order["group_prefix"] + order["id"]}
    os.execve(places.tool, line, own)  # noqa: S606 -- no shell is wanted.


def _reset_signals() -> None:
    """Undo what Python and the spawner do with signals, so that a program starts as usual."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)


class _Places:
    """Where the parts of a disk are, for the process that will mount them.

    If that user has no rights on the host, it is below a folder that any user may traverse.
    """

    def __init__(self, order: Order) -> None:
        self.tool: str = order["tool"]
        self.upper: str = order["upper"]
        self.work: str = order["work"]
        self.shown = _list_shown(order)
        self.sources: dict[str, str] = {}
        """What has to be bound below the stage, by its name there."""
        # The outer of two nested ones comes first.
        self.mounts = sorted(order["mounts"].items())
        # Overlay sources are named from the bottom to the top.
        bases = () if order["is_whole"] else (order["base"],)
        layers = {layer: layer for layer in (*bases, *reversed(order["layers"]))}
        if order["uid_base"] is not None:
            layers = {layer: f"layer{number}" for number, layer in enumerate(layers)}
            self.sources = {name: layer for layer, name in layers.items()}
            layers = {layer: f"{_STAGE}/{name}" for layer, name in layers.items()}
            for number, (_path, folder) in enumerate(self.mounts):
                self.sources[f"mount{number}"] = folder
            self.mounts = [
                (path, f"{_STAGE}/mount{number}") for number, (path, _) in enumerate(self.mounts)
            ]
            self._move_to_stage()
        self.lower = {
            half: [place for layer, place in layers.items() if Path(layer, half).is_dir()]
            for half in halves.list_halves(self.shown)
        }
        """The layers that have each half of the tree."""

    def _move_to_stage(self) -> None:
        tool = Path(self.tool)
        # The kernel needs both writable folders under one mount: bind their common parent.
        disk = os.path.commonpath([self.upper, self.work])
        self.sources["disk"] = disk
        # The program finds its own library beside its package, so the two are bound side by side.
        libraries = tool.parents[2] / f"{tool.parents[1].name}.libs"
        package = tool.parents[1] if libraries.is_dir() else tool.parent
        self.sources["tool"] = str(package)
        if libraries.is_dir():
            self.sources[libraries.name] = str(libraries)
        self.tool = f"{_STAGE}/tool/{tool.relative_to(package)}"
        self.upper = f"{_STAGE}/disk/{Path(self.upper).relative_to(disk)}"
        self.work = f"{_STAGE}/disk/{Path(self.work).relative_to(disk)}"
        self.shown = {name: f"{_STAGE}/{name}" for name in self.shown}


def _stage(sources: dict[str, str], shown: Iterable[str]) -> None:
    """Bind all that bubblewrap needs below the stage, but for the host's programs."""
    opened = {
        name: os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
        for name, path in sources.items()
    }
    syscalls.mount("tmpfs", _STAGE, "tmpfs", 0, "mode=755")
    for name, fd in opened.items():
        Path(_STAGE, name).mkdir()
        syscalls.bind(f"/proc/self/fd/{fd}", f"{_STAGE}/{name}")
        os.close(fd)
    for name in shown:
        Path(_STAGE, name).mkdir()


def _drop_identity(view: identity.HostView, order: Order) -> None:
    """Become root of the new user namespace, without any rights on the host."""
    uid_base = order["uid_base"]
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    view.check(identity.Identity(uid_base, uid_base, (), syscalls.ALL_CAPABILITIES))
    # gVisor puts its sentry into one more; its programs have no way to the host's kernel.
    allowed = 1 if order["isolation"] == gvisor.ISOLATION else 0
    Path("/proc/sys/user/max_user_namespaces").write_text(str(allowed))


def _options(order: Order, places: _Places, *, is_range: bool) -> list[str]:
    options = ["--unshare-pid", "--unshare-uts", "--unshare-ipc", "--unshare-cgroup"]
    options += ["--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    options += ["--hostname", order["hostname"]]
    if not is_range:
        options += ["--unshare-net", "--unshare-user", "--disable-userns"]
        options += ["--uid", "1000", "--gid", "1000"]
    for half, point in halves.list_halves(_list_shown(order)).items():
        if half in places.shown:
            options += ["--overlay-src", places.shown[half]]
        for layer in places.lower[half]:
            options += ["--overlay-src", f"{layer}/{half}"]
        options += ["--overlay", f"{places.upper}/{half}", f"{places.work}/{half}", point]
    for name in () if order["is_whole"] else ("bin", "lib", "lib32", "lib64", "libx32", "sbin"):
        if Path("/", name).is_dir() and not Path("/", name).is_symlink():
            options += ["--ro-bind", f"/{name}", f"/{name}"]
    options += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run", "--chdir", "/"]
    for path, folder in places.mounts:
        options += ["--bind", folder, path]
    shared = order["limits"]["memory_mb"] * 1024 * 1024 // 2
    return [*options, "--size", str(shared), "--perms", "1777", "--tmpfs", _SHARED_MEMORY]


def _make_file(content: bytes) -> int:
    fd = os.memfd_create("order", os.MFD_CLOEXEC)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
