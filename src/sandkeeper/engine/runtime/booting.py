"""Starting a sandbox's first process, step by step, in a worker of the spawner.

The worker may block: nobody else waits for it. It ends either with the sandbox's record written or
with everything it made taken back.

As root, bubblewrap runs inside a user namespace made here, whose ids are a range that nobody on the
host has; the sandbox's root and user are two different strangers to the host. The folders are
first bound at a neutral place, because those strangers may not walk the way to them. As an ordinary
user, bubblewrap makes its own namespace around that one user.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from sandkeeper.engine.runtime import cgroups, joining, kernel, orphans, processes

_STAGE = "/mnt"
_READY_WAIT_S = 30.0
_RANGE_LENGTH = 65536
_POLL_S = 0.0003
# It only has to be there: with child signals ignored, the kernel reaps orphans by itself.
_FIRST_PROCESS = ("/usr/bin/sleep", "infinity")

Order = dict[str, Any]


class BootError(Exception):
    """The first process could not be started; the message is the machine's own."""


def boot(order: Order) -> dict[str, Any]:
    """Carry out an order of the engine and give the sandbox's record.

    A sandbox that lives already, because an earlier order was carried out whose answer got lost, is
    given as it is.
    """
    run = Path(order["run"])
    with processes.lock_boot(run, order["id"]):
        record = processes.find_record(run, order["id"])
        if record is not None and processes.is_living(record, order["machine"]):
            return record
        try:
            return _boot(order)
        except BaseException:
            processes.forget(run, order["id"])
            raise


def _boot(order: Order) -> dict[str, Any]:
    group = None
    pid = None
    way: dict[str, Any] = {"device": None, "helper": None, "routes": []}
    try:
        _make_folders(order)
        group = _make_group(order)
        pid = _start(order, group)
        record: dict[str, Any] = {
            "id": order["id"],
            "pid": pid,
            "started": processes.read_start(pid),
            "machine": order["machine"],
            "group": group,
            "uid_base": order["uid_base"],
            "limits": order["limits"],
            "upper": order["upper"],
            "frozen": False,
        }
        if order["way_out"] and order["routes"]:
            way = joining.connect_network(record, order["way_out"], order["routes"])
        record |= way
        processes.write_record(Path(order["run"]), record)
    except BaseException:
        if way["helper"]:
            processes.kill_known(way["helper"])
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if group:
            for stray in cgroups.list_processes(group):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(stray, signal.SIGKILL)
            cgroups.remove(group)
        raise
    return record


def _make_folders(order: Order) -> None:
    for layer in order["layers"]:
        if not Path(layer).is_dir():
            raise BootError(f"the layer {layer} is not there")
    owner = order["uid_base"]
    for top in (order["upper"], order["work"]):
        for half in ("root", "usr"):
            folder = Path(top, half)
            if not folder.exists():
                folder.mkdir(parents=True)
                folder.chmod(0o755)
                if owner is not None:
                    os.chown(folder, owner, owner)


def _make_group(order: Order) -> cgroups.Group | None:
    parents = cgroups.find_parents()
    if parents is None:
        return None
    limits = order["limits"]
    return cgroups.make_group(
        parents,
        order["group_prefix"] + order["id"],
        cpus=limits["cpu_count"],
        memory_mb=limits["memory_mb"],
        pids=limits["pids_max"],
    )


def _start(order: Order, group: cgroups.Group | None) -> int:
    """Run bubblewrap until it has become the first process; give its process id."""
    complaint, complaint_w = os.pipe()
    info, info_w = os.pipe()
    namespace = None if order["uid_base"] is None else _make_user_namespace(order["uid_base"])
    outer = os.fork()
    if outer == 0:
        try:
            _become_bubblewrap(order, group, namespace, complaint_w, info_w)
        except BaseException as error:  # noqa: BLE001 -- the parent must hear of every cause.
            os.write(complaint_w, f"{error}".encode())
        finally:
            os._exit(126)
    os.close(complaint_w)
    os.close(info_w)
    if namespace is not None:
        os.close(namespace)
    try:
        return _await_first_process(outer, complaint, info)
    finally:
        os.close(complaint)
        os.close(info)


def _await_first_process(outer: int, complaint: int, info: int) -> int:
    try:
        text = _read_all(info, until=b"}")
        pid = int(json.loads(text)["child-pid"]) if text else 0
        if pid and _has_become(pid, Path(_FIRST_PROCESS[0]).name):
            return pid
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reason = _read_all(complaint).decode(errors="replace").strip()
        raise BootError(reason or "the sandbox's first process ended at once, without a word")
    finally:
        # The outer process only watches; the inner one lives on without it.
        os.kill(outer, signal.SIGKILL)
        os.waitpid(outer, 0)


def _has_become(pid: int, name: str) -> bool:
    """Wait until a process has executed a program of that name; False if it ends instead."""
    deadline = time.monotonic() + _READY_WAIT_S
    while time.monotonic() < deadline:
        try:
            now = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            return False
        if now == name:
            return True
        if processes.read_start(pid) == 0:
            return False
        time.sleep(_POLL_S)
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


