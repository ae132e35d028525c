"""What `sudo` in a sandbox gives: the sandbox's own root, and nothing on the host."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandkeeper.engine.runtime.bubblewrap.binaries import find_uid_base
from sandkeeper.engine.runtime.linux import syscalls
from support.eventually import eventually
from support.isolation import not_on_gvisor
from support.runtime_helpers import Sandbox, plan
from support.runtime_server import RuntimeServer
from support.sandbox_probe import SandboxProbe, assert_outside_host_ids

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    not_on_gvisor("there is no sudo"),
    pytest.mark.root,
    pytest.mark.skipif(find_uid_base() is None, reason="no ids to switch between"),
]


async def test_its_processes_have_no_id_and_no_capability_of_the_host(probe: SandboxProbe) -> None:
    line = (
        "sudo sleep 31338 & sudo -u '#65534' sleep 31338 & sudo bash -c 'sleep 31338 & wait' & wait"
    )
    await Sandbox(probe.runtime, probe.id).start(line)

    def list_sleepers() -> list[int]:
        found = (one.pid for one in probe.list_processes() if one.name == "sleep")
        return [pid for pid in found if pid != probe.first]

    sleepers = await eventually(lambda: len(list_sleepers()) >= 3 and list_sleepers())
    for found in probe.list_processes():
        assert_outside_host_ids(found)
    for pid in sleepers:
        fields = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        for kind in ("CapPrm", "CapEff", "CapBnd"):
            assert int(fields[kind], 16) & ~syscalls.ROOT_CAPABILITIES == 0, kind
        assert fields["Seccomp"] == "2"
        assert fields["CapInh"] == fields["CapAmb"] == "0" * 16


@pytest_asyncio.fixture(loop_scope="module")
async def with_foreign_files(
    runtime_server: RuntimeServer, tmp_path: Path
) -> AsyncIterator[Sandbox]:
    """A sandbox whose disk has set-uid and set-gid programs of the host's own users."""
    layer = tmp_path / "layer"
    (layer / "root/opt").mkdir(parents=True)
    for folder in (layer, layer / "root", layer / "root/opt"):
        folder.chmod(0o755)
    for name, owner in (("of-root", 0), ("of-a-person", 1000), ("of-the-engine", os.getuid())):
        program = layer / "root/opt" / name
        shutil.copyfile("/usr/bin/id", program)
        os.chown(program, owner, owner)
        program.chmod(0o6755)
    await runtime_server.runtime.boot(plan(tmp_path, "foreign", layers=(layer,)))
    yield Sandbox(runtime_server.runtime, "foreign")
    await runtime_server.runtime.halt("foreign")


async def test_a_set_uid_program_of_a_host_user_changes_nothing(
    with_foreign_files: Sandbox,
) -> None:
    sandbox = with_foreign_files
    plain = (await sandbox.run("id")).out
    assert plain.startswith("uid=1000(user)")
    for name in ("of-root", "of-a-person", "of-the-engine"):
        assert (await sandbox.run(f"/opt/{name}")).out == plain


async def test_a_file_of_the_host_stays_closed_to_it(probe: SandboxProbe, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    for path in (secret, f"/proc/1/root{secret}", "/proc/1/root/etc/shadow"):
        assert "of the host" not in (await probe.run(f"sudo cat {path}")).out
    assert (await probe.run("sudo cat /etc/shadow")).out.startswith("root:*:")
    for line in ("mount -t tmpfs none /mnt", "unshare -n true", "chroot / true"):
        said = await probe.run(f"sudo {line}")
        assert said.code != 0
        assert "not permitted" in said.err or "permission denied" in said.err
