"""The interface of the runtime to the rest of the engine.

The runtime knows processes, namespaces and folders. It knows nothing about HTTP, E2B's states or
the database: `lifecycle` decides, the runtime acts. Every method is idempotent. Everything works as
root and as an ordinary user.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class RuntimeFaultError(Exception):
    """The machine refused something; the message explains what, and if possible what to do."""


class NotAliveError(RuntimeFaultError):
    """The sandbox has no living first process, so nothing can be run or reached in it."""


class DiskFullError(RuntimeFaultError):
    """No space is left for the sandbox's disk."""


class NothingListensError(RuntimeFaultError):
    """No process inside the sandbox listens on that port."""


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """What one sandbox may use, enforced where the machine allows it (see `Capability`)."""

    cpu_count: int = 2
    memory_mb: int = 1024
    pids_max: int = 1024
    disk_mb: int = 10_240
    """For what the sandbox writes; its template does not count."""


@dataclass(frozen=True, slots=True)
class Egress:
    """Which part of the outside network a sandbox reaches. The host's loopback never is."""

    internet: bool = True
    allow_out: tuple[str, ...] = ()
    deny_out: tuple[str, ...] = ()
    rules: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Headers for requests to a host, by its name; the engine's egress proxy adds them."""


class Isolation(StrEnum):
    """What holds a sandbox's programs back from the host's kernel."""

    BUBBLEWRAP = "bubblewrap"
    """Namespaces and a filter; the programs call the host's kernel."""
    GVISOR = "gvisor"
    """The same, and inside it gVisor's kernel, which the programs call instead of the host's."""


@dataclass(frozen=True, slots=True)
class BootPlan:
    """All that is needed to start a sandbox's first process.

    `layers` are read-only folders, the topmost first; an empty tuple means the instant base, which
    shows the host's `/usr`; non-empty layers lie on top of the instant base, unless they are a
    whole system (`is_whole`), of which nothing is the host's. `upper` and `work` belong to this
    sandbox alone and lie on one filesystem; they are made if they are missing.
    `mounts` are writable folders of the host by the path at which the sandbox has them. `notes` are
    small files by their path below `/run`, which every start writes again.
    """

    sandbox_id: str
    layers: tuple[Path, ...]
    upper: Path
    work: Path
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    egress: Egress = field(default_factory=Egress)
    isolation: Isolation = Isolation.BUBBLEWRAP
    is_whole: bool = False
    mounts: Mapping[str, Path] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Command:
    """One process to start inside a sandbox.

    `user` is a name of the sandbox's own passwd file, which at first has `user` and `root`. With
    `size` (columns, rows) it gets a terminal; without, pipes. `label` is kept beside the process
    for its whole life, also over a crash of the engine, and handed back by `children`.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    user: str = "user"
    cwd: str | None = None
    size: tuple[int, int] | None = None
    stdin: bool = True
    label: bytes = b""


class Child(Protocol):
    """A process started by `spawn`, or found again after the engine's restart.

    The descriptors belong to the caller, who closes them. They are non-blocking. With a terminal,
    `stdout` is the terminal's master (read and write), `stderr` and `stdin` are None. A child
    outlives the engine: its pipes are held open elsewhere, and a new engine gets them again.
    """

    pid: int
    """The process id as the sandbox's own processes see it."""
    label: bytes
    stdout: int | None
    stderr: int | None
    stdin: int | None

    async def wait(self) -> int:
        """Return the exit code, or minus the signal's number. Any number of callers may wait."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the process, SIGKILL to its whole session; no-op if it has ended."""
        ...

    def close_stdin(self) -> None:
        """Close the input everywhere, so that the process reads its end; sets `stdin` to None.

        Closing the descriptor alone is not enough: the holder of the pipes has it open, too.
        """
        ...

    def resize(self, columns: int, rows: int) -> None:
        """Set the terminal's size; without a terminal this does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Usage:
    """What one sandbox uses now, in E2B's units."""

    cpu_count: int
    cpu_used_pct: float
    mem_used: int
    mem_total: int
    mem_cache: int
    disk_used: int
    disk_total: int


@dataclass(frozen=True, slots=True)
class Capability:
    """One finding of `doctor`: what was checked, what was found, and how to fix it."""

    name: str
    ok: bool
    finding: str
    fix: str | None = None


