"""The engine dies, is stopped, or finds a mess: what was promised before is still so."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from e2b import Sandbox, Template

from sandkeeper.engine.runtime.linux.cgroups import set_frozen
from support.engine_process import Engine
from support.eventually import eventually_sync


def first_process(engine: Engine, sandbox_id: str) -> int:
    record = json.loads((engine.data / "run" / f"{sandbox_id}.json").read_text())
    return int(record["pid"])


def end_processes(engine: Engine, sandbox_id: str) -> None:
    """End a sandbox's processes behind the engine's back, also when they are frozen."""
    record = json.loads((engine.data / "run" / f"{sandbox_id}.json").read_text())
    os.kill(record["pid"], signal.SIGKILL)
    if record.get("group"):
        set_frozen(record["group"], frozen=False)
    eventually_sync(lambda: not Path(f"/proc/{record['pid']}/ns/pid").exists())


def leftovers(engine: Engine) -> list[str]:
    """What of any sandbox is still on this machine: folders, mounts, processes' records."""
    found = [str(path) for path in (engine.data / "sandboxes").iterdir()]
    found += [str(path) for path in (engine.data / "run").glob("*.json")]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return found + [line for line in mounts if str(engine.data) in line]


def assert_nothing_is_left(engine: Engine) -> None:
    with contextlib.suppress(AssertionError):
        eventually_sync(lambda: leftovers(engine) == [])
    assert leftovers(engine) == []


@pytest.mark.parametrize("ending", ["kill9", "terminate"])
def test_sandboxes_outlive_their_engine(own_engine: Engine, ending: str) -> None:
    options = own_engine.sdk_options()
    running = Sandbox.create(timeout=600, metadata={"of": "running"}, **options)
    asleep = Sandbox.create(timeout=600, **options)
    sleeper = asleep.commands.run("sleep 1000", background=True)
    asleep.files.write("kept.txt", "kept")
    asleep.pause()
    ticking = running.commands.run(
        "n=0; while true; do n=$((n+1)); echo $n > new; mv new ticks; sleep 0.05; done",
        background=True,
    )
    eventually_sync(lambda: running.files.exists("ticks"))
    getattr(own_engine, ending)()
    own_engine.start()
    # The same process went on without an engine and goes on with the new one.
    ticks = int(running.files.read("ticks"))
    eventually_sync(lambda: int(running.files.read("ticks")) > ticks)
    assert ticking.pid in [process.pid for process in running.commands.list()]
    assert running.get_info().metadata == {"of": "running"}
    assert running.commands.run("echo new").stdout == "new\n"
    back = Sandbox.connect(asleep.sandbox_id, timeout=600, **options)
    assert sleeper.pid in [process.pid for process in back.commands.list()]
    assert back.files.read("kept.txt") == "kept"
    assert running.pause()
    assert running.kill()
    assert back.kill()
    assert_nothing_is_left(own_engine)


def test_sandboxes_come_back_from_their_disks_when_the_machine_lost_them(
    own_engine: Engine,
) -> None:
    """Ending every process of a sandbox while no engine runs is what a reboot does to it."""
    options = own_engine.sdk_options()
    running = Sandbox.create(timeout=600, **options)
    asleep = Sandbox.create(timeout=600, **options)
    for box in (running, asleep):
        box.files.write("kept.txt", "kept")
    asleep.pause()
    own_engine.kill9()
    for box in (running, asleep):
        end_processes(own_engine, box.sandbox_id)
    own_engine.start()
    with own_engine.client() as api:
        assert api.get(f"/sandboxes/{running.sandbox_id}").json()["state"] == "running"
        told = api.get(f"/sandboxes/{asleep.sandbox_id}").json()
        assert (told["state"], told["pauseMode"]) == ("paused", "filesystem")
        assert running.files.read("kept.txt") == "kept"
        back = Sandbox.connect(asleep.sandbox_id, timeout=600, **options)
        assert back.files.read("kept.txt") == "kept"
        for box in (running, asleep):
            (resumed, *_) = api.get(f"/events/sandboxes/{box.sandbox_id}").json()
            assert resumed["type"] == "sandbox.lifecycle.resumed"
            assert resumed["eventData"]["memory_lost"] is True
            logs = api.get(f"/sandboxes/{box.sandbox_id}/logs").json()["logs"]
            assert "from its disk" in logs[-1]["line"]


