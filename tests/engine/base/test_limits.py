"""What programs inside see of the sandbox's limits, asked through the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from e2b import AsyncSandbox, CommandExitException, NotEnoughSpaceException

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


DISK_MB = 64
WRITER = """\
import sys, time
for number in range(1000):
    try:
        with open(f"/home/user/piece-{number}", "wb") as file:
            file.write(bytes(4 << 20))
    except OSError as error:
        print(error.strerror, flush=True)
        sys.stdin.readline()
        with open("/home/user/later", "w") as file:
            file.write("it was allowed again")
        break
    time.sleep(0.05)
"""


async def test_df_tells_the_limit_and_what_is_used(runtime_server: RuntimeServer) -> None:
    running = await runtime_server.add(ResourceLimits(disk_mb=DISK_MB))
    sandbox = runtime_server.sdk(running)

    async def ask(line: str) -> list[str]:
        return (await sandbox.commands.run(f"df {line} | tail -1")).stdout.split()

    assert await ask("--output=size,target -BM /") == [f"{DISK_MB}M", "/"]
    await sandbox.commands.run("head -c 40M /dev/zero > file")

    async def tells_the_use() -> bool:
        await runtime_server.runtime.usage(running.sandbox_id)
        return int((await ask("-m ."))[2]) >= 40

    # The engine walks through a disk only now and then.
    await eventually(tells_the_use, within_s=60)
    said = await ask("-h /home/user")
    assert [said[1], said[-1]] == [f"{DISK_MB}M", "/"]
    assert await ask("--print-type /dev/shm") == await ask("-T /dev/shm")
    # What it does not know, the machine's own program answers.
    assert (await ask("--total /"))[0] == "total"
    await runtime_server.end(running)


async def test_a_full_disk_can_be_deleted_from_and_then_be_written_again(
    runtime_server: RuntimeServer,
) -> None:
    running = await runtime_server.add(ResourceLimits(disk_mb=DISK_MB))
    sandbox, runtime = runtime_server.sdk(running), runtime_server.runtime
    with pytest.raises(CommandExitException):
        await sandbox.commands.run("head -c 100M /dev/zero > one-file")
    size = (await sandbox.commands.run("stat -c %s one-file; rm one-file")).stdout
    assert int(size) <= DISK_MB << 20
    await sandbox.files.write("writer.py", WRITER)
    said: list[str] = []
    writer = await sandbox.commands.run(
        "python3 writer.py", background=True, stdin=True, on_stdout=said.append
    )

    async def is_full() -> bool:
        # The engine measures running sandboxes every few seconds.
        usage = await runtime.usage(running.sandbox_id)
        assert usage.disk_total == DISK_MB << 20
        return runtime.is_full(running.sandbox_id)

    await eventually(is_full)
    await eventually(lambda: "File too large\n" in said)
    with pytest.raises(CommandExitException):
        await sandbox.commands.run("echo more > more", user="root")
    with pytest.raises(NotEnoughSpaceException):
        await sandbox.files.write("more", "more")
    await sandbox.commands.run("rm piece-*")
    assert not await is_full()
    await sandbox.commands.send_stdin(writer.pid, "go on\n")
    await writer.wait()
    assert await sandbox.files.read("later") == "it was allowed again"
    await runtime_server.end(running)
