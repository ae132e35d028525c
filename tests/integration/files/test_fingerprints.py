"""A folder that the engine knows to be unchanged is not looked at again; any change is found."""

from __future__ import annotations

from e2b import AsyncSandbox

from support.file_fixtures import HOME, Filing


async def find_last_pid(native: AsyncSandbox) -> int:
    """Return the newest process id that was given out inside."""
    return int((await native.commands.run("cat /proc/loadavg")).stdout.split()[-1])


async def test_an_unchanged_folder_is_captured_without_a_process_inside(filing: Filing) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(f"cd {HOME} && echo one > a && mkdir b && sleep 0.2")
    assert (await filing.files.capture(sandbox, native)).version == 1
    seen_at = (await filing.versions.open(sandbox.owner)).version.seen_at  # type: ignore[union-attr]
    pids = [await find_last_pid(native), await find_last_pid(native)]
    again = await filing.files.capture(sandbox, native)
    pids.append(await find_last_pid(native))
    assert (again.version, again.is_new, again.files, again.changed) == (1, False, 1, 0)
    assert pids[2] - pids[1] == pids[1] - pids[0]
    assert (await filing.versions.open(sandbox.owner)).version.seen_at > seen_at  # type: ignore[union-attr]


async def test_a_change_under_the_same_size_and_time_is_captured(filing: Filing) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(f"cd {HOME} && echo one > a && sleep 0.2")
    await filing.files.capture(sandbox, native)
    await native.commands.run(
        f"cd {HOME} && touch -r a /tmp/a && echo two > a && touch -r /tmp/a a"
    )
    changed = await filing.files.capture(sandbox, native)
    assert (changed.version, changed.changed) == (2, 1)
    await native.commands.run(f"cd {HOME} && rm a")
    assert (await filing.files.capture(sandbox, native)).removed == 1


async def test_rules_that_take_a_folder_back_in_are_followed(filing: Filing) -> None:
    sandbox, native = await filing.boot()
    rule = "echo '!node_modules/' > .sandkeeperignore"
    await native.commands.run(f"cd {HOME} && mkdir node_modules && {rule} && sleep 0.2")
    await filing.files.capture(sandbox, native)
    await native.commands.run(f"cd {HOME} && echo one > node_modules/a && sleep 0.2")
    assert (await filing.files.capture(sandbox, native)).changed == 1