def test_a_sandbox_whose_processes_died_is_started_again(own_engine: Engine) -> None:
    box = Sandbox.create(timeout=600, **own_engine.sdk_options())
    box.files.write("kept.txt", "kept")
    end_processes(own_engine, box.sandbox_id)
    with own_engine.client() as api:
        path = f"/events/sandboxes/{box.sandbox_id}"
        eventually_sync(lambda: len(api.get(path).json()) == 2)
    assert box.files.read("kept.txt") == "kept"


def test_what_no_record_names_is_removed_at_the_start(own_engine: Engine) -> None:
    """A crash between boot and record leaves a living sandbox without a record."""
    box = Sandbox.create(timeout=600, **own_engine.sdk_options())
    process = first_process(own_engine, box.sandbox_id)
    own_engine.kill9()
    with sqlite3.connect(own_engine.data / "ledger.sqlite") as database:
        database.execute("DELETE FROM sandboxes")
    database.close()
    (own_engine.data / "layers" / "stray").mkdir()
    own_engine.start()
    eventually_sync(lambda: not Path(f"/proc/{process}").exists())
    assert_nothing_is_left(own_engine)
    assert not (own_engine.data / "layers" / "stray").exists()


def test_a_build_that_a_crash_cut_short_has_failed(own_engine: Engine) -> None:
    template = Template().from_base_image().run_cmd("sleep 1000")
    build = Template.build_in_background(template, "cut-short", **own_engine.sdk_options())
    eventually_sync(lambda: list((own_engine.data / "run").glob("b*.json")))
    own_engine.kill9()
    own_engine.start()
    status = Template.get_build_status(build, **own_engine.sdk_options())
    assert status.status == "error"
    assert "restarted" in status.reason.message
    assert_nothing_is_left(own_engine)


def test_a_second_engine_keeps_out_of_the_first_ones_folder(own_engine: Engine) -> None:
    from support.engine_process import Engine as Another

    with pytest.raises(AssertionError, match="another engine works in"):
        Another(own_engine.data).start()
    with own_engine.client() as api:
        assert api.get("/v2/sandboxes").json() == []


class Lives:
    """Creates and kills sandboxes until a number of rounds is reached, whatever the engine does."""

    def __init__(self, engine: Engine, rounds: int) -> None:
        self._engine = engine
        self._rounds = iter(range(rounds))
        self._lock = threading.Lock()
        self.begun = 0
        self.ids: list[str] = []

    def _take(self) -> int | None:
        with self._lock:
            self.begun += 1
            return next(self._rounds, None)

    def live(self) -> None:
        with self._engine.client() as api:
            while (number := self._take()) is not None:
                # The engine is away for a moment now and then, as it is meant to be.
                with contextlib.suppress(httpx.TransportError):
                    made = api.post("/v2/sandboxes", json={"templateID": "base", "timeout": 600})
                    if made.status_code != 201:
                        continue
                    self.ids.append(made.json()["sandboxID"])
                    path = f"/sandboxes/{self.ids[-1]}"
                    if number % 3 == 0:
                        api.post(path + "/pause", json={"memory": number % 2 == 0})
                    api.delete(path)


def test_nothing_is_left_of_two_hundred_lives_with_crashes_among_them(own_engine: Engine) -> None:
    chance = random.Random(7)
    lives = Lives(own_engine, 200)
    with ThreadPoolExecutor(6) as pool:
        working = [pool.submit(lives.live) for _ in range(6)]
        for third in range(3):
            crash_at = third * 60 + chance.randrange(10, 50)
            eventually_sync(lambda at=crash_at: lives.begun >= at, within_s=120)
            own_engine.kill9()
            own_engine.start()
        for one in working:
            one.result()
    assert lives.begun > 200
    own_engine.kill_all()
    assert_nothing_is_left(own_engine)
    eventually_sync(lambda: not list((own_engine.data / "trash").iterdir()))
    groups = {
        path.name.rpartition(".")[2] for path in Path("/sys/fs/cgroup").glob("*/sandkeeper.*")
    }
    assert groups.isdisjoint(lives.ids)
    assert "Traceback" not in own_engine.log