class Runtime(Protocol):
    """Makes, freezes and ends sandboxes. One per engine and data folder."""

    async def start(self) -> None:
        """Find or start the spawner, and adopt every sandbox that still lives."""
        ...

    async def close(self) -> None:
        """Release everything and leave the sandboxes running."""
        ...

    async def prove(self, isolation: Isolation) -> None:
        """Start a sandbox behind this wall and run a command. Raises if it does not work here."""
        ...

    async def boot(self, plan: BootPlan) -> None:
        """Start the first process. Raises if it cannot be made, leaving nothing behind."""
        ...

    def is_alive(self, sandbox_id: str) -> bool:
        """Return whether the sandbox's first process lives, frozen or not."""
        ...

    def is_frozen(self, sandbox_id: str) -> bool: ...

    def living(self) -> list[str]:
        """Return the ids of all living sandboxes, including those of an earlier engine."""
        ...

    async def freeze(self, sandbox_id: str) -> None:
        """Stop every process inside, without their noticing; memory stays."""
        ...

    async def thaw(self, sandbox_id: str) -> None: ...

    async def move_to_swap(self, sandbox_id: str) -> int:
        """Give back the memory of a frozen sandbox; return how many bytes. Thawing needs no more.

        A sandbox that is not frozen, or has no control group, keeps its memory.
        """
        ...

    async def halt(self, sandbox_id: str) -> None:
        """End every process inside and release its limits and mounts. The disk stays."""
        ...

    async def spawn(self, sandbox_id: str, command: Command) -> Child:
        """Start a process. Raises NotAliveError; FileNotFoundError without the program or cwd."""
        ...

    def children(self, sandbox_id: str) -> list[Child]:
        """Return the processes started by `spawn` that have not ended, also by an earlier engine.

        One that ended while no engine ran stays listed until it is waited for, so
        that its last output and its exit code can still be had.
        """
        ...

    async def dial(self, sandbox_id: str, port: int) -> socket.socket:
        """Return a connected, non-blocking socket to 127.0.0.1:port (else [::1]) inside.

        Raises NothingListensError or NotAliveError.
        """
        ...

    def root(self, sandbox_id: str) -> int:
        """Return a file descriptor of the sandbox's root folder as its processes see it.

        For `openat2` with RESOLVE_IN_ROOT only; the descriptor belongs to the runtime and is good
        until `halt`. Create through it as the sandbox's user (`create_as_user`): the engine's own
        root has no id inside, so the kernel refuses. Raises NotAliveError.
        """
        ...

    def ids(self, sandbox_id: str) -> Mapping[str, tuple[int, int]]:
        """Return the host's (uid, gid) of each valid user in the sandbox's passwd file."""
        ...

    def find_account(self, sandbox_id: str, name: str) -> tuple[tuple[int, int], str]:
        """Return the host's (uid, gid) and the home folder of one user, as `spawn` finds it.

        Raises UnknownUserError and NotAliveError.
        """
        ...

    async def set_egress(self, sandbox_id: str, egress: Egress) -> None:
        """Replace what a living sandbox may reach. Raises RuntimeFaultError where it cannot."""
        ...

    async def intercept(
        self, sandbox_id: str, names: Sequence[str], authority: str
    ) -> list[socket.socket]:
        """Lead what a living sandbox opens to these names, at ports 80 and 443, to the engine.

        Returns a listening socket for each of the two ports, which the caller closes; none without
        names. The sandbox trusts the `authority` (PEM). Good until `halt`; idempotent.
        """
        ...

    async def find_addresses(self, sandbox_id: str, name: str, *, is_allowed: bool) -> list[str]:
        """Return the addresses of a host that a sandbox may reach.

        One that `is_allowed` by its name needs no route for its addresses. Raises NotAliveError.
        """
        ...

    async def guard(self) -> None:
        """Put right what others changed on the machine and sandboxes are kept apart by."""
        ...

    async def usage(self, sandbox_id: str) -> Usage:
        """Return what a sandbox uses, and let it write only while that is within its limits."""
        ...

    def is_full(self, sandbox_id: str) -> bool:
        """Return whether the sandbox's disk had reached its limit when it was last measured."""
        ...

    async def copy_disk(self, source: Path, target: Path) -> None:
        """Copy a writable layer with owners, modes, links, xattrs and whiteouts."""
        ...

    async def discard(self, folder: Path) -> None:
        """Rename a folder out of the way and delete it in the background."""
        ...

    def capabilities(self) -> list[Capability]:
        """Return what this machine offers, for `doctor` and for refusing unsupported requests."""
        ...
