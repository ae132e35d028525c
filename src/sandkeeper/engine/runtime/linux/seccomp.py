"""Which system calls a sandbox may not make, as a BPF program built by hand.

The list forbids what reaches for the machine (modules, clocks, keys, kernel memory), what makes or
joins namespaces and mounts, and what has a long record of holes (io_uring, userfaultfd, bpf). All
else is allowed: a sandbox runs ordinary programs. A refused call gives EPERM; calls that programs
probe for and can do without give ENOSYS, so that they fall back.
"""

from __future__ import annotations

import errno
import platform
import struct

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_DENIED = {
    "x86_64": {
        "acct": 163,
        "add_key": 248,
        "adjtimex": 159,
        "bpf": 321,
        "chroot": 161,
        "clock_adjtime": 305,
        "clock_settime": 227,
        "delete_module": 176,
        "finit_module": 313,
        "init_module": 175,
        "ioperm": 173,
        "iopl": 172,
        "kexec_file_load": 320,
        "kexec_load": 246,
        "keyctl": 250,
        "lookup_dcookie": 212,
        "mount": 165,
        "open_by_handle_at": 304,
        "perf_event_open": 298,
        "pivot_root": 155,
        "quotactl": 179,
        "reboot": 169,
        "request_key": 249,
        "setdomainname": 171,
        "sethostname": 170,
        "setns": 308,
        "settimeofday": 164,
        "swapoff": 168,
        "swapon": 167,
        "umount2": 166,
        "unshare": 272,
        "userfaultfd": 323,
        "vhangup": 153,
    },
    "aarch64": {
        "acct": 89,
        "add_key": 217,
        "adjtimex": 171,
        "bpf": 280,
        "chroot": 51,
        "clock_adjtime": 266,
        "clock_settime": 112,
        "delete_module": 106,
        "finit_module": 273,
        "init_module": 105,
        "kexec_file_load": 294,
        "kexec_load": 104,
        "keyctl": 219,
        "lookup_dcookie": 18,
        "mount": 40,
        "open_by_handle_at": 265,
        "perf_event_open": 241,
        "pivot_root": 41,
        "quotactl": 60,
        "reboot": 142,
        "request_key": 218,
        "setdomainname": 162,
        "sethostname": 161,
        "setns": 268,
        "settimeofday": 170,
        "swapoff": 225,
        "swapon": 224,
        "umount2": 39,
        "unshare": 97,
        "userfaultfd": 282,
        "vhangup": 58,
    },
}
# From number 403 on, every architecture has the same table.
_DENIED_EVERYWHERE = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "open_tree_attr": 467,
}
_ABSENT_EVERYWHERE = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "clone3": 435,
}
_CLONE = {"x86_64": 56, "aarch64": 220}
_IOCTL = {"x86_64": 16, "aarch64": 29}
_SOCKET = {"x86_64": 41, "aarch64": 198}

# All CLONE_NEW* flags that `clone` takes; CLONE_NEWTIME shares its bit with the exit signal there.
_NAMESPACE_FLAGS = 0x7E020000
_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
_AF_PACKET, _AF_ALG, _AF_VSOCK = 17, 38, 40

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NR, _OFFSET_ARCH, _OFFSET_ARG0, _OFFSET_ARG1 = 0, 4, 16, 24
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _refuse(number: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | number)


def _when_number(number: int, then: list[bytes]) -> list[bytes]:
    """Run `then`, which must return, for one system call; skip it for every other."""
    return [_instruction(_JUMP_EQUAL, number, 0, len(then)), *then]


def _refuse_if_argument(
    number: int, offset: int, jump: int, values: tuple[int, ...]
) -> list[bytes]:
    body = [_instruction(_LOAD, offset)]
    for value in values:
        body += [_instruction(jump, value, 0, 1), _refuse(errno.EPERM)]
    body.append(_instruction(_RETURN, _ALLOW))
    return _when_number(number, body)


def build_filter(machine: str | None = None) -> bytes | None:
    """Return the program for this machine's architecture; None if its numbers are unknown."""
    machine = machine or platform.machine()
    if machine not in _ARCH:
        return None
    lines = [
        _instruction(_LOAD, _OFFSET_ARCH),
        _instruction(_JUMP_EQUAL, _ARCH[machine], 1, 0),
        _refuse(errno.ENOSYS),
        _instruction(_LOAD, _OFFSET_NR),
    ]
    if machine == "x86_64":
        lines += [_instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1), _refuse(errno.ENOSYS)]
    for number in _ABSENT_EVERYWHERE.values():
        lines += _when_number(number, [_refuse(errno.ENOSYS)])
    for number in (*_DENIED[machine].values(), *_DENIED_EVERYWHERE.values()):
        lines += _when_number(number, [_refuse(errno.EPERM)])
    lines += _refuse_if_argument(_CLONE[machine], _OFFSET_ARG0, _JUMP_BITS, (_NAMESPACE_FLAGS,))
    lines += _refuse_if_argument(_IOCTL[machine], _OFFSET_ARG1, _JUMP_EQUAL, (_TIOCSTI, _TIOCLINUX))
    lines += _refuse_if_argument(
        _SOCKET[machine], _OFFSET_ARG0, _JUMP_EQUAL, (_AF_PACKET, _AF_ALG, _AF_VSOCK)
    )
    lines.append(_instruction(_RETURN, _ALLOW))
    return b"".join(lines)
