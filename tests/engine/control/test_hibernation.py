"""Sandboxes that are paused for long give their memory back, and wake as they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2b import Sandbox

from sandkeeper.engine.runtime.linux import cgroups, hibernation
from support.base_cache import lend_base
from support.engine_process import Engine
from support.eventually import eventually_sync
from support.isolation import not_on_gvisor

FAULT = hibernation.find_fault()
HELD = 40 * 1024 * 1024
PROGRAM = f"""\
import http.server, os
held = os.urandom({HELD})
print(sum(held), flush=True)
class Sums(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(sum(held)).encode())
http.server.HTTPServer(("127.0.0.1", 8000), Sums).serve_forever()
"""


@pytest.fixture
def sleepy_engine(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(lend_base(tmp_path_factory, tmp_path / "engine"), "--hibernate-after", "1")
    try:
        yield engine
    finally:
        engine.stop()


def find_memory(sandbox_id: str) -> int:
    """Return the bytes of memory that the kernel counts for a sandbox."""
    parents = cgroups.find_parents()
    assert parents is not None
    folder = Path(parents["paths"]["all" if parents["version"] == 2 else "memory"])
    # The engine makes its groups below that of its own process, which may be another one.
    top = Path("/sys/fs/cgroup") / folder.relative_to("/sys/fs/cgroup").parts[0]
    (group,) = top.rglob(f"*.{sandbox_id}")
    name = "memory.current" if parents["version"] == 2 else "memory.usage_in_bytes"
    return int((group / name).read_text())


@not_on_gvisor("its kernel holds the memory of programs")
@pytest.mark.skipif(FAULT is not None, reason=str(FAULT))
def test_a_long_pause_moves_memory_to_swap_and_a_resume_finds_it(sleepy_engine: Engine) -> None:
    options = sleepy_engine.start().sdk_options()
    box = Sandbox.create(timeout=600, **options)
    box.files.write("holds.py", PROGRAM)
    written = iter(box.commands.run("python3 holds.py", background=True, timeout=0))
    expected = next(out for out, _, _ in written if out)
    assert find_memory(box.sandbox_id) > HELD
    box.pause()
    assert eventually_sync(lambda: find_memory(box.sandbox_id) < HELD / 4)

    sleepy_engine.kill9()
    sleepy_engine.start()
    back = Sandbox.connect(box.sandbox_id, timeout=600, **options)
    asked = back.commands.run("curl -s http://127.0.0.1:8000")
    assert asked.stdout == expected.strip()
    assert find_memory(box.sandbox_id) > HELD
    back.kill()


@pytest.mark.skipif(FAULT is None, reason="this machine can move memory to swap")
def test_an_engine_that_cannot_hibernate_says_why_and_does_not_start(
    sleepy_engine: Engine,
) -> None:
    with pytest.raises(AssertionError, match="the engine ended"):
        sleepy_engine.start()
    assert f"--hibernate-after cannot be used: {FAULT}" in " ".join(sleepy_engine.log.split())
    sleepy_engine.process = None
