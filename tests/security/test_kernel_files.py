"""Trying to change the whole machine by the kernel's own files and by device nodes."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.engine.runtime.bubblewrap import masking
from sandkeeper.engine.runtime.linux import syscalls
from support.isolation import not_on_gvisor
from support.sandbox_probe import SandboxProbe

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    not_on_gvisor("the files in /proc and /dev are its own kernel's, not the host's"),
]

BOTH = pytest.mark.parametrize("user", ["user", "root"])
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as the host's root")
NEVER_THERE = ("/sys/firmware", "/sys/kernel", "/sys/fs/cgroup", "/sys/devices/virtual/powercap")
CLOSED = (*masking.MASKED, *masking.READ_ONLY)
SETTINGS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/fs/file-max",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/user/max_user_namespaces",
)
# Opens for writing and writes nothing; a folder is tried by all that lies below it.
LIST_WRITABLE = """
import json, os, sys
def is_open(path):
    if os.access(path, os.W_OK):
        return True
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError:
        return False
    return True
found = []
for top in {tops!r}:
    found += [top] if is_open(top) else []
    for folder, names, files in os.walk(top):
        found += [path for name in (*names, *files) if is_open(path := folder + "/" + name)]
print(json.dumps(found))
"""
# Each act leaves a node as it is: the mode, owner and times that it has already.
LIST_CHANGEABLE = """
import json, os
found = []
for path in {paths!r}:
    known = os.stat(path)
    acts = {{
        "chmod": lambda: os.chmod(path, known.st_mode & 0o7777),
        "chown": lambda: os.chown(path, known.st_uid, known.st_gid),
        "utime": lambda: os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns)),
        "setxattr": lambda: os.setxattr(path, "user.probe", b""),
    }}
    for name, act in acts.items():
        try:
            act()
        except OSError:
            continue
        found.append((name, path))
print(json.dumps(found))
"""


def _enter_and_list(probe: SandboxProbe, act: Callable[[], Any]) -> Any:
    """Act in the sandbox's mounts as the host's own root, which no identity can surpass."""
    told, told_w = os.pipe()
    mounts = os.open(f"/proc/{probe.first}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            syscalls.setns(mounts, syscalls.CLONE_NEWNS)
            os.write(told_w, json.dumps(act()).encode()[:60_000])
        finally:
            os._exit(0)
    for fd in (told_w, mounts):
        os.close(fd)
    with os.fdopen(told) as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return json.loads(answer)


@BOTH
async def test_the_kernels_files_cannot_be_written(probe: SandboxProbe, user: str) -> None:
    tops = (*CLOSED, *NEVER_THERE)
    assert await probe.ask(LIST_WRITABLE.format(tops=tops), user) == []


@BOTH
async def test_what_is_masked_tells_nothing(probe: SandboxProbe, user: str) -> None:
    """Whatever this kernel has of them is an empty file or an empty folder."""
    program = f"""
    import json, os
    there = [path for path in {masking.MASKED!r} if os.path.lexists(path)]
    def read(path):
        return os.listdir(path) if os.path.isdir(path) else open(path).read()
    print(json.dumps([there, [path for path in there if read(path)]]))
    """
    there, full = await probe.ask(program, user)
    assert there == [path for path in masking.MASKED if Path(path).exists()]
    assert "/proc/fs" in there
    assert full == []


@BOTH
async def test_settings_can_be_read(probe: SandboxProbe, user: str) -> None:
    said = await probe.run("cat /proc/sys/kernel/ostype /proc/sys/fs/file-max", user)
    assert said.code == 0
    assert said.out.startswith("Linux\n")


@BOTH
async def test_device_nodes_keep_mode_owner_and_place(probe: SandboxProbe, user: str) -> None:
    before = [_look(path) for path in masking.DEVICES]
    assert await probe.ask(LIST_CHANGEABLE.format(paths=masking.DEVICES), user) == []
    for path in masking.DEVICES:
        for line in (f"rm -f {path}", f"mv {path} {path}.old", f"ln -sfT /tmp {path}"):
            assert (await probe.run(line, user)).code != 0, line
    for path in masking.DEVICES:
        assert (await probe.run(f"test -c {path}", user)).code == 0
    assert [_look(path) for path in masking.DEVICES] == before


@BOTH
async def test_devices_still_work(probe: SandboxProbe, user: str) -> None:
    said = await probe.run(
        "echo gone > /dev/null && echo gone >> /dev/zero && head -c 4 /dev/urandom | wc -c", user
    )
    assert (said.code, said.out) == (0, "4\n")
    assert "No space left" in (await probe.run("echo much > /dev/full", user)).err


@pytest.mark.root
@needs_root
async def test_not_even_the_hosts_root_could_write_there(probe: SandboxProbe) -> None:
    """Were an identity ever wrong again, the mounts alone would hold."""

    def list_writable() -> list[str]:
        paths = [path for path in (*CLOSED, *SETTINGS) if os.path.lexists(path)]
        return [path for path in paths if os.access(path, os.W_OK)]

    assert _enter_and_list(probe, list_writable) == []


@pytest.mark.root
@needs_root
async def test_not_even_the_hosts_root_could_change_a_device_node(probe: SandboxProbe) -> None:
    def list_open() -> list[str]:
        flags = {path: os.statvfs(path).f_flag for path in masking.DEVICES}
        return [path for path, flag in flags.items() if not flag & os.ST_RDONLY]

    assert _enter_and_list(probe, list_open) == []


@BOTH
async def test_no_mask_can_be_lifted(probe: SandboxProbe, user: str) -> None:
    lines = [f"umount {path}" for path in ("/proc/fs", "/proc/sys", "/proc/kcore", "/dev/null")]
    lines += [f"mount -o remount,bind,rw {path}" for path in ("/proc/sys", "/dev/null")]
    lines += ["mount -t proc proc /mnt", "unshare -rm true", "mknod /tmp/null c 1 3"]
    for line in lines:
        assert (await probe.run(line, user)).code != 0, line


async def test_a_pause_does_not_lift_a_mask(probe: SandboxProbe) -> None:
    await probe.runtime.freeze(probe.id)
    await probe.runtime.thaw(probe.id)
    assert await probe.ask(LIST_WRITABLE.format(tops=CLOSED), "root") == []


def _look(path: str) -> tuple[int, int, int, int]:
    found = Path(path).stat()
    return stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, found.st_rdev
