"""The app inside: started, seen to answer and to crash, its lines read, never awaited in vain."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sandkeeper.domain.decisions.wake import WakeStatus
from sandkeeper.domain.receipt import WakeMethod
from sandkeeper.domain.states import State
from sandkeeper.services.wake.app_monitor import AppMonitor
from support.engine_process import Engine
from support.eventually import eventually
from support.s3_bucket import serving
from support.wake_replica import PORT, Waker, browse

Make = Callable[..., Awaitable[Waker]]

NODE_APP = """
const { createServer } = require("node:http");
const { readFileSync } = require("node:fs");
createServer((_, answer) => answer.end(readFileSync("page.txt"))).listen(PORT);
""".replace("PORT", str(PORT))


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_a_node_app_serves_the_edited_files_after_its_instance_was_killed(
    waking: Make, engine: Engine
) -> None:
    waker = await waking()
    sandbox = await waker.create("shop", command=None, port=None)
    await waker.write(sandbox, "server.js", NODE_APP)
    await waker.write(sandbox, "page.txt", "edited by hand")
    native = await waker.enter(sandbox)
    await native.commands.run("chmod 755 /home/user/app/server.js")
    await waker.capture(sandbox)
    fresh = await waker.get(sandbox)
    launch = fresh.launch.__class__(
        template="base", port=PORT, start_command="node server.js", workdir="/home/user/app"
    )
    await waker.replica.store.sandboxes.save(
        fresh.evolve(launch=launch), expect_version=fresh.version, now=waker.replica.clock()
    )
    await waker.provider.kill(fresh.instance_id or "")
    wake = await waker.wake(sandbox)
    assert (wake.status, wake.method) == (WakeStatus.SUCCEEDED, WakeMethod.RECREATE)
    assert await browse(engine.url, await waker.get(sandbox)) == "edited by hand"
    mode = await (await waker.enter(sandbox)).commands.run("stat -c %a /home/user/app/server.js")
    assert mode.stdout.strip() == "755"


async def test_a_command_that_ends_or_never_opens_its_port_is_not_blamed_on_the_sandbox(
    waking: Make,
) -> None:
    waker = await waking(app_start_timeout_s=3)
    ended = await waker.create("ends", command="echo no such thing; exit 7")
    assert (ended.state, ended.run.ready) == (State.RUNNING, False)
    assert ended.wake is not None
    assert ended.wake.error_code == "app_not_ready"
    assert "exit code 7" in (ended.wake.error or "")
    said = await waker.apps.read(ended, lines=10)
    assert (said.lines, said.exit_code) == (("no such thing",), 7)

    silent = await waker.create("silent", command="echo listening nowhere; sleep 600")
    assert (silent.state, silent.run.ready) == (State.RUNNING, False)
    said = await waker.apps.read(silent, lines=10)
    assert (said.lines, said.exit_code) == (("listening nowhere",), None)
    paused = await waker.replica.lifecycle.pause(silent.id, actor="test")
    assert (await waker.apps.read(paused, lines=10)).lines == ()
    assert (await waker.get(silent)).state is State.PAUSED


async def test_the_log_of_a_talkative_app_is_bounded_while_it_runs(waking: Make) -> None:
    waker = await waking()
    sandbox = await waker.create(
        "chatty", command="seq 1 700000; echo at last; exec sleep 600", port=None
    )
    native = await waker.enter(sandbox)

    async def has_said_all() -> bool:
        return (await waker.apps.read(sandbox, lines=1)).lines == ("at last",)

    await eventually(has_said_all, within_s=60)
    said = await waker.apps.read(sandbox, lines=1000)
    assert said.lines == (*(str(number) for number in range(699_002, 700_001)), "at last")
    assert said.exit_code is None
    kept = await native.commands.run("cat /tmp/.sandkeeper/log* | wc -c")
    assert 500_000 < int(kept.stdout) < 2 * 2**20


async def test_an_app_outlives_a_place_where_its_log_cannot_be_written(waking: Make) -> None:
    waker = await waking()
    sandbox = await waker.create(
        "mute", command="mkdir -p /tmp/.sandkeeper/log; seq 1 100000; exec sleep 600", port=None
    )
    native = await waker.enter(sandbox)

    async def has_gone_on() -> bool:
        return (await native.commands.run("pgrep -fc '^sleep 600' || true")).stdout == "1\n"

    await eventually(has_gone_on, within_s=60)


async def test_a_crash_is_seen_however_many_passes_it_takes_to_ask_all_apps(waking: Make) -> None:
    waker = await waking()
    sandboxes = [await waker.create(name) for name in ("one", "two")]
    watch = AppMonitor(waker.replica.deps, waker.apps, waker.wakes, pass_max=1)
    for sandbox in sandboxes:
        native = await waker.enter(sandbox)
        await native.commands.run("pkill -9 -x python3")

    async def are_all_seen() -> bool:
        await watch.check()
        return not any([(await waker.get(one)).run.ready for one in sandboxes])

    await eventually(are_all_seen, within_s=20)


async def test_a_crash_of_the_app_is_seen_and_a_wake_starts_it_again(
    waking: Make, engine: Engine
) -> None:
    waker = await waking()
    sandbox = await waker.create("shop")
    watch = waker.replica.app_monitor
    await watch.check()
    assert (await waker.get(sandbox)).run.ready
    native = await waker.enter(sandbox)
    await native.commands.run("pkill -9 -x python3")

    async def is_seen() -> bool:
        await watch.check()
        return (await waker.get(sandbox)).run.app_exit_code is not None

    await eventually(is_seen, within_s=30)
    seen = await waker.get(sandbox)
    assert (seen.state, seen.run.ready) == (State.RUNNING, False)
    events = await waker.replica.store.events.of(sandbox.id)
    assert "exit code 137" in events[0].reason
    wake = await waker.wake(sandbox)
    assert (wake.status, wake.method) == (WakeStatus.SUCCEEDED, WakeMethod.NOTHING)
    assert (await waker.get(sandbox)).run.ready
    assert "Directory" in await browse(engine.url, await waker.get(sandbox))


async def test_a_pause_during_the_wait_for_the_port_ends_the_wait(waking: Make) -> None:
    waker = await waking()
    made = await waker.replica.create("shop", port=PORT, start_command="sleep 600")
    begun = await waker.replica.store.wakes.find_open(made.id)
    assert begun is not None

    async def is_waiting() -> bool:
        found = await waker.replica.store.wakes.find(begun.id)
        return found is not None and any(s.name == "waiting_for_port" for s in found.steps)

    await eventually(is_waiting, within_s=60)
    paused = await waker.replica.lifecycle.pause(made.id, actor="test")
    assert paused.state is State.PAUSED
    over = await waker.wakes.wait(begun, within_s=60)
    assert (over.status, over.error_code) == (WakeStatus.FAILED, "wrong_state")
    assert (await waker.get(made)).state is State.PAUSED


async def test_a_bucket_that_is_down_ends_no_sleeper_and_leaves_no_half_instance(
    waking: Make, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as bucket:
        monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        waker = await waking(files_url="s3://bucket/files")
        sandbox = await waker.create("shop")
        await waker.write(sandbox, "index.html", "in the bucket")
        await waker.replica.lifecycle.pause(sandbox.id, actor="test")
        bucket.is_down = True
        # Nothing of it is in this one's memory.
        other = await waking(files_url="s3://bucket/files", name="other")
        resumed = await other.wake(sandbox)
        assert (resumed.status, resumed.method) == (WakeStatus.SUCCEEDED, WakeMethod.RESUME)
        assert resumed.receipt is not None
        assert resumed.receipt.reason.startswith("the files were not compared")
        assert await browse(engine.url, await other.get(sandbox)) == "in the bucket"

        await other.provider.kill(sandbox.instance_id or "")
        lost = await other.wake(sandbox)
        assert (lost.status, lost.error_code) == (WakeStatus.FAILED, "files_unavailable")
        assert (await other.get(sandbox)).state is State.KILLED
        assert await other.instances(sandbox) == []
        bucket.is_down = False
        assert (await other.wake(sandbox)).status is WakeStatus.SUCCEEDED
        assert await browse(engine.url, await other.get(sandbox)) == "in the bucket"


async def test_kept_files_that_cannot_be_read_leave_nothing_half_and_a_wake_works_again(
    waking: Make, engine: Engine, tmp_path: Path
) -> None:
    waker = await waking()
    sandbox = await waker.create("shop")
    await waker.write(sandbox, "index.html", "in the bucket")
    await waker.capture(sandbox)
    await waker.provider.kill(sandbox.instance_id or "")
    kept = tmp_path / "kept"
    away = kept.rename(tmp_path / "away")
    kept.write_text("no folder")
    wake = await waker.wake(sandbox)
    assert wake.status is WakeStatus.FAILED
    assert (wake.error_code or "").startswith("files_")
    assert (await waker.get(sandbox)).state is State.KILLED
    assert await waker.instances(sandbox) == []
    kept.unlink()
    away.rename(kept)
    assert (await waker.wake(sandbox)).status is WakeStatus.SUCCEEDED
    assert await browse(engine.url, await waker.get(sandbox)) == "in the bucket"