def _make_user_namespace(uid_base: int) -> int:
    """Give a descriptor of a new user namespace that maps a range of strangers."""
    made, made_w = os.pipe()
    hold, hold_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(hold_w)
            kernel.unshare(kernel.CLONE_NEWUSER)
            os.write(made_w, b"1")
            os.read(hold, 1)
        finally:
            os._exit(0)
    os.close(made_w)
    os.close(hold)
    try:
        if os.read(made, 1) != b"1":
            raise BootError("the kernel refused a user namespace")
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{kind}").write_text(f"0 {uid_base} {_RANGE_LENGTH}\n")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(hold_w)
        os.close(made)
        os.waitpid(pid, 0)


def _become_bubblewrap(
    order: Order,
    group: cgroups.Group | None,
    namespace: int | None,
    complaint_w: int,
    info_w: int,
) -> None:
    cgroups.enter(group)
    places = _Places(order)
    if namespace is not None:
        places = _stage(order, namespace)
        _become_stranger(namespace)
    arguments = [
        *_options(order, places, is_range=namespace is not None),
        *("--info-fd", str(info_w)),
    ]
    passed = [info_w]
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
    joining.reset_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    line = [places.tool, "--args", str(passed[-1]), "--", *_FIRST_PROCESS]
    own = {"PATH": "/usr/bin:/bin", orphans.MARK: order["group_prefix"] + order["id"]}
    os.execve(places.tool, line, own)  # noqa: S606 -- no shell is wanted.


class _Places:
    """Where the parts of a disk are, for the process that will mount them."""

    def __init__(self, order: Order) -> None:
        self.tool: str = order["tool"]
        self.upper: str = order["upper"]
        self.work: str = order["work"]
        self.layers: list[str] = [*order["layers"], order["base"]]
        self.usr = "/usr"


def _stage(order: Order, namespace: int) -> _Places:
    """Bind everything bubblewrap needs at a place that any user may walk to."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    places = _Places(order)
    tool = Path(order["tool"])
    # The kernel wants the two writable folders under one mount, so their common parent is bound.
    disk = os.path.commonpath([places.upper, places.work])
    sources = {"disk": disk}
    sources |= {f"layer{number}": layer for number, layer in enumerate(places.layers)}
    # The program finds its own library beside its package, so the two are bound side by side.
    libraries = tool.parents[2] / f"{tool.parents[1].name}.libs"
    if libraries.is_dir():
        sources |= {"tool": str(tool.parents[1]), f"{tool.parents[1].name}.libs": str(libraries)}
    else:
        sources["tool"] = str(tool.parent)
    opened = {
        name: os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
        for name, path in sources.items()
    }
    kernel.mount("tmpfs", _STAGE, "tmpfs", 0, "mode=755")
    for name, fd in opened.items():
        Path(_STAGE, name).mkdir()
        kernel.bind(f"/proc/self/fd/{fd}", f"{_STAGE}/{name}")
        os.close(fd)
    Path(_STAGE, "usr").mkdir()
    try:
        kernel.bind_mapped("/usr", f"{_STAGE}/usr", namespace)
        places.usr = f"{_STAGE}/usr"
    except OSError as error:
        # An older kernel or filesystem: the host's programs then seem to belong to nobody.
        sys.stderr.write(f"cannot map the owners of /usr: {error}\n")
    places.upper = f"{_STAGE}/disk/{Path(places.upper).relative_to(disk)}"
    places.work = f"{_STAGE}/disk/{Path(places.work).relative_to(disk)}"
    places.layers = [f"{_STAGE}/layer{number}" for number in range(len(places.layers))]
    below = tool.relative_to(tool.parents[1] if libraries.is_dir() else tool.parent)
    places.tool = f"{_STAGE}/tool/{below}"
    return places


def _become_stranger(namespace: int) -> None:
    """Enter the sandbox's user namespace as its root, who is nobody on the host."""
    os.setgroups([])
    kernel.setns(namespace, kernel.CLONE_NEWUSER)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def _options(order: Order, places: _Places, *, is_range: bool) -> list[str]:
    options = ["--unshare-pid", "--unshare-uts", "--unshare-ipc", "--unshare-net"]
    options += ["--unshare-cgroup", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    options += ["--hostname", order["hostname"]]
    if not is_range:
        options += ["--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"]
    # Overlay sources are named from the bottom to the top.
    bottom_up = list(reversed(places.layers))
    for layer in bottom_up:
        if Path(layer, "root").is_dir():
            options += ["--overlay-src", f"{layer}/root"]
    options += ["--overlay", f"{places.upper}/root", f"{places.work}/root", "/"]
    options += ["--overlay-src", places.usr]
    for layer in bottom_up:
        if Path(layer, "usr").is_dir():
            options += ["--overlay-src", f"{layer}/usr"]
    options += ["--overlay", f"{places.upper}/usr", f"{places.work}/usr", "/usr"]
    for name in ("bin", "lib", "lib32", "lib64", "libx32", "sbin"):
        if Path("/", name).is_dir() and not Path("/", name).is_symlink():
            options += ["--ro-bind", f"/{name}", f"/{name}"]
    return [*options, "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run", "--chdir", "/"]


def _make_file(content: bytes) -> int:
    fd = os.memfd_create("order", os.MFD_CLOEXEC)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
