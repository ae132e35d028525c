"""The veth backend, tried with real packets. Run by `test_veth.py`.

`outside` is the internet, a network of its own with one line to this machine. `runtime` is an
engine's runtime that found the device by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from e2b import Sandbox as E2BSandbox
from e2b import Secret

from sandkeeper.engine.names.certificates import LocalCertificates
from sandkeeper.engine.runtime import capabilities
from sandkeeper.engine.runtime.bubblewrap.runtime import BubblewrapRuntime
from sandkeeper.engine.runtime.contract import Egress, RuntimeFaultError
from sandkeeper.engine.runtime.egress import backends, veth
from sandkeeper.engine.runtime.egress.veth_rules import CONNECTIONS_MAX
from support.engine_process import Engine
from support.eventually import eventually
from support.fake_internet import ADDRESS, HOST, LINE, PORT, Outside, run
from support.process_leaks import get_first_process, get_spawner
from support.runtime_helpers import OFFLINE, Sandbox, plan

OPEN = Egress()
ECHO = """
import http.server, ssl, sys
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        said = "".join(f"{name.lower()}: {value}\\n" for name, value in self.headers.items())
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said.encode())
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer((sys.argv[1], 443), Echo)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print("ready", flush=True)
server.serve_forever()
"""
NOT_OURS = "table inet house {\n\tchain door {\n\t\ttype filter hook input priority filter;"


@pytest.fixture(autouse=True)
def outside() -> Iterator[Outside]:
    """The internet; a table of the host's own stands beside ours and is never touched."""
    Path("/proc/sys/net/ipv4/ip_forward").write_text("0")
    run(
        "nft",
        "add table inet house; add chain inet house door { type filter hook input priority 0; }",
    )
    with Outside() as internet:
        yield internet
    assert NOT_OURS in run("nft", "list", "ruleset")


@pytest.fixture
async def runtime(data: Path, outside: Outside) -> AsyncIterator[BubblewrapRuntime]:
    del outside
    made = BubblewrapRuntime(data)
    await made.start()
    yield made
    for sandbox_id in made.living():
        await made.halt(sandbox_id)
    await made.close()
    await eventually(lambda: _list_devices() == [])
    veth.release()
    assert _is_untouched()


