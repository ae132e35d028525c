"""Trying to get out: to the host's files, processes, network and kernel, and to other sandboxes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sandkeeper.engine.runtime.bubblewrap.binaries import find_uid_base
from sandkeeper.engine.runtime.bubblewrap.runtime import BubblewrapRuntime
from sandkeeper.engine.runtime.contract import Command, Egress, ResourceLimits, RuntimeFaultError
from sandkeeper.engine.runtime.egress import backends
from sandkeeper.engine.runtime.linux import cgroups, syscalls
from support.eventually import eventually
from support.isolation import not_on_gvisor
from support.runtime_helpers import ENV, Sandbox, plan, read_all

EACH_WAY_OUT = pytest.mark.parametrize(
    "backend", backends.find_all(), ids=lambda path: Path(path).name
)
BOTH = pytest.mark.parametrize("user", ["user", "root"])


@BOTH
async def test_the_hosts_files_are_not_there(sandbox: Sandbox, user: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    tries = [
        f"cat {secret}",
        f"cat /proc/1/root{secret}",
        f"cat /proc/1/cwd{secret}",
        f"cat /../../..{secret}",
        f"ls {tmp_path}/data",
        f"ls {Path.home()}/.ssh {Path.home()}/.config",
        "ls /oldroot /mnt/disk /newroot",
    ]
    for line in tries:
        said = await sandbox.run(line, user=user)
        assert said.code != 0, line
        assert "secret" not in said.out


@BOTH
async def test_no_other_process_is_seen_or_signalled(sandbox: Sandbox, user: str) -> None:
    said = await sandbox.run("ls /proc | grep -c '^[0-9]'", user=user)
    assert int(said.out) <= 6
    said = await sandbox.run(f"kill -0 {os.getpid()}", user=user)
    assert said.code != 0


@not_on_gvisor("these doors are its own kernel's; see tests/security/test_escape_probes.py")
@BOTH
async def test_the_kernels_doors_are_shut(sandbox: Sandbox, user: str) -> None:
    lines = [
        "unshare -U true",
        "unshare -n true",
        "unshare -m true",
        "mount -t tmpfs none /mnt",
        "umount /proc",
        "mknod /tmp/disk b 8 0",
        "nsenter -t 1 -m true",
        "chroot / true",
        "hostname elsewhere",
        "dmesg -C",
        "date -s 2000-01-01",
        "ip link add dummy0 type dummy",
        "ip route del blackhole 169.254.0.0/16",
        "echo 1 > /proc/sys/vm/drop_caches",
        "echo c > /proc/sysrq-trigger",
    ]
    for line in lines:
        assert (await sandbox.run(line, user=user)).code != 0, line
    status = (await sandbox.run("grep -E 'Seccomp:|NoNewPrivs' /proc/self/status", user=user)).out
    assert status.split() == ["NoNewPrivs:", str(int(not _may_sudo(user))), "Seccomp:", "2"]


@not_on_gvisor("its own kernel answers; see tests/security/test_escape_probes.py")
async def test_forbidden_calls_are_refused_one_by_one(sandbox: Sandbox) -> None:
    program = """
import ctypes, errno, socket
libc = ctypes.CDLL(None, use_errno=True)
def errno_of(*call):
    ctypes.set_errno(0)
    assert libc.syscall(*call) == -1, call
    return errno.errorcode[ctypes.get_errno()]
import platform
numbers = {"x86_64": (250, 321, 298, 323, 56), "aarch64": (219, 280, 241, 282, 220)}
keyctl, bpf, perf, fault, clone = numbers[platform.machine()]
print(*(errno_of(n, 0, 0, 0, 0, 0) for n in (keyctl, bpf, perf, fault)))
print(errno_of(425, 8, 0), errno_of(435, 0, 0), errno_of(clone, 0x10000000 | 17, 0, 0, 0, 0))
for family in (17, 38, 40):
    try: socket.socket(family, socket.SOCK_DGRAM); print("open")
    except OSError as error: print(errno.errorcode[error.errno])
