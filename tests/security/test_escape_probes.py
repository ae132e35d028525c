"""Every known way out of a sandbox, tried from inside by an access check, as each kind of user."""

from __future__ import annotations

import json
import shlex
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sandkeeper.engine.runtime.bubblewrap.binaries import find_uid_base
from support.isolation import not_on_gvisor
from support.sandbox_probe import SandboxProbe
from support.ways_out import ALLOWED, AT_LEAST, OWN_PROCESSES, SCRIPT

pytestmark = pytest.mark.asyncio(loop_scope="module")

not_with_gvisor = not_on_gvisor("there is no sudo")


@pytest.fixture
def host_port() -> Iterator[int]:
    """A server on every address of the host."""
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("0.0.0.0", 0)))
        yield int(server.getsockname()[1])


def list_host_addresses() -> list[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [str(probe.getsockname()[0])]


@pytest.mark.parametrize("user", ["user", "root", pytest.param("sudo", marks=not_with_gvisor)])
async def test_no_way_out_is_open(
    probe: SandboxProbe, host_port: int, tmp_path: Path, user: str
) -> None:
    secret = tmp_path / "host-secret"
    secret.write_text("of the host")
    secret.chmod(0o644)
    engine_data = [str(path) for path in (probe.data, probe.data.parent)]
    given = {
        "files": [str(secret), *engine_data],
        "ports": [host_port],
        "addresses": list_host_addresses(),
    }
    await probe.sdk.files.write("/tmp/probes.py", SCRIPT.read_text())
    line = f"python3 /tmp/probes.py {shlex.quote(json.dumps(given))}"
    if user == "sudo":
        said = await probe.run(f"sudo {line}", "user")
    else:
        said = await probe.run(line, user)
    assert said.code == 0, said.err
    answers: dict[str, str] = json.loads(said.out)
    assert len(answers) >= AT_LEAST
    got_through = {name for name, answer in answers.items() if answer == "OPEN"}
    # Where one id is mapped, `user` and `root` of a sandbox are the same.
    is_root = user != "user" or find_uid_base() is None
    assert got_through - ALLOWED - (OWN_PROCESSES if is_root else set()) == set()
