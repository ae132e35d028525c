"""Installing packages of the distribution, from a repository that is made inside."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from e2b import AsyncSandbox, CommandExitException

from sandkeeper.engine.runtime.base import packages
from sandkeeper.engine.runtime.bubblewrap.binaries import find_uid_base
from support.isolation import not_on_gvisor
from support.packages import MAKE_DEBIAN_PACKAGE

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="the host has no apt-get"),
]
HAS_RANGE = find_uid_base() is not None
needs_range = pytest.mark.skipif(not HAS_RANGE, reason="one id only")


async def run(sandbox: AsyncSandbox, line: str, user: str = "root") -> str:
    return (await sandbox.commands.run(line, user=user, timeout=120)).stdout


@needs_range
async def test_apt_get_installs_and_removes_a_package_that_has_a_user(
    sandbox: AsyncSandbox,
) -> None:
    await run(sandbox, MAKE_DEBIAN_PACKAGE)
    await run(sandbox, "apt-get update")
    await run(sandbox, "DEBIAN_FRONTEND=noninteractive apt-get install -y acorn")
    assert await run(sandbox, "acorn", "user") == "nutty\n"
    assert await run(sandbox, "stat -c %U:%G /usr/share/acorn/kept") == "acorn:mail\n"
    assert await run(sandbox, "dpkg -S /usr/bin/acorn") == "acorn: /usr/bin/acorn\n"
    assert not Path("/usr/bin/acorn").exists()
    await run(sandbox, "apt-get remove -y acorn")
    with pytest.raises(CommandExitException):
        await run(sandbox, "acorn")


@needs_range
@not_on_gvisor("there is no sudo")
async def test_a_user_installs_by_sudo(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("/tmp/make.sh", MAKE_DEBIAN_PACKAGE)
    await run(sandbox, "sudo sh /tmp/make.sh && sudo apt-get update", "user")
    await run(sandbox, "sudo apt-get install -y acorn", "user")
    assert await run(sandbox, "acorn", "user") == "nutty\n"


async def test_the_packages_of_the_host_count_as_installed(sandbox: AsyncSandbox) -> None:
    assert "install ok installed" in await run(sandbox, "dpkg -s dpkg")
    assert await run(sandbox, "dpkg -S /usr/bin/dpkg") == "dpkg: /usr/bin/dpkg\n"


@pytest.mark.skipif(HAS_RANGE, reason="it works here")
async def test_without_more_ids_it_says_what_to_do(sandbox: AsyncSandbox) -> None:
    for user in ("user", "root"):
        with pytest.raises(CommandExitException, match="apt-get install uidmap"):
            await run(sandbox, "apt-get install -y acorn", user)


async def test_settings_with_a_password_are_left_out(tmp_path: Path) -> None:
    """Nor are hooks copied, which would run programs that a sandbox does not have."""
    source, target = tmp_path / "apt.conf.d", tmp_path / "copied"
    source.mkdir()
    for name, text in {
        "plain": "Acquire::Retries 3;",
        "proxy": 'Acquire::http::Proxy "http://me:secret@proxy.example:3128";',
        "hook": 'DPkg::Post-Invoke { "systemctl reload acorn"; };',
        "mirror": "deb https://mirror.example/debian stable main",
    }.items():
        (source / name).write_text(text)
    packages.copy_settings(source, target)
    assert sorted(path.name for path in target.iterdir()) == ["mirror", "plain"]
