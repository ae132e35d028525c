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
        lines = os.pread(self._status, _STATUS_BYTES, 0).splitlines()
        fields = dict(line.split(b":", 1) for line in lines if b":" in line)
        ids = {
            name: tuple(int(one) for one in fields[name].split())
            for name in (b"Uid", b"Gid", b"Groups")
        }
        held = int(fields[b"CapPrm"], 16) | int(fields[b"CapEff"], 16)
        if (
            ids[b"Uid"] != (wanted.uid,) * 4
            or ids[b"Gid"] != (wanted.gid,) * 4
            or sorted(ids[b"Groups"]) != sorted(wanted.groups)
            or held & ~wanted.capabilities
        ):
            raise WrongIdentityError(
                f"nothing was executed: this process should be {wanted} but is {ids}, "
                f"with capabilities {held:x}"
            )


def check_inside(uid: int, gid: int, groups: list[int]) -> None:
    """Raise WrongIdentityError unless these are all ids of this process in its user namespace."""
    found = (os.getresuid(), os.getresgid(), sorted(os.getgroups()))
    if found != ((uid,) * 3, (gid,) * 3, sorted(groups)):
        raise WrongIdentityError(
            f"nothing was executed: this process should be {uid}:{gid} with the groups {groups} "
            f"in the sandbox but is {found}"
        )
