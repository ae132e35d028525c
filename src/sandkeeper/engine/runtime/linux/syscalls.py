"""The few system calls Python has no name for.

Used by the spawner, so this module imports next to nothing.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
ALL_BUT_USER = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
)

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_NS_GET_USERNS = 0xB701
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1

# These three have the same number on every architecture.
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442
_SYS_CAPGET = {"x86_64": 125, "aarch64": 90}.get(platform.machine(), -1)
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}.get(platform.machine(), -1)
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = 0o2000000
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_IDMAP = 0x00100000
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITIES_MAX = 64

ROOT_CAPABILITIES = (
    1 << 0  # CHOWN
    | 1 << 1  # DAC_OVERRIDE
    | 1 << 3  # FOWNER
    | 1 << 4  # FSETID
    | 1 << 5  # KILL
    | 1 << 6  # SETGID
    | 1 << 7  # SETUID
    | 1 << 10  # NET_BIND_SERVICE
)
"""What a sandbox's root may do to the sandbox's own files and processes; none reaches beyond."""
ALL_CAPABILITIES = (1 << _CAPABILITIES_MAX) - 1
SPAWNER_CAPABILITIES = (
    1 << 0  # CHOWN: gives a new disk to the sandbox's root
    | 1 << 1  # DAC_OVERRIDE: walks into disks and data that belong to those ids
    | 1 << 3  # FOWNER: sets their modes
    | 1 << 5  # KILL: ends them
    | 1 << 6  # SETGID: gives a sandbox its groups
    | 1 << 7  # SETUID: gives a sandbox its users
    | 1 << 8  # SETPCAP: drops everything not in this list
    | 1 << 10  # NET_BIND_SERVICE: for the programs that connect sandboxes, as the next but one
    | 1 << 12  # NET_ADMIN: makes its network device and routes
    | 1 << 13  # NET_RAW
    | 1 << 18  # SYS_CHROOT: returns from the mount namespace in which a disk was prepared
    | 1 << 19  # SYS_PTRACE: opens the namespaces of processes with other ids
    | 1 << 21  # SYS_ADMIN: makes and joins namespaces, mounts
)
"""What the spawner of an engine that is root keeps for as long as it lives, and why."""

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def setns(fd: int, kinds: int) -> None:
    """Join the namespaces of the given kinds; the descriptor is one of nsfs or a pidfd."""
    _check(_libc.setns(fd, kinds), "setns")


def unshare(kinds: int) -> None:
    _check(_libc.unshare(kinds), "unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()
    )
    _check(result, f"mount {source} on {target}")


def bind(source: str, target: str) -> None:
    mount(source, target, "", MS_BIND)


def make_read_only(target: str, flags: int) -> None:
    """Make a mount read-only where it is; `flags` are the others that it shall have."""
    mount("", target, "", MS_REMOUNT | MS_BIND | MS_RDONLY | flags)


def bind_mapped(source: str, target: str, user_namespace: int) -> None:
    """Bind a folder read-only so that its owners appear as the user namespace's own ids."""
    tree = _check(
        _libc.syscall(
            _SYS_OPEN_TREE, _AT_FDCWD, source.encode(), _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC
        ),
        f"open_tree {source}",
    )
    try:
        wanted = _MOUNT_ATTR_IDMAP | _MOUNT_ATTR_RDONLY
        attributes = struct.pack("QQQQ", wanted, 0, 0, user_namespace)
        _check(
            _libc.syscall(
                _SYS_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes)
            ),
            f"mount_setattr {source}",
        )
        _check(
            _libc.syscall(
                _SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, target.encode(), _MOVE_MOUNT_F_EMPTY_PATH
            ),
            f"move_mount {target}",
        )
    finally:
        os.close(tree)


def owner_of(namespace: int) -> int:
    """Return a descriptor of the user namespace that owns a namespace."""
    return fcntl.ioctl(namespace, _NS_GET_USERNS)


def become_subreaper() -> None:
    """Let orphans below this process become its children."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl subreaper")


def set_undumpable() -> None:
    """Keep other processes of the user from inspecting this one until it execs."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl dumpable")


def bound_capabilities(kept: int = 0) -> None:
    """Drop every capability that an exec could bring back, except those of the mask."""
    for capability in range(_CAPABILITIES_MAX):
        if kept >> capability & 1:
            continue
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            if ctypes.get_errno() == errno.EINVAL:
                return
            _check(-1, "prctl bounding set")


def set_capabilities(kept: int = 0) -> None:
    """Hold exactly the capabilities of the mask, and pass none on."""
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    low = kept & 0xFFFFFFFF
    high = kept >> 32
    _check(
        _libc.syscall(_SYS_CAPSET, header, struct.pack("6I", low, low, 0, high, high, 0)), "capset"
    )


def limit_capabilities(kept: int) -> None:
    """Drop every capability not in the mask, for this process and all that it starts."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    held = ctypes.create_string_buffer(24)
    _check(_libc.syscall(_SYS_CAPGET, header, held), "capget")
    _effective, low, _inheritable, _high_effective, high, _rest = struct.unpack("6I", held.raw)
    bound_capabilities(kept)
    set_capabilities(kept & (high << 32 | low))


def raise_loopback() -> None:
    """Bring the loopback device of the caller's network namespace up, with its addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))


def set_no_new_privileges() -> None:
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl no_new_privs")


def load_filter(program: bytes) -> None:
    """Load a seccomp filter, given as an array of BPF instructions."""
    buffer = ctypes.create_string_buffer(program, len(program))
    description = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    result = _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, description, 0, 0)
    _check(result, "prctl seccomp")
