"""Running gVisor inside a sandbox that bubblewrap made, and commands on gVisor's kernel.

Bubblewrap makes the namespaces, the disk, the network and the control group as for any sandbox, and
its first process holds them. Then `runsc` is started in them. It has two processes: the sentry,
which is the kernel of the sandbox's programs, and the gofer, which opens files for it below the
disk and nowhere else. Both have an id without any right on the host, and a filter of their own. A
program's system calls end in the sentry; the host's kernel sees only the few that the sentry needs.

Every call of `runsc` happens here, in short-lived workers of the spawner that have joined the
sandbox's namespaces. The program file is the host's own, opened before joining: what lies at its
path inside belongs to the sandbox. Its state is a folder of the engine, reached by a descriptor as
the current folder, so no path inside leads to it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NamedTuple

from sandkeeper.engine.runtime.bubblewrap import first_process, nsenter
from sandkeeper.engine.runtime.bubblewrap.user_database import ROOT_ID
from sandkeeper.engine.runtime.linux import cgroups, process_records, syscalls
from sandkeeper.engine.runtime.spawner import protocol

Record = dict[str, Any]

ISOLATION = "gvisor"
TASKS_PER_PROCESS = 4
"""How many of the host's tasks a process may take. Programs that take more in all end the sandbox:
the sentry cannot go on without them."""
OWN_TASKS = 512
"""For the sentry, the gofer and the clients of running commands."""
_CONTAINER = "sandbox"
# Nothing can be in its place: bubblewrap mounts a new /dev for each sandbox.
_STAGE = "/dev/shm"  # noqa: S108 -- of a mount namespace that ends with this worker.
_SCRATCH = f"{_STAGE}/scratch"
_TMP = "/tmp"  # noqa: S108 -- of the sandbox, for its programs.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# It only has to exist: with child signals ignored, gVisor's kernel reaps orphans.
_FIRST_PROCESS = ("/bin/bash", "-c", "trap '' CHLD; exec /usr/bin/sleep infinity")
# Held back until the client of a command forwards them to the program.
_FORWARDED = tuple(
    signal.valid_signals()
    - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGURG, signal.SIGPROF}
    - {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT}
)
_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_CAPABILITY_NAMES = {
    0: "CAP_CHOWN",
    1: "CAP_DAC_OVERRIDE",
    3: "CAP_FOWNER",
    4: "CAP_FSETID",
    5: "CAP_KILL",
    6: "CAP_SETGID",
    7: "CAP_SETUID",
    10: "CAP_NET_BIND_SERVICE",
}
_KILL_SESSION = """\
for folder in /proc/[0-9]*; do
  read -r line < "$folder/stat" || continue
  set -- ${line##*) }
  [ "$4" = "$SESSION" ] && kill -9 "${folder#/proc/}"
done 2>/dev/null
"""


class RunscError(Exception):
    """`runsc` could not do it; the message is its own."""


class _Tools(NamedTuple):
    """What `runsc` needs of the host, opened before the sandbox's namespaces are joined."""

    program: int
    state: int
    flags: list[str]

    @classmethod
    def of(cls, record: Record) -> _Tools:
        program = os.open(record["runsc"]["program"], os.O_RDONLY | os.O_CLOEXEC)
        state = os.open(record["runsc"]["state"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return cls(program, state, record["runsc"]["flags"])

    def spawn(self, words: list[str], passed: tuple[int, ...], **settings: Any) -> int:
        """Start `runsc` in the namespaces that this process has joined; return its process id."""
        os.fchdir(self.state)
        for fd in passed:
            os.set_inheritable(fd, True)
        line = ["runsc", "--root=.", *self.flags, *words]
        return os.posix_spawn(
            f"/proc/self/fd/{self.program}",
            line,
            {"PATH": _PATH, "TMPDIR": _SCRATCH},
            setsigdef=_SIGNALS,
            **settings,
        )


def describe_state(order: Record) -> Record:
    """Return the fields of a sandbox's record that tell where its `runsc` is."""
    return {"program": order["runsc"], "state": str(_name_state(order)), "flags": order["flags"]}


def _name_state(order: Record) -> Path:
    return Path(order["run"], f"{order['id']}{process_records.STATE_SUFFIX}")


def start(record: Record, order: Record) -> process_records.Known:
    """Start gVisor in a booted sandbox that has run nothing yet; return its sentry."""
    state = _name_state(order)
    state.mkdir(mode=0o700)
    config = state / "config.json"
    config.write_text(json.dumps(_make_config(record, order)))
    os.chown(state, order["uid_base"], order["uid_base"])
    config.chmod(0o644)
    nsenter.run_in_child(record, lambda namespaces: _start(record, namespaces))
    return _find_sentry(record, int((state / "pid").read_text()))


def _start(record: Record, namespaces: nsenter.NamespaceHandles) -> None:
    tools = _Tools.of(record)
    cgroups.enter(record["group"])
    namespaces.join(syscalls.ALL_BUT_USER)
    namespaces.close()
    _stage_tree()
    complaint = os.memfd_create("complaint", os.MFD_CLOEXEC)
    nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1)]
    words = ["run", "--detach", "--bundle=.", "--pid-file=pid", _CONTAINER]
    pid = tools.spawn(
        words, (), file_actions=[*nothing, (os.POSIX_SPAWN_DUP2, complaint, 2)], setsid=True
    )
    if os.waitpid(pid, 0)[1] != 0:
        raise RunscError(f"runsc: {_read_complaint(complaint)}")


def _stage_tree() -> None:
    """Lay the sandbox's disk out for the gofer, without the kernel's files and the devices.

    In a mount namespace of this worker's own; `runsc` takes it over for its two processes.
    """
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", _STAGE, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755")
    tree = f"{_STAGE}/root"
    for folder in (tree, _SCRATCH):
        Path(folder).mkdir()
    syscalls.bind("/", tree)
    for name in ("usr", "run", "bin", "lib", "lib32", "lib64", "libx32", "sbin", "var/lib/dpkg"):
        if os.path.ismount(f"/{name}"):
            syscalls.bind(f"/{name}", f"{tree}/{name}")
    if os.path.lexists(first_process.PATH):
        # Bubblewrap's own is a deleted file, which cannot be mounted once more; this one was empty.
        program = Path(f"{tree}{first_process.PATH}")
        program.write_bytes(first_process.build_program())
        program.chmod(0o555)


