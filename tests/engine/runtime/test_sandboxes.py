"""A sandbox's life: boot, run, reach, freeze, halt; on any identity the tests run as."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from sandkeeper.engine.envd.files.ownership import create_as_user
from sandkeeper.engine.runtime.bubblewrap import interception
from sandkeeper.engine.runtime.bubblewrap.runtime import BubblewrapRuntime
from sandkeeper.engine.runtime.contract import (
    Command,
    NotAliveError,
    NothingListensError,
    RuntimeFaultError,
)
from support.eventually import eventually
from support.isolation import IS_GVISOR, not_on_gvisor
from support.runtime_helpers import ENV, Sandbox, plan, read_all

SERVER = "python3 -m http.server {port} --bind {host}"


async def test_a_command_runs_as_the_user_in_its_home(sandbox: Sandbox) -> None:
    said = await sandbox.run("whoami; pwd; hostname; echo oops >&2; exit 7")
    assert (said.code, said.out, said.err) == (7, "user\n/home/user\ne2b.local\n", "oops\n")


async def test_a_login_shell_and_the_usual_programs_are_there(sandbox: Sandbox) -> None:
    said = await sandbox.run("bash -lc 'python3 --version && git --version && awk 1 /dev/null'")
    assert said.code == 0, said.err
    assert "Python 3" in said.out


@not_on_gvisor("rules are refused there")
async def test_what_is_opened_to_a_name_comes_to_the_engine(sandbox: Sandbox) -> None:
    """Without a way out, for root and user, and as often as the names change."""
    authority = "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"
    read = f"timeout 30 bash -c 'cat </dev/tcp/{{}}/{{}}'; tail -n1 {interception.BUNDLE}"
    await sandbox.run("echo 192.0.2.7 mine.example >> /etc/hosts", user="root")
    for name in ("one.example", "two.example"):
        sockets = await sandbox.runtime.intercept(sandbox.id, [name], authority)
        for port, sock in zip(interception.PORTS, sockets, strict=True):
            asking = asyncio.create_task(sandbox.run(read.format(name, port)))
            connection, _from = await asyncio.get_running_loop().sock_accept(sock)
            connection.sendall(b"hello\n")
            connection.close()
            sock.close()
            assert (await asking).out == "hello\n-----END CERTIFICATE-----\n"
    assert await sandbox.runtime.intercept(sandbox.id, [], authority) == []
    hosts = (await sandbox.run("cat /etc/hosts")).out
    assert "mine.example" in hosts
    assert ".example # by" not in hosts


async def test_root_changes_what_belongs_to_root(sandbox: Sandbox) -> None:
    said = await sandbox.run(
        "whoami; touch /etc/mine /usr/local/bin/mine /home/user/mine && echo /etc/min*", user="root"
    )
    assert (said.code, said.out) == (0, "root\n/etc/mine\n"), said.err


async def test_an_unknown_user_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(RuntimeFaultError, match="no user 'mallory'"):
        await sandbox.run("true", user="mallory")


async def test_a_missing_program_and_a_missing_folder_are_named(sandbox: Sandbox) -> None:
    with pytest.raises(FileNotFoundError, match="nosuch: command not found"):
        await sandbox.runtime.spawn(sandbox.id, Command(("nosuch",), ENV))
    with pytest.raises(FileNotFoundError, match="cwd '/nosuch'"):
        await sandbox.runtime.spawn(sandbox.id, Command(("true",), ENV, cwd="/nosuch"))


async def test_input_reaches_the_process_until_it_is_closed(sandbox: Sandbox) -> None:
    child = await sandbox.start("cat; echo done", stdin=True)
    assert child.stdin is not None
    os.write(child.stdin, b"hello ")
    child.close_stdin()
    assert await read_all(child.stdout) == "hello done\n"
    assert await child.wait() == 0


async def test_arguments_and_environment_may_be_large(sandbox: Sandbox) -> None:
    big = "x" * 100_000
    command = Command(("bash", "-c", 'echo "${#BIG} ${#0}"', big), {**ENV, "BIG": big})
    child = await sandbox.runtime.spawn(sandbox.id, command)
    assert await read_all(child.stdout) == "100000 100000\n"
    await child.wait()


async def test_a_terminal_has_its_size_and_can_be_resized(sandbox: Sandbox) -> None:
    line = "tty; stty size; trap 'stty size; exit 3' WINCH; echo ok; while :; do sleep 0.05; done"
    child = await sandbox.runtime.spawn(
        sandbox.id, Command(("bash", "-c", line), ENV, size=(100, 30))
    )
    seen = bytearray()

    def has(words: bytes) -> bool:
        assert child.stdout is not None
        with contextlib.suppress(OSError):
            seen.extend(os.read(child.stdout, 4096))
        return words in seen

    # A terminal has no name on gVisor's kernel.
    name = b"not a tty" if IS_GVISOR else b"/dev/pts/0"
    await eventually(lambda: has(name + b"\r\n30 100\r\nok"))
    child.resize(80, 24)
    assert await child.wait() == 3
    await eventually(lambda: has(b"24 80"))
    assert child.stdout is not None
    os.close(child.stdout)


async def test_a_signal_reaches_the_process_and_kill_its_whole_session(sandbox: Sandbox) -> None:
    gentle = await sandbox.start("exec sleep 1000")
    gentle.signal(signal.SIGTERM)
    assert await gentle.wait() == -signal.SIGTERM
    # Job control puts the sleeper into a process group of its own; only the session holds both.
    stubborn = await sandbox.start("set -m; sleep 4242 & echo started; wait")
    await eventually(lambda: _peek(stubborn.stdout) == b"started\n")
    stubborn.signal(signal.SIGKILL)
    assert await stubborn.wait() == -signal.SIGKILL
    await eventually(lambda: _has_no(sandbox, "4242"))
    stubborn.signal(signal.SIGKILL)


async def test_a_port_is_reached_on_either_loopback(sandbox: Sandbox) -> None:
    with pytest.raises(NothingListensError):
        await sandbox.runtime.dial(sandbox.id, 8000)
    loop = asyncio.get_running_loop()
    for port, host in ((8000, "127.0.0.1"), (8001, "::1")):
        await sandbox.start(SERVER.format(port=port, host=host))
        await eventually(lambda port=port: _listens(sandbox, port))
        for _ in range(12):
            sock = await sandbox.runtime.dial(sandbox.id, port)
            await loop.sock_sendall(sock, b"GET / HTTP/1.0\r\n\r\n")
            assert (await loop.sock_recv(sock, 9)) == b"HTTP/1.0 "
            sock.close()


async def test_a_frozen_sandbox_stands_still_and_goes_on(sandbox: Sandbox) -> None:
    await sandbox.start("i=0; while :; do echo $((i+=1)) > count; sleep 0.01; done")
    way = f"/proc/self/fd/{sandbox.runtime.root(sandbox.id)}/home/user/count"

    def count() -> str:
        return Path(way).read_text() if Path(way).exists() else ""

    await eventually(lambda: count() > "1")
    await sandbox.runtime.freeze(sandbox.id)
    await sandbox.runtime.freeze(sandbox.id)
    assert sandbox.runtime.is_frozen(sandbox.id)
    before = count()
    await asyncio.sleep(0.1)
    assert count() == before
    with pytest.raises(RuntimeFaultError, match="frozen"):
        await sandbox.run("true")
    await sandbox.runtime.thaw(sandbox.id)
    assert not sandbox.runtime.is_frozen(sandbox.id)
    await eventually(lambda: count() not in {before, ""})


async def test_halt_leaves_nothing_but_the_disk(
    sandbox: Sandbox, runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    await sandbox.run("echo kept > file")
    child = await sandbox.start("sleep 1000")
    await sandbox.runtime.freeze(sandbox.id)
    await sandbox.runtime.halt(sandbox.id)
    await sandbox.runtime.halt(sandbox.id)
    assert await child.wait() == -signal.SIGKILL
    assert sandbox.runtime.living() == []
    assert list((tmp_path / "data/run").iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert list(Path("/sys/fs/cgroup").glob(f"**/{runtime.group_prefix}*")) == []
    for act in (sandbox.run("true"), sandbox.runtime.dial(sandbox.id, 80)):
        with pytest.raises(NotAliveError):
            await act
    await sandbox.runtime.boot(plan(tmp_path, "one"))
    assert (await sandbox.run("cat file")).out == "kept\n"


async def test_killing_everything_inside_does_not_end_the_sandbox(sandbox: Sandbox) -> None:
    await sandbox.run("kill -9 -1; kill -9 1")
    assert (await sandbox.run("echo alive")).out == "alive\n"


async def test_orphans_are_reaped(sandbox: Sandbox) -> None:
    await sandbox.run("for i in 1 2 3; do (sleep 0.01 &) ; done")

    async def only_the_first_and_its_own() -> bool:
        return (await sandbox.run("ps -eo stat= | grep -c Z")).out == "0\n"

    await eventually(only_the_first_and_its_own)


async def test_a_copied_disk_is_a_layer_of_another_sandbox(
    sandbox: Sandbox, runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    await sandbox.run(
        "echo one > a; ln -s a link; rm /etc/bash.bashrc; mkdir /usr/local/share/deep", user="root"
    )
    layer = tmp_path / "layer"
    await runtime.copy_disk(tmp_path / "disks/one/upper", layer)
    await runtime.boot(plan(tmp_path, "two", layers=(layer,)))
    two = Sandbox(runtime, "two")
    said = await two.run(
        "cat /root/link; test ! -e /etc/bash.bashrc && echo gone; test -d /usr/local/share/deep",
        user="root",
    )
    assert (said.code, said.out) == (0, "one\ngone\n"), said.err
    await two.run("echo two > /root/a", user="root")
    assert (await sandbox.run("cat /root/a", user="root")).out == "one\n"


async def test_a_boot_that_cannot_be_leaves_nothing(
    runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeFaultError):
        await runtime.boot(plan(tmp_path, "bad", layers=(Path("/proc/version"),)))
    assert runtime.living() == []
    assert list((tmp_path / "data/run").iterdir()) == []


async def test_many_sandboxes_boot_at_once(runtime: BubblewrapRuntime, tmp_path: Path) -> None:
    names = [f"many{number}" for number in range(12)]
    await asyncio.gather(*(runtime.boot(plan(tmp_path, name)) for name in names))
    assert sorted(runtime.living()) == sorted(names)
    said = await asyncio.gather(*(Sandbox(runtime, name).run("echo $$") for name in names))
    assert {one.code for one in said} == {0}
    await asyncio.gather(*(runtime.halt(name) for name in names))


async def test_files_made_from_outside_belong_to_the_user_inside(sandbox: Sandbox) -> None:
    root = sandbox.runtime.root(sandbox.id)
    ids = sandbox.runtime.ids(sandbox.id)
    for name in ("user", "root"):
        uid, gid = ids[name]
        with create_as_user(uid, gid):
            os.close(os.open(f"home/user/by-{name}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=root))
    assert (await sandbox.run("ls; test -O by-user && echo mine")).out == "by-root\nby-user\nmine\n"


async def test_usage_tells_processor_memory_and_disk(sandbox: Sandbox) -> None:
    await sandbox.runtime.usage(sandbox.id)
    await sandbox.start("while :; do :; done")
    await eventually(lambda: _is_busy(sandbox))
    usage = await sandbox.runtime.usage(sandbox.id)
    assert usage.mem_used > 0
    assert 0 < usage.disk_used < usage.disk_total


async def test_a_discarded_folder_is_gone_at_once(
    sandbox: Sandbox, runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    await sandbox.run("mkdir -p a/b; touch a/b/c; chmod 0 a/b a")
    await runtime.halt(sandbox.id)
    await runtime.discard(tmp_path / "disks/one")
    assert not (tmp_path / "disks/one").exists()
    await runtime.discard(tmp_path / "disks/one")
    await eventually(lambda: list((tmp_path / "data/trash").iterdir()) == [])


def test_the_machine_is_described_for_doctor(tmp_path: Path) -> None:
    found = {one.name: one for one in BubblewrapRuntime(tmp_path).capabilities()}
    assert found["bubblewrap"].ok
    assert found["seccomp"].ok
    assert {"user namespaces", "overlay", "limits", "pause", "egress"} <= set(found)


def _peek(fd: int | None) -> bytes:
    assert fd is not None
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b""


async def _has_no(sandbox: Sandbox, word: str) -> bool:
    return word not in (await sandbox.run("ps -eo args | grep -v 'ps -eo'")).out


async def _listens(sandbox: Sandbox, port: int) -> bool:
    try:
        (await sandbox.runtime.dial(sandbox.id, port)).close()
    except NothingListensError:
        return False
    return True


async def _is_busy(sandbox: Sandbox) -> bool:
    return (await sandbox.runtime.usage(sandbox.id)).cpu_used_pct > 5
