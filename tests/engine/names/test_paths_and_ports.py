"""Ways to a sandbox for programs that resolve no host names, and for clients with E2B_DEBUG."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from e2b import Sandbox

from support.base_cache import lend_base
from support.engine_process import Engine
from support.eventually import eventually

DEBUG_PORTS = (3000, 8080, 49983, 49999)
DEBUG_CLIENT = """
import e2b
box = e2b.Sandbox.create()
box.files.write("a.txt", "abc")
assert box.commands.run("cat a.txt").stdout == "abc"
again = e2b.Sandbox.create()
assert again.files.read("a.txt") == "abc"
print(len(e2b.Sandbox.list().next_items()))
"""


async def test_a_path_names_the_sandbox_and_its_port(engine: Engine) -> None:
    box = Sandbox.create(**engine.sdk_options())
    box.files.write("folder/a b.txt", "abc")
    box.commands.run("python3 -m http.server 3000", background=True)
    base = f"{engine.url}/p/{box.sandbox_id}/3000"

    async def is_up() -> bool:
        return httpx.get(f"{base}/").status_code == 200

    await eventually(is_up)
    assert httpx.get(f"{base}/folder/a%20b.txt?x=1").text == "abc"
    assert httpx.get(base, follow_redirects=False).status_code == 200
    refused = httpx.get(f"{base}/", headers={"Sec-Fetch-Site": "none"})
    assert (refused.status_code, "by its Host" in refused.text) == (403, True)
    assert httpx.get(f"{engine.url}/p/no_id!/3000/").status_code == 400
    assert httpx.get(f"{engine.url}/p/{box.sandbox_id}/99999/").status_code == 400
    assert httpx.get(f"{engine.url}/p/ixxxxxxxxxxxxxxxxxxxx/3000/").status_code == 502
    box.kill()


def test_debug_clients_find_one_sandbox_on_the_ports_they_expect(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for port in DEBUG_PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port} is taken")
    own = Engine(lend_base(tmp_path_factory, tmp_path / "data"), "--debug-ports")
    try:
        own.start()
        env = {"E2B_DEBUG": "true", "E2B_API_KEY": own.key}
        for _ in range(2):
            said = subprocess.run(
                [sys.executable, "-c", DEBUG_CLIENT],
                env=dict(os.environ) | env,
                check=True,
                capture_output=True,
                text=True,
            )
            assert said.stdout == "1\n"
            own.restart()
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            answer = httpx.get("http://127.0.0.1:49983/health", headers=headers)
            assert answer.status_code == 403
    finally:
        own.stop()
