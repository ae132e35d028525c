"""The ways out of a sandbox once more, with the engine of a user who has subordinate ids."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2b import Sandbox

from support.isolation import not_on_gvisor
from support.ordinary_user import find_python
from support.subordinate_engine import SubordinateEngine
from support.ways_out import ALLOWED, AT_LEAST, OWN_PROCESSES, SCRIPT

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


def test_no_way_out_is_open(engine: SubordinateEngine) -> None:
    """For the user, for root, and for the root that `sudo` gives."""
    secret = engine.data / "secret"
    secret.write_text("of the engine's user")
    os.chown(secret, engine.data.stat().st_uid, -1)
    given = {"files": [str(secret), str(engine.data)], "ports": [engine.port], "addresses": []}
    sandbox = Sandbox.create(timeout=600, **engine.sdk_options())
    sandbox.files.write("/tmp/probes.py", SCRIPT.read_text())
    line = f"python3 /tmp/probes.py {shlex.quote(json.dumps(given))}"
    for user, words in (("user", line), ("root", line), ("user", f"sudo {line}")):
        answers = json.loads(sandbox.commands.run(words, user=user, timeout=120).stdout)
        assert len(answers) >= AT_LEAST
        got_through = {name for name, answer in answers.items() if answer == "OPEN"}
        own = set() if words == line and user == "user" else OWN_PROCESSES
        assert got_through - ALLOWED - own == set()
    sandbox.kill()
