"""What programs inside see of the sandbox's limits, asked through the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from e2b import AsyncSandbox

from sandkeeper.engine.runtime.contract import ResourceLimits
from sandkeeper.engine.runtime.linux import cgroups
from support.eventually import eventually
from support.isolation import not_on_gvisor
from support.runtime_server import RuntimeServer

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    not_on_gvisor("its own kernel shows what it has itself"),
]

MEMORY_MB = 320
COUNT_PROCESSORS = (
    "nproc; getconf _NPROCESSORS_ONLN; grep -c ^processor /proc/cpuinfo;"
    "python3 -c 'import os; print(os.cpu_count())'"
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small(runtime_server: RuntimeServer) -> AsyncIterator[AsyncSandbox]:
    running = await runtime_server.add(ResourceLimits(cpu_count=1, memory_mb=MEMORY_MB))
    yield runtime_server.sdk(running)
    await runtime_server.end(running)


async def read_memory(sandbox: AsyncSandbox, user: str = "user") -> dict[str, int]:
    said = (await sandbox.commands.run("free -m", user=user)).stdout.splitlines()
    return dict(zip(said[0].split(), map(int, said[1].split()[1:]), strict=True))


@pytest.mark.parametrize("user", ["user", "root"])
async def test_memory_and_processors_are_those_of_the_sandbox(
    small: AsyncSandbox, user: str
) -> None:
    assert (await read_memory(small, user))["total"] == MEMORY_MB
    said = await small.commands.run(COUNT_PROCESSORS, user=user)
    assert set(said.stdout.split()) == {"1"}


@pytest.mark.skipif(cgroups.find_parents() is None, reason="nothing counts its memory")
async def test_memory_in_use_is_counted_at_each_command(small: AsyncSandbox) -> None:
    before = await read_memory(small)
    holder = "import sys; held = bytearray(100 << 20); print(1, flush=True); sys.stdin.read()"
    said: list[str] = []
    running = await small.commands.run(
        f'python3 -c "{holder}"', background=True, stdin=True, on_stdout=said.append
    )
    await eventually(lambda: bool(said))
    during = await read_memory(small)
    assert during["used"] - before["used"] > 80
    assert before["available"] - during["available"] > 80
    await running.kill()


async def test_a_sandbox_without_fewer_processors_has_those_of_the_machine(
    sandbox: AsyncSandbox,
) -> None:
    said = (await sandbox.commands.run(COUNT_PROCESSORS)).stdout.split()
    assert len(set(said)) == 1
    assert int(said[0]) <= ResourceLimits().cpu_count
