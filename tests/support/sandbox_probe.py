"""One sandbox as an attacker has it, from inside and by the SDK, and as the host sees it."""

from __future__ import annotations

import contextlib
import json
import os
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2b import AsyncSandbox

from sandkeeper.engine.runtime.bubblewrap import binaries
from sandkeeper.engine.sandboxes.routing import RunningSandbox
from support.process_leaks import get_first_process
from support.runtime_helpers import CommandResult, Sandbox
from support.runtime_server import RuntimeServer

RANGE_LENGTH = 65_536


@dataclass(frozen=True, slots=True)
class HostIds:
    """Every id of one process, as the host's own user namespace numbers them."""

    pid: int
    name: str
    uids: tuple[int, ...]
    gids: tuple[int, ...]
    groups: tuple[int, ...]


class SandboxProbe:
    """A sandbox of a runtime server: shell and SDK inside, its processes from outside."""

    def __init__(self, runtime_server: RuntimeServer, sandbox: RunningSandbox) -> None:
        self.id = sandbox.sandbox_id
        self.data = runtime_server.data
        self.runtime = runtime_server.runtime
        self.sdk: AsyncSandbox = runtime_server.sdk(sandbox)
        self._shell = Sandbox(runtime_server.runtime, sandbox.sandbox_id)

    @property
    def first(self) -> int:
        return get_first_process(self.data, self.id)

    async def run(self, line: str, user: str = "user") -> CommandResult:
        """Run a line of shell. Raises RuntimeFaultError where the engine refuses to."""
        return await self._shell.run(line, user=user)

    async def ask(self, program: str, user: str = "user") -> Any:
        """Run a Python program inside and give what it printed as JSON."""
        said = await self.run(f"python3 - <<'END'\n{textwrap.dedent(program)}\nEND", user)
        assert said.code == 0, said.err
        return json.loads(said.out)

    async def set_passwd(self, text: str | bytes) -> None:
        """Write the user database by the files API, as the ordinary user."""
        await self.sdk.files.write("/etc/passwd", text)

    async def set_group(self, text: str | bytes) -> None:
        await self.sdk.files.write("/etc/group", text)

    def list_processes(self) -> list[HostIds]:
        """Return every process of the sandbox, found on the host by its process namespace."""
        return list_inside(self.first)


def list_inside(first: int) -> list[HostIds]:
    """Return every process of the sandbox with this first process."""
    inside = Path(f"/proc/{first}/ns/pid").stat().st_ino
    found = []
    for pid in list_pids():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if Path(f"/proc/{pid}/ns/pid").stat().st_ino == inside:
                found.append(read_ids(pid))
    return found


def list_pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def read_ids(pid: int) -> HostIds:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)

    def numbers(name: str) -> tuple[int, ...]:
        return tuple(int(one) for one in fields[name].split())

    return HostIds(pid, fields["Name"].strip(), numbers("Uid"), numbers("Gid"), numbers("Groups"))


def assert_outside_host_ids(found: HostIds) -> None:
    """Assert that a process of a sandbox has no identity that means anything to the host."""
    base = binaries.find_uid_base()
    if base is None:
        assert set(found.uids) == {os.getuid()}, found
        assert set(found.gids) == {os.getgid()}, found
        assert set(found.groups) <= set(os.getgroups()), found
    else:
        own = range(base, base + RANGE_LENGTH)
        assert all(one in own for one in (*found.uids, *found.gids, *found.groups)), found