def _find_sentry(record: Record, inner: int) -> process_records.Known:
    """Return the sentry by its id in the sandbox's namespace, to which its parent belongs."""
    depth = len(process_records.read_ids(record["pid"]))
    for pid in process_records.list_children(record["pid"]):
        ids = process_records.read_ids(pid)
        if len(ids) >= depth and ids[depth - 1] == inner:
            return {"pid": pid, "started": process_records.read_start(pid)}
    raise RunscError("runsc: the sentry ended right after its start")


def run_command(order: Record, channel: socket.socket, stdio: list[int]) -> None:
    """Start the ordered program on gVisor's kernel, as `nsenter.run_command` does without it.

    The process that is told to `channel` is the client that waits for the program, and ends with
    its exit code; `inner` is the program itself.
    """
    try:
        record = order["sandbox"]
        syscalls.set_undumpable()
        namespaces = nsenter.NamespaceHandles(record)
        tools = _Tools.of(record)
        cgroups.enter(record["group"])
        limits = _make_rlimits(record)
        sys.path.clear()
        sys.meta_path.clear()
        namespaces.join(syscalls.ALL_BUT_USER)
        process = _describe_process(order, namespaces)
        process["rlimits"] = limits
        namespaces.close()
        answer, handed = _start_client(order, tools, process, stdio)
        for fd in stdio:
            os.close(fd)
        protocol.send(channel, answer, handed)
        channel.recv(1)
    except BaseException as error:  # noqa: BLE001 -- the engine must learn every cause.
        protocol.send(channel, nsenter.describe(error))


def _start_client(
    order: Record, tools: _Tools, process: Record, stdio: list[int]
) -> tuple[Record, tuple[int, ...]]:
    """Return the client's process id, the program's, and the master of its terminal if any."""
    described = _make_file(json.dumps(process).encode())
    complaint = os.memfd_create("complaint", os.MFD_CLOEXEC)
    told, telling = os.pipe()
    handed: tuple[int, ...] = ()
    opens: list[tuple[Any, ...]]
    if order["size"]:
        master, name = nsenter.make_terminal(order["size"])
        handed = (master,)
        # The first terminal that the leader of a session opens becomes its controlling one.
        opens = [(os.POSIX_SPAWN_OPEN, 0, name, os.O_RDWR, 0)]
        opens += [(os.POSIX_SPAWN_DUP2, 0, target) for target in (1, 2)]
    else:
        opens = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(stdio)]
    words = [f"--log=/proc/self/fd/{complaint}", "exec", f"--process=/proc/self/fd/{described}"]
    words += [f"--internal-pid-file=/proc/self/fd/{telling}", _CONTAINER]
    client = tools.spawn(
        words,
        (described, complaint, telling),
        file_actions=opens,
        setsid=True,
        setsigmask=_FORWARDED,
    )
    for fd in (described, telling):
        os.close(fd)
    inner = os.read(told, 32)
    if not inner:
        os.waitpid(client, 0)
        raise _explain(_read_complaint(complaint), order)
    return {"pid": client, "inner": int(inner)}, handed


