"""Proof of who a process is on the host, before a program of a sandbox runs in it.

A process that has joined a sandbox's user namespace sees its own ids by the sandbox's numbers, and
ids that have none there look alike. A status file that was opened before shows the host's numbers
for as long as it is open.
"""

from __future__ import annotations

import os
from typing import NamedTuple

_STATUS_BYTES = 65_536


class WrongIdentityError(Exception):
    """The process is not who it was to become; nothing may be executed in it."""


class Identity(NamedTuple):
    """All ids of a process, by the host's numbers, and the most capabilities that it may have."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    capabilities: int


class HostView:
    """The identity of this process as the host sees it. Must be opened before joining."""

    def __init__(self) -> None:
        self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._status)

    def check(self, wanted: Identity) -> None:
        """Raise WrongIdentityError unless the kernel confirms every id."""
        status = os.pread(self._status, _STATUS_BYTES, 0)
        uids, gids, groups = (_read_field(status, name) for name in (b"Uid", b"Gid", b"Groups"))
        (permitted,), (effective,) = (
            _read_field(status, name, 16) for name in (b"CapPrm", b"CapEff")
        )
        if (
            uids != [wanted.uid] * 4
            or gids != [wanted.gid] * 4
            or sorted(groups) != sorted(wanted.groups)
            or (permitted | effective) & ~wanted.capabilities
        ):
            raise WrongIdentityError(
                f"nothing was executed: this process should be {wanted} but has the uids {uids}, "
                f"gids {gids}, groups {groups} and capabilities {permitted | effective:x}"
            )


def _read_field(status: bytes, name: bytes, base: int = 10) -> list[int]:
    line = status.partition(b"\n" + name + b":")[2].partition(b"\n")[0]
    return [int(one, base) for one in line.split()]


def check_inside(uid: int, gid: int, groups: list[int]) -> None:
    """Raise WrongIdentityError unless these are all ids of this process in its user namespace."""
    found = (os.getresuid(), os.getresgid(), sorted(os.getgroups()))
    if found != ((uid,) * 3, (gid,) * 3, sorted(groups)):
        raise WrongIdentityError(
            f"nothing was executed: this process should be {uid}:{gid} with the groups {groups} "
            f"in the sandbox but is {found}"
        )
