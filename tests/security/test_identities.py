"""Trying to become another user of the host by what a sandbox writes into its own user database."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from e2b.exceptions import AuthenticationException, SandboxException

from sandkeeper.engine.runtime.bubblewrap import identity
from sandkeeper.engine.runtime.contract import Command, RuntimeFaultError
from sandkeeper.engine.runtime.linux import process_records, syscalls
from support.eventually import eventually
from support.process_leaks import get_spawner
from support.runtime_helpers import ENV
from support.runtime_server import RuntimeServer
from support.sandbox_probe import SandboxProbe, assert_outside_host_ids

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = "root:x:0:0:root:/root:/bin/bash\n"
USER = "user:x:1000:1000::/home/user:/bin/bash\n"
NOT_IDS = {
    "minus one": "-1",
    "minus one, spelled in full": "4294967295",
    "minus two": "4294967294",
    "minus one of 64 bits": "18446744073709551615",
    "beyond the range": "65536",
    "a sign": "+1000",
    "a space before": " 1000",
    "a space behind": "1000 ",
    "a carriage return": "1000\r",
    "an underscore": "1_000",
    "full-width digits": "\uff11\uff10\uff10\uff10",
    "arabic digits": "\u0660",
    "superscript": "\u00b2",
    "empty": "",
    "hexadecimal": "0x0",
    "a fraction": "0.0",
    "a zero byte": "0\0",
    "five thousand digits": "9" * 5000,
    "five thousand zeros": "0" * 5000,
}
REFUSED = (AuthenticationException, SandboxException)
EACH_NOT_ID = pytest.mark.parametrize("text", NOT_IDS.values(), ids=NOT_IDS)
needs_range = pytest.mark.skipif(os.geteuid() != 0, reason="one id only: the engine's own")


async def _assert_refused(probe: SandboxProbe, user: str = "user") -> None:
    """Assert that nothing can be run or written as the user, and that the cause is said."""
    with pytest.raises(RuntimeFaultError, match=f"there is no user '{user}' in the sandbox"):
        await _start_and_look(probe, user)
    with pytest.raises(REFUSED, match="invalid username"):
        await probe.sdk.commands.run("true", user=user)
    with pytest.raises(REFUSED, match="invalid username"):
        await probe.sdk.files.write("/tmp/made", "x", user=user)


async def _start_and_look(probe: SandboxProbe, user: str) -> None:
    """Start a program, and fail by its identity if it has a wrong one on the host."""
    child = await probe.runtime.spawn(probe.id, _sleep(user))
    try:
        for process in probe.list_processes():
            assert_outside_host_ids(process)
    finally:
        child.signal(9)


def _sleep(user: str) -> Command:
    return Command(("/bin/sleep", "1000"), ENV, user=user, stdin=False)


@EACH_NOT_ID
async def test_a_user_whose_uid_is_no_id_does_not_exist(probe: SandboxProbe, text: str) -> None:
    await probe.set_passwd(f"{ROOT}user:x:{text}:1000::/home/user:/bin/bash\n")
    await _assert_refused(probe)


@EACH_NOT_ID
async def test_a_user_whose_gid_is_no_id_does_not_exist(probe: SandboxProbe, text: str) -> None:
    await probe.set_passwd(f"{ROOT}user:x:1000:{text}::/home/user:/bin/bash\n")
    await _assert_refused(probe)


async def test_a_root_whose_ids_are_no_ids_does_not_exist(probe: SandboxProbe) -> None:
    await probe.set_passwd(f"root:x:-1:0:root:/root:/bin/bash\n{USER}")
    await _assert_refused(probe, "root")
    assert (await probe.run("id -u")).out == "1000\n"


async def test_root_inside_cannot_write_itself_another_identity(probe: SandboxProbe) -> None:
    line = "sed -i 's/^user:x:1000:1000/user:x:-1:1000/' /etc/passwd"
    assert (await probe.run(line, "root")).code == 0
    await _assert_refused(probe)


async def test_of_two_lines_the_first_counts_for_commands_and_files(probe: SandboxProbe) -> None:
    await probe.set_passwd(f"{ROOT}{USER}user:x:-1:-1::/:/bin/sh\nuser:x:0:0::/:/bin/sh\n")
    assert (await probe.run("id -u; echo $HOME")).out == "1000\n/home/user\n"
    written = await probe.sdk.files.write("/home/user/made", "x")
    assert written.path == "/home/user/made"
    assert (await probe.run("find /home/user/made -printf '%U\\n'")).out == "1000\n"


async def test_an_invalid_first_line_is_not_replaced_by_a_valid_second(probe: SandboxProbe) -> None:
    await probe.set_passwd(f"{ROOT}user:x:-1:1000::/:/bin/sh\n{USER}")
    await _assert_refused(probe)


async def test_a_line_without_all_fields_hides_the_second(probe: SandboxProbe) -> None:
    await probe.set_passwd(f"{ROOT}user:x:0\n{USER}")
    await _assert_refused(probe)


@pytest.mark.parametrize("end", ["\r", "\v", "\f", "\x1c", "\x85", "\u2028"], ids=ascii)
async def test_only_a_newline_ends_a_line(probe: SandboxProbe, end: str) -> None:
    """What a shell inside takes for one line is one line to the engine."""
    await probe.set_passwd(f"{ROOT}other:x:1:1:{end}user:x:0:0::/root:/bin/sh{end}:/:\n{USER}")
    assert (await probe.run("id -u")).out == "1000\n"


async def test_a_database_that_is_too_large_names_no_user(probe: SandboxProbe) -> None:
    """Cut at any place, the last line could be another id than the one that is written there."""
    filler = "filler:x:1:1::/:/bin/sh\n" * 50_000
    await probe.set_passwd(f"{ROOT}{USER}{filler}")
    await _assert_refused(probe)


@pytest.mark.parametrize(
    "line",
    [
        "rm /etc/passwd; mkfifo /etc/passwd",
        "ln -sf /dev/zero /etc/passwd",
        "ln -sf /dev/tty /etc/passwd",
        "ln -sf /proc/self/fd/0 /etc/passwd",
        "ln -sf /proc/1/environ /etc/passwd",
        "rm /etc/passwd; ln -s /etc/passwd /etc/passwd",
        "rm /etc/passwd; mkdir /etc/passwd",
        "rm /etc/passwd",
        ": > /etc/passwd",
    ],
)
async def test_what_is_no_plain_file_names_no_user(probe: SandboxProbe, line: str) -> None:
    assert (await probe.run(line, "root")).code == 0
    await _assert_refused(probe)
    await _assert_refused(probe, "root")


async def test_a_link_stays_inside(probe: SandboxProbe, tmp_path: Path) -> None:
    outside = tmp_path / "passwd"
    outside.write_text(ROOT + USER)
    assert (await probe.run(f"ln -sf {outside} /etc/passwd", "root")).code == 0
    await _assert_refused(probe)


@pytest.mark.parametrize(
    "text", ["-1", "4294967295", "\u0660", "+27", "65536", "", "0\0"], ids=ascii
)
async def test_a_group_whose_id_is_no_id_gives_nothing(probe: SandboxProbe, text: str) -> None:
    groups = f"root:x:0:\nbad:x:{text}:user\nbad:x:0:user\ngood:x:27:user\nuser:x:1000:\n"
    await probe.set_group(groups)
    await _start_and_look(probe, "user")
    if os.geteuid() == 0:
        assert (await probe.run("id -G")).out.split() == ["1000", "27"]


@needs_range
async def test_the_first_line_of_a_group_counts(probe: SandboxProbe) -> None:
    await probe.set_group("one:x:27:user\none:x:28:user\nuser:x:1000:\n")
    assert (await probe.run("id -G")).out.split() == ["1000", "27"]


@needs_range
async def test_new_users_have_ids_of_the_sandboxes_own(probe: SandboxProbe) -> None:
    """Also those at both ends of the range, by commands and by files alike."""
    extra = "low:x:1:1::/tmp:/bin/sh\nhigh:x:65535:65535::/tmp:/bin/sh\n"
    await probe.set_passwd(f"{ROOT}{USER}{extra}")
    for name, uid in (("low", 1), ("high", 65535)):
        assert (await probe.run("id -u; id -g; id -G", name)).out.split() == [str(uid)] * 3
        await probe.sdk.files.write(f"/tmp/by-{name}", "x", user=name)
        assert (await probe.run(f"find /tmp/by-{name} -printf '%U %G\\n'")).out == f"{uid} {uid}\n"


@needs_range
async def test_a_file_written_for_a_user_is_never_the_hosts(
    probe: SandboxProbe, runtime_server: RuntimeServer
) -> None:
    await probe.set_passwd(f"{ROOT}{USER}zero:x:00:000::/tmp:/bin/sh\n")
    await probe.sdk.files.write("/tmp/by-zero", "x", user="zero")
    upper = runtime_server.data / "sandboxes" / probe.id / "upper" / "root"
    for name in ("etc/passwd", "tmp/by-zero"):
        found = (upper / name).stat()
        assert min(found.st_uid, found.st_gid) >= 2_000_000_000


async def test_no_process_of_any_sandbox_is_anyone_on_the_host(
    probe: SandboxProbe, runtime_server: RuntimeServer
) -> None:
    """Walks all processes of all sandboxes: first processes, commands, terminals, children."""
    more = [SandboxProbe(runtime_server, await runtime_server.add()) for _ in range(2)]
    children = []
    for one in (probe, *more):
        for user in ("user", "root"):
            children.append(await one.runtime.spawn(one.id, _sleep(user)))
            line = ("/bin/bash", "-c", "sleep 1000 & setsid sleep 1000 & wait")
            with_terminal = Command(line, ENV, user=user, size=(80, 24))
            children.append(await one.runtime.spawn(one.id, with_terminal))
    for one in (probe, *more):
        # The first process, and by each user one program, one shell and its two programs.
        await eventually(lambda one=one: len(one.list_processes()) >= 9)
        for process in one.list_processes():
            assert_outside_host_ids(process)
    for one in more:
        await one.runtime.halt(one.id)


@pytest.mark.root
@needs_range
async def test_the_spawner_holds_no_capability_that_it_does_not_need(probe: SandboxProbe) -> None:
    """Nor does the worker that waits for its next order, which becomes the next command."""
    spawner = get_spawner(probe.data)
    # Those that look as it does are its workers; the others are first processes of sandboxes.
    line = Path(f"/proc/{spawner}/cmdline").read_bytes()
    children = await eventually(
        lambda: [pid for pid in process_records.list_children(spawner) if _read_line(pid) == line]
    )
    for pid in (spawner, *children):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        masks = {line[:6]: int(line[7:], 16) for line in lines if line.startswith("Cap")}
        assert masks["CapInh"] == masks["CapAmb"] == 0
        for kind in ("CapPrm", "CapEff", "CapBnd"):
            assert masks[kind] & ~syscalls.SPAWNER_CAPABILITIES == 0, kind


def _read_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_a_process_that_is_not_who_it_should_be_is_found_out() -> None:
    """The kernel's answer decides: each single id that differs stops what would be executed."""
    own = identity.Identity(
        os.getuid(), os.getgid(), tuple(os.getgroups()), syscalls.ALL_CAPABILITIES
    )
    view = identity.HostView()
    try:
        view.check(own)
        identity.check_inside(own.uid, own.gid, list(own.groups))
        wrong = [
            own._replace(uid=own.uid + 1),
            own._replace(gid=own.gid + 1),
            own._replace(groups=(*own.groups, 27)),
        ]
        if os.geteuid() == 0:
            wrong.append(own._replace(capabilities=0))
        for one in wrong:
            with pytest.raises(identity.WrongIdentityError, match="nothing was executed"):
                view.check(one)
        with pytest.raises(identity.WrongIdentityError):
            identity.check_inside(own.uid + 1, own.gid, list(own.groups))
    finally:
        view.close()