def kill_session(record: Record, session: int) -> None:
    """End every process of one session, named as the sandbox itself names it."""

    def kill(namespaces: nsenter.NamespaceHandles) -> None:
        tools = _Tools.of(record)
        cgroups.enter(record["group"])
        namespaces.join(syscalls.ALL_BUT_USER)
        namespaces.close()
        opens = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
        process = _make_process(
            ["/bin/sh", "-c", _KILL_SESSION], {"PATH": _PATH, "SESSION": str(session)}, ROOT_ID
        )
        described = _make_file(json.dumps(process).encode())
        words = ["exec", f"--process=/proc/self/fd/{described}", _CONTAINER]
        os.waitpid(tools.spawn(words, (described,), file_actions=opens, setsid=True), 0)

    nsenter.run_in_child(record, kill)


def _describe_process(order: Record, namespaces: nsenter.NamespaceHandles) -> Record:
    """Return the program as `runsc` wants it, after a look at what would make it fail."""
    account, groups = nsenter.find_account(order["user"], namespaces)
    cwd = order["cwd"] or account.home
    if not _is_folder(cwd):
        if order["cwd"]:
            raise FileNotFoundError(errno.ENOENT, f"cwd '{cwd}': {os.strerror(errno.ENOENT)}")
        cwd = "/"
    own = {"HOME": account.home, "USER": order["user"], "LOGNAME": order["user"]}
    env = {**own, **order["env"]}
    argv = [_find_program(order["argv"][0], env.get("PATH", _PATH), cwd), *order["argv"][1:]]
    process = _make_process(argv, env, account.uid, account.gid, groups)
    return {**process, "cwd": cwd, "terminal": bool(order["size"])}


def _make_process(
    argv: list[str], env: dict[str, str], uid: int, gid: int = ROOT_ID, groups: Any = ()
) -> Record:
    kept = list(_CAPABILITY_NAMES.values()) if uid == ROOT_ID else []
    sets = ("bounding", "effective", "permitted")
    return {
        "terminal": False,
        "user": {"uid": uid, "gid": gid, "additionalGids": list(groups), "umask": 0o022},
        "args": argv,
        "env": [f"{name}={value}" for name, value in env.items()],
        "cwd": "/",
        "capabilities": dict.fromkeys(sets, kept),
        "noNewPrivileges": True,
    }


def _make_config(record: Record, order: Record) -> Record:
    words = [first_process.PATH] if order["is_whole"] else list(_FIRST_PROCESS)
    process = _make_process(words, {"PATH": _PATH}, ROOT_ID)
    tree = f"{_STAGE}/root"
    return {
        "ociVersion": "1.0.2",
        "process": {**process, "capabilities": {}, "rlimits": _make_rlimits(record)},
        "root": {"path": tree},
        "hostname": order["hostname"],
        # Unless it is named, gVisor covers an empty /tmp with memory of its own.
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": _TMP, "type": "bind", "source": tree + _TMP, "options": ["rw"]},
        ],
        "linux": {"namespaces": [{"type": name} for name in ("pid", "ipc", "uts", "mount")]},
    }


def _make_rlimits(record: Record) -> list[Record]:
    limits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": nsenter.FILES_MAX,
        "RLIMIT_FSIZE": nsenter.find_file_bytes_max(record),
    }
    soft = {**limits, **({"RLIMIT_FSIZE": 0} if record.get("full") else {})}
    return [{"type": name, "hard": limits[name], "soft": soft[name]} for name in limits]


def _is_folder(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def _find_program(program: str, path: str, cwd: str) -> str:
    """Find a program as a shell would. Raises FileNotFoundError."""
    for folder in [cwd] if "/" in program else path.split(":"):
        found = Path(folder, program)
        with contextlib.suppress(OSError, ValueError):
            if found.is_file():
                return program if "/" in program else str(found)
    raise FileNotFoundError(errno.ENOENT, f"{program}: command not found")


def _explain(complaint: str, order: Record) -> Exception:
    if "permission denied" in complaint or "exec format" in complaint:
        return PermissionError(errno.EACCES, f"{order['argv'][0]}: Permission denied")
    return RunscError(f"runsc: {complaint}")


def _read_complaint(fd: int) -> str:
    text = os.pread(fd, 65_536, 0).decode(errors="replace").strip()
    return text.splitlines()[-1] if text else "it ended without an error message"


def _make_file(content: bytes) -> int:
    fd = os.memfd_create("process", os.MFD_CLOEXEC)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