async def test_a_sandbox_reaches_the_outside_under_the_hosts_address(
    runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    one = await _boot(runtime, tmp_path, "one")
    assert await _ask(one, ADDRESS) == HOST
    assert (await one.run("getent hosts anything.example")).out.split() == [
        ADDRESS,
        "anything.example",
    ]
    assert len(_list_devices()) == 1
    assert _record(tmp_path, "one")["helper"] is None


async def test_nothing_of_the_host_is_reached(
    runtime: BubblewrapRuntime, tmp_path: Path, outside: Outside
) -> None:
    """Nor an address that the host got later, nor one that it passes on to somewhere else."""
    one = await _boot(runtime, tmp_path, "one")
    two = await _boot(runtime, tmp_path, "two")
    run("ip", "addr", "add", "192.88.98.1/32", "dev", "lo")
    run("nft", "add chain inet house pass { type nat hook prerouting priority -100; }")
    run("nft", f"add rule inet house pass ip daddr 192.88.98.1 dnat ip to {ADDRESS}")
    await two.start(f"python3 -m http.server {PORT}")
    inside = _address(two_device := _record(tmp_path, "two")["device"])
    try:
        await two.run(f"until bash -c '</dev/tcp/127.0.0.1/{PORT}'; do :; done 2>/dev/null")
        with socket.create_server(("0.0.0.0", PORT)) as server:
            for place in ("127.0.0.1", HOST, "192.88.98.1", "10.0.2.2", "10.0.2.3", inside):
                assert await _ask(one, place) is None, place
            assert await _ask(one, "169.254.169.254") is None
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()
        # Nor is the sandbox reached from the host or from beyond it, but by the engine's ports.

        assert not outside.reaches(inside, PORT)
        with pytest.raises(OSError, match=r"timed out|not permitted"):
            socket.create_connection((inside, PORT), 1)
    finally:
        run("ip", "addr", "del", "192.88.98.1/32", "dev", "lo")
        run("nft", "delete chain inet house pass")
    assert two_device in _list_devices()


async def test_lists_hold_and_can_be_changed_while_it_runs(
    runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    one = await _boot(runtime, tmp_path, "one", Egress(deny_out=(ADDRESS,)))
    assert await _ask(one, ADDRESS) is None
    narrow = Egress(allow_out=("192.88.99.0/24",), deny_out=("0.0.0.0/0",))
    await runtime.set_egress("one", narrow)
    assert await _ask(one, ADDRESS) == HOST
    assert (await one.run("getent hosts anything.example")).code == 0
    assert (await one.run("ip route | grep -c default")).out == "0\n"
    with _Greeter() as port:
        assert await _ask(one, HOST, port) is None
        await runtime.set_egress("one", Egress(allow_out=(HOST,)))
        assert await _ask(one, HOST, port) == "hello"
        await runtime.set_egress("one", OPEN)
        assert await _ask(one, HOST, port) is None
    assert await _ask(one, ADDRESS) == HOST


async def test_a_name_in_the_allow_list_opens_its_addresses_only(
    runtime: BubblewrapRuntime, tmp_path: Path, outside: Outside
) -> None:
    outside.run("ip", "addr", "add", "192.88.99.3/24", "dev", "far0")
    named = Egress(allow_out=("allowed.example",), deny_out=("0.0.0.0/0",))
    one = await _boot(runtime, tmp_path, "one", named)
    assert await _ask(one, "anything.example") == HOST
    assert await _ask(one, "192.88.99.3") is None
    await runtime.set_egress("one", named)
    assert await _ask(one, ADDRESS) == HOST
    for allow, deny in (
        (("allowed.example",), ()),
        (("*.example",), ("0.0.0.0/0",)),
        ((), ("denied.example",)),
    ):
        with pytest.raises(RuntimeFaultError):
            await runtime.set_egress("one", Egress(allow_out=allow, deny_out=deny))
    await runtime.set_egress("one", Egress(deny_out=("0.0.0.0/0",)))
    assert await _ask(one, ADDRESS) is None


async def test_a_name_never_opens_the_host(runtime: BubblewrapRuntime, tmp_path: Path) -> None:
    """The resolver of a machine knows its own names, too."""
    own = socket.gethostname()
    named = Egress(allow_out=("localhost.localdomain", f"{own}.local"), deny_out=("0.0.0.0/0",))
    run("ip", "addr", "add", f"{ADDRESS}/32", "dev", "lo")
    try:
        one = await _boot(runtime, tmp_path, "one", named)
        with _Greeter() as port:
            assert await _ask(one, HOST, port) is None
            assert await _ask(one, ADDRESS, port) is None
    finally:
        run("ip", "addr", "del", f"{ADDRESS}/32", "dev", "lo")


async def test_without_internet_there_is_no_device(
    runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    one = await _boot(runtime, tmp_path, "one", OFFLINE)
    assert _list_devices() == []
    for _ in range(2):
        await runtime.set_egress("one", OPEN)
        assert await _ask(one, ADDRESS) == HOST
        await runtime.set_egress("one", OFFLINE)
        assert _list_devices() == []
        assert await _ask(one, ADDRESS) is None


async def test_a_connection_is_made_again_when_half_of_it_is_gone(
    runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    """The device deleted by hand, the table flushed by a firewall's restart."""
    one = await _boot(runtime, tmp_path, "one")
    run("ip", "link", "delete", _record(tmp_path, "one")["device"])
    run("nft", "delete", "table", "inet", "sandkeeper")
    await runtime.set_egress("one", OPEN)
    assert await _ask(one, ADDRESS) == HOST
    run("nft", "delete", "table", "inet", "sandkeeper")
    await runtime.set_egress("one", Egress(deny_out=("192.88.97.0/24",)))
    assert await _ask(one, ADDRESS) == HOST
    assert len(_list_devices()) == 1
    run("nft", "delete", "table", "inet", "sandkeeper")
    await runtime.guard()
    assert await _ask(one, ADDRESS) == HOST, "also when no rule changes"


async def test_connecting_twice_leaves_one_device(
    runtime: BubblewrapRuntime, data: Path, tmp_path: Path
) -> None:
    one = await _boot(runtime, tmp_path, "one")
    inside = os.open(f"/proc/{get_first_process(data, 'one')}/ns/net", os.O_RDONLY)
    device = await asyncio.to_thread(veth.connect, inside, [("via", "0.0.0.0/0")])
    os.close(inside)
    assert _list_devices() == [device]
    assert await _ask(one, ADDRESS) == HOST


async def test_addresses_belong_to_one_sandbox(
    runtime: BubblewrapRuntime, tmp_path: Path, data: Path
) -> None:
    """Neither another engine's nor those of a network that the host knows."""
    other = BubblewrapRuntime(data.with_name("other"))
    await other.start()
    try:
        for number in range(8):
            await _boot(runtime, tmp_path, f"a{number}")
            await other.boot(plan(tmp_path / "second", f"a{number}", egress=OPEN))
        assert len({_address(device) for device in _list_devices()}) == 16
        run("ip", "route", "add", "blackhole", "198.18.0.0/15")
        one = await _boot(runtime, tmp_path, "one")
        assert _address(_record(tmp_path, "one")["device"]).startswith("100.127.")
        assert await _ask(one, ADDRESS) == HOST
    finally:
        run("ip", "route", "flush", "type", "blackhole")
        for sandbox_id in other.living():
            await other.halt(sandbox_id)
        await other.close()


async def test_the_host_does_not_become_a_router(
    runtime: BubblewrapRuntime, tmp_path: Path, outside: Outside
) -> None:
    """It forwards for sandboxes only; where it was a router before, it still is one."""
    with Outside2() as second:
        one = await _boot(runtime, tmp_path, "one")
        assert await _ask(one, ADDRESS) == HOST
        assert await _ask(one, second.address) == second.host
        assert _read_forwarding(LINE) == "1"
        assert not outside.reaches(second.address, PORT)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        two = await _boot(runtime, tmp_path, "two")
        assert await _ask(two, ADDRESS) == HOST
        assert outside.reaches(second.address, PORT)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("0")


async def test_one_sandbox_cannot_take_all_connections(
    runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    one = await _boot(runtime, tmp_path, "one")
    two = await _boot(runtime, tmp_path, "two")
    flood = "import socket; s = socket.socket(type=2)\n"
    flood += f"for port in range(1, 9000): s.sendto(b'', ('{ADDRESS}', port))"
    await one.run(f'python3 -c "{flood}"')
    count = int(Path("/proc/sys/net/netfilter/nf_conntrack_count").read_text())
    assert CONNECTIONS_MAX / 2 < count < CONNECTIONS_MAX + 200
    assert await _ask(one, ADDRESS) is None
    assert await _ask(two, ADDRESS) == HOST


async def test_nothing_is_left_over_rounds_and_crashes(data: Path, tmp_path: Path) -> None:
    for number in range(5):
        runtime = BubblewrapRuntime(data)
        await runtime.start()
        names = [f"r{number}{letter}" for letter in "abcd"]
        await asyncio.gather(*(runtime.boot(plan(tmp_path, n, egress=OPEN)) for n in names))
        await runtime.halt(names[0])
        os.kill(get_first_process(data, names[1]), signal.SIGKILL)
        os.kill(get_spawner(data), signal.SIGKILL)
        await runtime.close()
    again = BubblewrapRuntime(data)
    await again.start()
    assert len(again.living()) == 10
    assert await _ask(Sandbox(again, "r0c"), ADDRESS) == HOST
    await eventually(lambda: len(_list_devices()) == 10)
    for sandbox_id in again.living():
        await again.halt(sandbox_id)
    await again.close()
    await eventually(lambda: _list_devices() == [])
    assert run("ip", "route").count("sk-") == 0
    # The spawner removes the table when it ends.
    await eventually(_is_untouched, within_s=40)


async def test_the_wire_sets_and_changes_it_and_a_crash_keeps_it(own_engine: Engine) -> None:
    options = own_engine.sdk_options()
    box = E2BSandbox.create(timeout=300, allow_internet_access=False, **options)
    ask = f"timeout 2 bash -c 'cat </dev/tcp/{ADDRESS}/{PORT}' || true"
    network = f"/sandboxes/{box.sandbox_id}/network"
    assert box.commands.run(ask).stdout == ""
    with own_engine.client() as api:
        assert api.put(network, json={}).status_code == 204
        assert box.commands.run(ask).stdout == HOST
        own_engine.kill9()
        own_engine.start()
        assert box.commands.run(ask).stdout == HOST
        assert api.put(network, json={"denyOut": [ADDRESS]}).status_code == 204
        assert box.commands.run(ask).stdout == ""
        assert api.put(network, json={"allowOut": ["example.com"]}).status_code == 400
        by_name = {"allowOut": ["example.com"], "denyOut": ["0.0.0.0/0"]}
        assert api.put(network, json=by_name).status_code == 204
        assert box.commands.run(ask).stdout == HOST
        assert api.get(f"/sandboxes/{box.sandbox_id}").json()["network"] == by_name
        assert api.put(network, json={"allow_internet_access": False}).status_code == 204
        assert _list_devices() == []
    restored = E2BSandbox.create(timeout=300, **options)
    assert restored.commands.run(ask).stdout == HOST
    restored.pause()
    restored.connect(timeout=300)
    assert restored.commands.run(ask).stdout == HOST
    restored.kill()
    box.kill()
    await eventually(lambda: _list_devices() == [])


@pytest.fixture
def echo(outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A site out there that answers with the request's headers, for an engine that trusts it."""
    certificates = LocalCertificates(tmp_path / "site", "echo.example", ADDRESS)
    certificates.ensure()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca_file))
    site = outside.start(sys.executable, "-c", ECHO, ADDRESS, str(certificates.chain_file))
    yield
    site.kill()
    site.communicate()


async def test_headers_with_secrets_are_added_outside_of_a_sandbox(
    echo: None, own_engine: Engine
) -> None:
    own_engine.restart()
    options = own_engine.sdk_options()
    account = {"api_url": own_engine.url, "api_key": own_engine.key}
    Secret.create("echo key", "first value", **account)
    headers = {"Authorization": f"Bearer {Secret.fill('echo key')}"}
    rules = {"echo.example": [{"transform": {"headers": headers}}]}
    network = {"rules": rules, "allow_out": ["echo.example"], "deny_out": ["0.0.0.0/0"]}
    box = E2BSandbox.create(timeout=300, network=network, **options)
    fork = box.fork(timeout=300)[0]
    ask = "curl -s https://echo.example/ -H 'Authorization: mine' -H 'X-Own: kept'"
    for one in (box, fork):
        said = one.commands.run(ask).stdout
        assert "authorization: Bearer first value\n" in said
        assert "x-own: kept\n" in said
        assert "mine" not in said
    by_python = (
        "import urllib.request as u; print(u.urlopen('https://echo.example').read().decode())"
    )
    assert "first value" in box.commands.run(f'python3 -c "{by_python}"').stdout
    bare = box.commands.run("curl -s http://echo.example/").stdout
    assert "over https only" in bare
    around = f"curl -sk https://echo.example/ --resolve echo.example:443:{ADDRESS}"
    assert "authorization" not in box.commands.run(around).stdout
    assert "first value" not in box.commands.run("env; cat /etc/hosts /run/sandkeeper/*").stdout

    Secret.update("echo key", "second value", **account)
    assert "second value" in box.commands.run(ask).stdout
    own_engine.kill9()
    own_engine.start()
    await eventually(lambda: "second value" in box.commands.run(f"{ask} || true").stdout)
    box.pause(mode="filesystem")
    box.connect(timeout=300)
    assert "second value" in box.commands.run(ask).stdout
    Secret.destroy("echo key", **account)
    assert "there is no secret 'echo key'" in box.commands.run(ask).stdout
    with own_engine.client() as api:
        shown = api.get(f"/sandboxes/{box.sandbox_id}").json()["network"]["rules"]
        assert shown["echo.example"][0]["transform"]["headers"] == {
            "authorization": "Bearer ${e2b.secrets.echo key}"
        }
        plain = {"echo.example": [{"transform": {"headers": {"x-plain": "1"}}}]}
        closed = {"rules": plain, "allowOut": [], "denyOut": ["0.0.0.0/0"]}
        assert api.put(f"/sandboxes/{box.sandbox_id}/network", json=closed).status_code == 204
        assert '"code":403' in box.commands.run(ask).stdout, "a rule alone opens nothing"
        bad = {"rules": {"*.example": rules["echo.example"]}}
        assert api.put(f"/sandboxes/{box.sandbox_id}/network", json=bad).status_code == 400
        assert api.put(f"/sandboxes/{box.sandbox_id}/network", json={}).status_code == 204
    assert "echo.example" not in box.commands.run("cat /etc/hosts").stdout
    box.kill()
    fork.kill()
    await eventually(lambda: _list_devices() == [])


def test_a_firewall_that_drops_is_noticed_and_told() -> None:
    run("nft", "add chain inet house pass { type filter hook forward priority 0; policy drop; }")
    try:
        assert veth.NAME not in backends.find_all()
        found = {one.name: one for one in capabilities.check_all(Path("/nowhere"))}["egress"]
        assert "the host's firewall drops its packets" in found.finding
    finally:
        run("nft", "delete chain inet house pass")
    assert backends.find_best() == veth.NAME
    found = {one.name: one for one in capabilities.check_all(Path("/nowhere"))}["egress"]
    assert found.ok
    assert "a network device for each sandbox" in found.finding
    assert _is_untouched()


def test_a_missing_nft_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(veth, "_NFT_PLACES", ())
    monkeypatch.setenv("PATH", "/nowhere")
    found = {one.name: one for one in capabilities.check_all(Path("/nowhere"))}["egress"]
    assert "nft is not installed" in found.finding
    monkeypatch.setattr(backends, "find_programs", list)
    found = {one.name: one for one in capabilities.check_all(Path("/nowhere"))}["egress"]
    assert (found.ok, found.fix) == (False, "sudo apt-get install nftables")


class Outside2(Outside):
    """A second network, on the other side of the machine."""

    line, network, is_default = "lan1", "192.88.96", False


async def _boot(
    runtime: BubblewrapRuntime, folder: Path, name: str, egress: Egress = OPEN
) -> Sandbox:
    await runtime.boot(plan(folder, name, egress=egress))
    return Sandbox(runtime, name)


async def _ask(sandbox: Sandbox, address: str, port: int = PORT) -> str | None:
    """What answers there, asked from a sandbox; None if nothing does."""
    said = await sandbox.run(f"timeout 2 bash -c 'cat </dev/tcp/{address}/{port}'")
    return said.out if said.code == 0 else None


class _Greeter:
    """Greets every client that connects to any address of this machine."""

    def __enter__(self) -> int:
        self._server = socket.create_server(("0.0.0.0", 0))
        threading.Thread(target=self._greet, daemon=True).start()
        return int(self._server.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _greet(self) -> None:
        while True:
            try:
                connection, _who = self._server.accept()
            except OSError:
                return
            connection.sendall(b"hello")
            connection.close()


def _record(folder: Path, sandbox_id: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / f"data/run/{sandbox_id}.json").read_text())
    return found


def _list_devices() -> list[str]:
    return [name for _index, name in socket.if_nameindex() if name.startswith("sk-")]


def _address(device: str) -> str:
    return run("ip", "-o", "route", "show", "dev", device).split()[0]


def _read_forwarding(device: str) -> str:
    return Path(f"/proc/sys/net/ipv4/conf/{device}/forwarding").read_text().strip()


def _is_untouched() -> bool:
    tables = re.findall(r"table \w+ (\w+)", run("nft", "list", "tables"))
    return tables == ["house"] and _read_forwarding(LINE) == "0"
