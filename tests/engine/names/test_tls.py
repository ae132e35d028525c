"""An engine whose one port speaks HTTP and TLS, as the official SDKs and others meet it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import sys
from pathlib import Path

import httpx
import pytest
from e2b import Sandbox
from websockets.asyncio.client import connect

from support.base_cache import lend_base
from support.engine_process import Engine
from support.eventually import eventually
from support.port_server import SERVER

ROOT = Path(__file__).parents[3]
SDK = ROOT / "tests" / "sdk"


async def run(env: dict[str, str], *line: str) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("E2B_")}
    process = await asyncio.create_subprocess_exec(
        *line,
        env=kept | env,
        cwd=SDK,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize("version", ["2.45.1", "newest"])
async def test_the_python_sdk_needs_a_domain_only(tls_env: dict[str, str], version: str) -> None:
    path = {}
    if version != "newest":
        folder = ROOT / ".venv" / "sdk" / version
        if not (folder / ".ready").exists():
            pytest.skip(f"e2b {version} is not installed: make sdks")
        path = {"PYTHONPATH": str(folder)}

    said = await run(tls_env | path, sys.executable, str(SDK / "over_tls.py"))

    assert said.splitlines()[-1] == "held: tls"


async def test_the_javascript_sdk_needs_a_domain_only(tls_env: dict[str, str]) -> None:
    node = shutil.which("node")
    if node is None or not (ROOT / "node_modules" / "e2b").exists():
        pytest.skip("node and the e2b package are not here: install Node.js, then make test")

    said = await run(tls_env, node, str(SDK / "over_tls.mjs"))

    assert said.splitlines()[-1] == "held: tls"


async def test_websockets_go_through_tls_to_a_port(
    tls_engine: Engine, tls_env: dict[str, str]
) -> None:
    box = Sandbox.create(**tls_engine.sdk_options())
    box.files.write("server.py", SERVER)
    box.commands.run("python3 server.py", background=True)
    trusted = ssl.create_default_context(cafile=tls_env["SSL_CERT_FILE"])
    url = f"wss://3000-{box.sandbox_id}.{tls_env['E2B_DOMAIN']}/"

    def is_up() -> bool:
        return httpx.get(url.replace("wss", "https"), verify=trusted).status_code == 200

    await eventually(is_up)
    async with connect(url, ssl=trusted, proxy=None) as opened:
        await opened.send("x" * 50_000)
        assert await opened.recv() == "x" * 50_000
    box.kill()


def test_one_port_speaks_both_and_says_which(tls_engine: Engine) -> None:
    trusted = ssl.create_default_context(cafile=str(tls_engine.data / "tls" / "ca.pem"))
    with tls_engine.client() as plain, tls_engine.client(verify=trusted) as secure:
        assert plain.get("/v2/sandboxes").status_code == 200
        url = tls_engine.url.replace("http:", "https:")
        assert secure.get(f"{url}/v2/sandboxes").status_code == 200
        template = plain.post("/v3/templates", json={"name": "one"}).json()["templateID"]
        for base, client in ((tls_engine.url, plain), (url, secure)):
            offered = client.get(f"{base}/templates/{template}/files/{'a' * 64}").json()
            assert offered["url"].startswith(base)


def test_strangers_at_the_port_disturb_no_one(tls_engine: Engine) -> None:
    with (
        socket.create_connection(("127.0.0.1", tls_engine.port)),
        socket.create_connection(("127.0.0.1", tls_engine.port)) as rude,
        socket.create_connection(("127.0.0.1", tls_engine.port)) as half,
    ):
        rude.sendall(b"\x16\x03\x01\xff\xffnot a hello at all" * 100)
        half.sendall(b"\x16")
        half.shutdown(socket.SHUT_WR)
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"https://127.0.0.1:{tls_engine.port}/health")
        assert httpx.get(f"{tls_engine.url}/health").status_code == 200


def test_the_authority_outlives_a_restart_and_the_users_certificate_is_taken(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = Engine(lend_base(tmp_path_factory, tmp_path / "data"), "--tls")
    try:
        own.start()
        first = own.read_tls_env()
        trusted = Path(first["NODE_EXTRA_CA_CERTS"]).read_bytes()
        assert own.restart().read_tls_env() == first
        assert Path(first["NODE_EXTRA_CA_CERTS"]).read_bytes() == trusted
        given = tmp_path / "given.pem"
        shutil.copy(own.data / "tls" / "server.pem", given)
        own.options = ("--tls-certificate", str(given), "--domain", "sandboxes.example.com")
        own.restart()
        context = ssl.create_default_context(cadata=trusted.decode())
        url = f"https://127.0.0.1:{own.port}/health"
        assert httpx.get(url, verify=context).status_code == 200
        assert own.read_tls_env() == {
            "E2B_DOMAIN": "sandboxes.example.com",
            "E2B_API_KEY": own.key,
        }
        box = Sandbox.create(**own.sdk_options())
        assert box.get_host(3000) == f"3000-{box.sandbox_id}.sandboxes.example.com"
    finally:
        own.stop()
