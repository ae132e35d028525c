"""What the runtime's tests say often: a plan for a sandbox, and running a line of shell in one."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from sandkeeper.engine.runtime.contract import (
    BootPlan,
    Child,
    Command,
    Egress,
    ResourceLimits,
    Runtime,
)
from support.isolation import ISOLATION

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin", "LANG": "C.UTF-8"}
OFFLINE = Egress(internet=False)


def plan(
    folder: Path,
    sandbox_id: str,
    *,
    layers: tuple[Path, ...] = (),
    limits: ResourceLimits | None = None,
    egress: Egress = OFFLINE,
) -> BootPlan:
    disk = folder / "disks" / sandbox_id
    limits = limits or ResourceLimits()
    return BootPlan(sandbox_id, layers, disk / "upper", disk / "work", limits, egress, ISOLATION)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A booted sandbox to run shell lines in."""

    runtime: Runtime
    id: str

    async def start(self, line: str, *, user: str = "user", stdin: bool = False) -> Child:
        command = Command(("/bin/bash", "-c", line), ENV, user=user, stdin=stdin)
        return await self.runtime.spawn(self.id, command)

    async def run(self, line: str, *, user: str = "user") -> CommandResult:
        """Run a line to its end, reading all it says."""
        child = await self.start(line, user=user)
        out, err = await asyncio.gather(read_all(child.stdout), read_all(child.stderr))
        return CommandResult(await child.wait(), out, err)


async def read_all(fd: int | None) -> str:
    """Read a descriptor to its end and close it."""
    assert fd is not None
    loop = asyncio.get_running_loop()
    text = b""
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            try:
                while piece := os.read(fd, 65536):
                    text += piece
            except BlockingIOError:
                continue
            except OSError:
                break
            break
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    return text.decode(errors="replace")
