"""The engine of an ordinary user who has subordinate ids: its sandboxes have users of their own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2b import Sandbox

from support.eventually import eventually_sync
from support.isolation import not_on_gvisor
from support.ordinary_user import find_python
from support.packages import MAKE_DEBIAN_PACKAGE
from support.process_leaks import get_first_process
from support.sandbox_probe import list_inside
from support.subordinate_engine import FIRST_ID, ID_COUNT, OWNER, SubordinateEngine

pytestmark = [
    not_on_gvisor("it needs the host's root"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
    pytest.mark.skipif(shutil.which("newuidmap") is None, reason="newuidmap is not installed"),
    pytest.mark.skipif(find_python() is None, reason="no Python that another user may run"),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[SubordinateEngine]:
    # Not below tmp_path: that lies in a folder that only root may enter.
    with tempfile.TemporaryDirectory(prefix="sandkeeper-", ignore_cleanup_errors=True) as folder:
        running = SubordinateEngine(Path(folder))
        try:
            running.start()
            yield running
        finally:
            running.stop()


@pytest.fixture(scope="module")
def sandbox(engine: SubordinateEngine) -> Iterator[Sandbox]:
    made = Sandbox.create(timeout=600, **engine.sdk_options())
    yield made
    made.kill()


def test_its_processes_have_ids_of_the_range_and_no_other(
    engine: SubordinateEngine, sandbox: Sandbox
) -> None:
    lines = {"user": "sleep 1000", "root": "sleep 1000"}
    running = [
        sandbox.commands.run(line, user=user, background=True) for user, line in lines.items()
    ]
    found = list_inside(get_first_process(engine.data, sandbox.sandbox_id))
    seen = {one for ids in found for one in (*ids.uids, *ids.gids, *ids.groups)}
    assert {FIRST_ID, FIRST_ID + 1000} <= seen
    assert all(FIRST_ID <= one < FIRST_ID + ID_COUNT for one in seen)
    assert engine.data.stat().st_uid == OWNER
    for command in running:
        command.kill()


def test_user_and_root_own_their_files(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("sudo id -un; id -un").stdout == "root\nuser\n"
    sandbox.files.write("/etc/of-root", "1", user="root")
    sandbox.files.write("of-user", "2")
    line = "stat -c %U /etc/of-root of-user; echo 3 > of-user; ! echo 3 > /etc/of-root"
    assert sandbox.commands.run(f"{line} 2>/dev/null").stdout == "root\nuser\n"
    assert sandbox.files.read("of-user") == "3\n"
    assert sandbox.files.read("/etc/of-root", user="root") == "1"


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="the host has no apt-get")
def test_packages_are_installed(sandbox: Sandbox) -> None:
    sandbox.files.write("/tmp/make.sh", MAKE_DEBIAN_PACKAGE)
    line = "sudo sh /tmp/make.sh && sudo apt-get update && sudo apt-get install -y acorn"
    sandbox.commands.run(line, timeout=120)
    said = sandbox.commands.run("acorn; stat -c %U:%G /usr/share/acorn/kept").stdout
    assert said == "nutty\nacorn:mail\n"


def test_the_next_engine_adopts_what_the_last_one_left(
    engine: SubordinateEngine, sandbox: Sandbox
) -> None:
    sandbox.commands.run("python3 -m http.server 3000", background=True)
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "3000"}

    def answers() -> bool:
        return httpx.get(engine.url, headers=headers).status_code == 200

    eventually_sync(answers)
    engine.kill9()
    engine.start()
    assert answers()
    assert sandbox.commands.run("sudo id -un").stdout == "root\n"
    sandbox.pause()
    resumed = Sandbox.connect(sandbox.sandbox_id, **engine.sdk_options())
    assert resumed.commands.run("cat of-user || true; id -un").stdout.endswith("user\n")
    assert answers()
