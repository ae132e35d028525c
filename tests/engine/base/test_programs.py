"""The programs that people expect in E2B's base, used as they use them, through the SDK."""

from __future__ import annotations

import shutil

import pytest
from e2b import AsyncSandbox, CommandExitException, PtySize

from sandkeeper.engine.runtime.bubblewrap.binaries import find_uid_base
from support.eventually import eventually
from support.isolation import not_on_gvisor
from support.packages import make_wheel

pytestmark = pytest.mark.asyncio(loop_scope="module")

HAS_RANGE = find_uid_base() is not None
no_sudo = not_on_gvisor("there is no sudo")
needs_range = pytest.mark.skipif(not HAS_RANGE, reason="one id only: every user is the same")


async def run(sandbox: AsyncSandbox, line: str, user: str = "user") -> str:
    return (await sandbox.commands.run(line, user=user)).stdout


async def test_google_chrome_is_a_name_of_the_hosts_browser(sandbox: AsyncSandbox) -> None:
    browsers = ("chromium", "firefox-esr", "firefox")
    host = next((one for one in browsers if shutil.which(one, path="/usr/bin")), None)
    if host is None or shutil.which("google-chrome", path="/usr/local/bin:/usr/bin"):
        pytest.skip("the machine has no browser, or this very one")
    assert f"exec {host}" in await run(sandbox, "cat $(command -v google-chrome)")
    entry = "/usr/local/share/applications/google-chrome.desktop"
    assert "Exec=google-chrome" in await run(sandbox, f"cat {entry}")


@pytest.mark.parametrize("user", ["user", "root"])
async def test_the_usual_programs_are_there(sandbox: AsyncSandbox, user: str) -> None:
    places = "/usr/local/bin:/usr/bin"
    expected = ["python", "python3", "sudo"]
    expected += [
        name for name in ("pip", "node", "npm", "git", "curl") if shutil.which(name, path=places)
    ]
    for name in expected:
        if name != "sudo":
            await run(sandbox, f"{name} --version", user)
    assert "3." in await run(sandbox, "python --version 2>&1", user)
    assert "usage" in await run(sandbox, "sudo --help", user)


@pytest.mark.parametrize("user", ["user", "root"])
async def test_a_package_is_installed_by_pip_and_found_by_a_running_program(
    sandbox: AsyncSandbox, user: str
) -> None:
    """Also if the host marks its Python as managed by its distribution."""
    name = f"walnut_{user}"
    wheel = f"/tmp/{name}-1.0-py3-none-any.whl"
    await sandbox.files.write(wheel, make_wheel(name), user=user)
    running = await sandbox.commands.run("python3 -Iiq", background=True, stdin=True, user=user)
    for line in (
        "import subprocess, sys",
        f"line = [sys.executable, '-m', 'pip', 'install', '--no-index', '{wheel}']",
        "print(subprocess.run(line).returncode)",
        f"import {name}; print({name}.TASTE)",
        "raise SystemExit",
    ):
        await sandbox.commands.send_stdin(running.pid, f"{line}\n")
    said = (await running.wait()).stdout
    assert said.splitlines()[-2:] == ["0", "bitter"], said
    # Its program is on the path, of every user.
    for other in ("user", "root"):
        assert await run(sandbox, name.replace("_", "-"), other) == "bitter\n"


async def test_npm_installs_for_all_where_any_user_may(sandbox: AsyncSandbox) -> None:
    if shutil.which("npm", path="/usr/bin:/usr/local/bin") is None:
        pytest.skip("npm is not installed")
    await run(sandbox, "mkdir -p cracker && cd cracker && echo '#!/bin/sh\necho crack' > run.sh")
    package = '{"name": "cracker", "version": "1.0.0", "bin": {"cracker": "run.sh"}}'
    await sandbox.files.write("cracker/package.json", package)
    await run(sandbox, "cd cracker && npm install --global --offline --install-links .")
    assert await run(sandbox, "cracker", "root") == "crack\n"


async def test_shared_memory_is_for_every_user_and_has_a_limit(sandbox: AsyncSandbox) -> None:
    lock = "import multiprocessing as m; lock = m.Lock(); print(lock.acquire())"
    assert await run(sandbox, f"python3 -c '{lock}'") == "True\n"
    assert await run(sandbox, "stat -c %a /dev/shm") == "1777\n"


@no_sudo
@needs_range
async def test_sudo_runs_a_command_as_root_or_another_user(sandbox: AsyncSandbox) -> None:
    assert await run(sandbox, "sudo whoami; sudo id -u; sudo -n -u '#65534' id -u") == (
        "root\n0\n65534\n"
    )
    assert await run(sandbox, "sudo touch /etc/made && stat -c %U /etc/made") == "root\n"
    assert await run(sandbox, "sudo -u user id -Gn") == await run(sandbox, "id -Gn")
    assert await run(sandbox, "sudo whoami", "root") == "root\n"
    assert await run(sandbox, "sudo -u user whoami", "root") == "user\n"
    with pytest.raises(CommandExitException, match="unknown user lurker"):
        await run(sandbox, "sudo -u lurker true")


@no_sudo
async def test_sudo_does_what_its_options_say(sandbox: AsyncSandbox) -> None:
    show = "sh -c 'echo $FOO $BAR $HOME $PATH $SUDO_USER'"
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert await run(sandbox, f"FOO=1 BAR=2 sudo {show}") == f"/root {path} user\n"
    assert await run(sandbox, f"FOO=1 sudo BAR=3 {show}") == f"3 /root {path} user\n"
    assert await run(sandbox, f"FOO=1 sudo -E {show}") == f"1 /home/user {path} user\n"
    assert await run(sandbox, f"FOO='a b' sudo --preserve-env=FOO -- {show}") == (
        f"a b /root {path} user\n"
    )
    assert await run(sandbox, "sudo -i pwd; sudo -D /tmp pwd; sudo -s 'echo $((1 + 1))'") == (
        "/root\n/tmp\n2\n"
    )
    assert await run(
        sandbox, "echo given | sudo -S cat; sudo sh -c 'exit 7' || echo $?; sudo -v"
    ) == ("given\n7\n")
    with pytest.raises(CommandExitException, match="usage"):
        await run(sandbox, "sudo")


@no_sudo
@needs_range
async def test_sudo_keeps_the_terminal_and_its_signals(sandbox: AsyncSandbox) -> None:
    """So that a shell of root has job control, and Ctrl-C ends what it runs."""
    said = bytearray()
    terminal = await sandbox.pty.create(
        size=PtySize(rows=24, cols=80), on_data=said.extend, timeout=60
    )
    await sandbox.pty.send_stdin(terminal.pid, b"sudo bash --norc\n")
    await sandbox.pty.send_stdin(terminal.pid, b"tty; sleep 1000\n")
    await eventually(lambda: b"/dev/pts/" in said)
    await sandbox.pty.send_stdin(terminal.pid, b"\x03")
    await sandbox.pty.send_stdin(terminal.pid, b"echo as-$(whoami); exit\nexit\n")
    await terminal.wait()
    assert b"as-root" in said
    assert b"no job control" not in said