import fcntl, termios
try: fcntl.ioctl(0, 0x5412, b"x"); print("open")
except OSError as error: print(errno.errorcode[error.errno])
"""
    said = await sandbox.run(f"python3 - <<'END'\n{program}\nEND")
    assert said.out.split() == ["EPERM"] * 4 + ["ENOSYS"] * 2 + ["EPERM"] * 5, said.err


async def test_a_user_has_no_capabilities(sandbox: Sandbox) -> None:
    said = await sandbox.run(
        "(cat /proc/self/status; grep Cap[EPI] /proc/1/status) | grep Cap | grep -vc 000000000000"
    )
    assert said.out == "0\n"


@not_on_gvisor("its status file lacks some lines; test_gvisor.py looks at the others")
@BOTH
@pytest.mark.parametrize("size", [None, (80, 24)], ids=["by pipes", "by a terminal"])
async def test_a_command_has_nothing_of_the_process_that_starts_it(
    sandbox: Sandbox, user: str, size: tuple[int, int] | None
) -> None:
    """That process has every capability, and descriptors of the host, until it has gone inside."""
    line = "ls /proc/self/fd; grep -E '^(Cap|SigBlk|NoNew|Seccomp:)' /proc/self/status"
    child = await sandbox.runtime.spawn(
        sandbox.id, Command(("/bin/sh", "-c", f"{line}; exec env"), ENV, user=user, size=size)
    )
    words = (await read_all(child.stdout)).split()
    if child.stderr is not None:
        os.close(child.stderr)
    assert await child.wait() == 0
    # The last is the folder that `ls` looks into.
    assert words[:4] == ["0", "1", "2", "3"]
    has_range = find_uid_base() is not None
    kept = syscalls.ROOT_CAPABILITIES if user == "root" and has_range else 0
    # What `sudo` may give back is what the sandbox's root has, and no more.
    bound = syscalls.ROOT_CAPABILITIES if has_range else 0
    held = {name: int(value, 16) for name, value in zip(words[4:20:2], words[5:20:2], strict=True)}
    nothing = dict.fromkeys(("SigBlk:", "CapInh:", "CapAmb:"), 0)
    powers = {"CapPrm:": kept, "CapEff:": kept, "CapBnd:": bound}
    is_final = int(not _may_sudo(user))
    assert held == {**nothing, **powers, "NoNewPrivs:": is_final, "Seccomp:": 2}
    names = {entry.partition("=")[0] for entry in words[20:]}
    assert names <= {*ENV, "HOME", "USER", "LOGNAME", "PWD"}


async def test_one_sandbox_is_not_seen_from_another(
    sandbox: Sandbox, runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    await runtime.boot(plan(tmp_path, "two"))
    two = Sandbox(runtime, "two")
    await sandbox.run("echo private > /tmp/private; echo private > ~/private")
    await sandbox.start("sleep 31337")
    await sandbox.start("python3 -m http.server 8000 --bind 127.0.0.1")
    said = await two.run("cat /tmp/private ~/private; ps -ef | grep -v grep | grep 31337")
    assert said.out == ""
    said = await two.run("timeout 2 bash -c '</dev/tcp/127.0.0.1/8000'")
    assert said.code != 0


@EACH_WAY_OUT
async def test_the_hosts_loopback_and_metadata_are_out_of_reach(
    data: Path, tmp_path: Path, backend: str
) -> None:
    """With the widest egress, nothing on the host answers, by whichever address."""
    runtime = BubblewrapRuntime(data, backend=backend)
    await runtime.start()
    await runtime.boot(plan(tmp_path, "wide", egress=Egress()))
    sandbox = Sandbox(runtime, "wide")
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", "10.0.2.2", _own_address(), "169.254.169.254"):
            said = await sandbox.run(f"timeout 3 bash -c '</dev/tcp/{host}/{port}'")
            assert said.code != 0, host
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert (await sandbox.run("ip route | grep -c default")).out == "1\n"
    await runtime.close()


@EACH_WAY_OUT
async def test_allow_and_deny_lists_hold_and_can_be_changed(
    data: Path, tmp_path: Path, backend: str
) -> None:
    runtime = BubblewrapRuntime(data, backend=backend)
    await runtime.start()
    own = _own_address()
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        allowing = Egress(allow_out=(f"{own}/32",), deny_out=("0.0.0.0/0",))
        await runtime.boot(plan(tmp_path, "narrow", egress=allowing))
        sandbox = Sandbox(runtime, "narrow")

        async def reaches() -> bool:
            said = await sandbox.run(f"timeout 5 bash -c '</dev/tcp/{own}/{port}'")
            return said.code == 0

        assert await reaches()
        assert (await sandbox.run("ip route | grep -c default")).out == "0\n"
        await runtime.set_egress("narrow", Egress(internet=False))
        assert not await reaches()
        await runtime.set_egress("narrow", allowing)
        assert await reaches()
        await runtime.set_egress("narrow", Egress(deny_out=(f"{own}/32",)))
        assert not await reaches()
    for refused in (("example.com",), ("169.254.169.254/32",), ("fd00::/8",)):
        with pytest.raises(RuntimeFaultError):
            await runtime.set_egress("narrow", Egress(allow_out=refused))
    await runtime.close()


@not_on_gvisor("a fork bomb ends its own sandbox; see test_gvisor.py")
async def test_a_fork_bomb_stays_inside(
    sandbox: Sandbox, runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    await runtime.boot(plan(tmp_path, "bomb", limits=ResourceLimits(pids_max=64)))
    bomb = Sandbox(runtime, "bomb")
    await bomb.start("while :; do sleep 1000 & done 2>/dev/null")

    def count() -> int:
        inside = Path(f"/proc/self/fd/{runtime.root('bomb')}/proc")
        return sum(path.name.isdigit() for path in inside.iterdir())

    await eventually(lambda: count() > 55)
    assert count() < 75
    assert (await sandbox.run("echo untouched")).out == "untouched\n"
    await runtime.halt("bomb")
    assert runtime.living() == [sandbox.id]


@not_on_gvisor("too much memory ends the sandbox; see test_gvisor.py")
@pytest.mark.skipif(cgroups.find_parents() is None, reason="no control groups for this user")
async def test_memory_is_limited(runtime: BubblewrapRuntime, tmp_path: Path) -> None:
    await runtime.boot(plan(tmp_path, "small", limits=ResourceLimits(memory_mb=64)))
    sandbox = Sandbox(runtime, "small")
    said = await sandbox.run("python3 -c 'x = bytearray(300 << 20); print(len(x))'")
    assert said.code != 0
    assert (await sandbox.run("echo alive")).out == "alive\n"


async def test_one_file_cannot_take_the_last_of_the_disk(sandbox: Sandbox) -> None:
    said = await sandbox.run("ulimit -f")
    room = os.statvfs("/")
    assert said.out.strip() != "unlimited"
    assert int(said.out) * 1024 < room.f_blocks * room.f_frsize


async def test_the_mount_table_of_the_host_does_not_change(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    await eventually(lambda: sandbox.runtime.is_alive(sandbox.id))


def _may_sudo(user: str) -> bool:
    """Return whether a user's programs may become the root of their sandbox."""
    return user != "root" and find_uid_base() is not None


def _own_address() -> str:
    """Return an address of this machine that is not loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has loopback only")
        return str(sock.getsockname()[0])
