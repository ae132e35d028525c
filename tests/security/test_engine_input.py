"""Hostile requests to the engine, and hostile answers from inside a sandbox."""

from __future__ import annotations

import io
import socket
import tarfile
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from e2b import Sandbox

from support.engine_process import Engine
from support.eventually import eventually_sync
from support.hostile_app import Hostile

FORWARDED = {"forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"}
RAW_SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 3999))
while True:
    client, _ = server.accept()
    target = client.recv(65536).split(b" ", 2)[1].decode()
    client.sendall(bytes.fromhex(target.strip("/")))
    client.close()
"""


@pytest.fixture(scope="module")
def raw(engine: Engine) -> Iterator[Hostile]:
    """A sandbox whose server on port 3999 answers with the bytes that the path names in hex."""
    sandbox = Sandbox.create(timeout=3600, **engine.sdk_options())
    sandbox.files.write("raw.py", RAW_SERVER)
    sandbox.commands.run("python3 raw.py", background=True, timeout=0)
    found = Hostile(sandbox, engine)
    eventually_sync(lambda: answer_with(found, b"HTTP/1.1 200 OK\r\n\r\n").status_code == 200)
    yield found
    sandbox.kill()


def answer_with(raw: Hostile, answer: bytes) -> httpx.Response:
    headers = {"E2b-Sandbox-Id": raw.sandbox.sandbox_id, "E2b-Sandbox-Port": "3999"}
    return httpx.get(f"{raw.engine.url}/{answer.hex()}", headers=headers, timeout=60)


def send_raw(engine: Engine, head: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", engine.port), timeout=60) as client:
        client.sendall(head)
        return client.recv(65536)


@pytest.mark.parametrize("port", ["9" * 5000, "0", "65536", "-1", "+80", "٣", "1e3", ""])
def test_a_port_that_is_none_is_refused(hostile: Hostile, port: str) -> None:
    headers = {
        b"E2b-Sandbox-Id": hostile.sandbox.sandbox_id.encode(),
        b"E2b-Sandbox-Port": port.encode(),
    }
    answer = httpx.get(hostile.engine.url, headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["message"]) == (400, "the sandbox port is invalid")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nabc",
        b"HTTP/1.1 999 Odd\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 600 Odd\r\n\r\n",
        b"HTTP/1.1 000 None\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"not HTTP at all",
        b"",
    ],
)
def test_an_answer_that_is_none_is_a_502(raw: Hostile, answer: bytes) -> None:
    got = answer_with(raw, answer)
    assert got.status_code == 502
    assert "closed the connection" in got.json()["message"]


def test_two_hosts_in_one_request_are_refused(hostile: Hostile) -> None:
    answer = send_raw(
        hostile.engine,
        b"GET / HTTP/1.1\r\nHost: %b\r\nHost: localhost\r\n\r\n" % hostile.host.encode(),
    )
    assert answer.startswith(b"HTTP/1.1 400")


def test_a_visitor_cannot_say_where_it_comes_from(hostile: Hostile) -> None:
    forged = {
        "X-Forwarded-For": "203.0.113.9",
        "X-Forwarded-Host": "bank.example",
        "X-Forwarded-Proto": "https",
        "X-Real-Ip": "203.0.113.9",
        "Forwarded": "for=203.0.113.9",
        "X-Forwarded-Port": "1",
        "X-Forwarded-Client-Cert": "By=bank",
        "True-Client-IP": "203.0.113.9",
        "X-Client-IP": "203.0.113.9",
        "CF-Connecting-IP": "203.0.113.9",
    }
    seen = httpx.get(hostile.engine.url, headers={"Host": hostile.host, **forged}, timeout=60)
    said = {name: value for name, value in seen.json() if name in FORWARDED}
    assert said == {
        "x-forwarded-for": "127.0.0.1",
        "x-forwarded-host": hostile.host,
        "x-forwarded-proto": "http",
    }
    assert len([name for name, _ in seen.json() if name in FORWARDED]) == 3
    assert "203.0.113.9" not in seen.text
    assert "x-forwarded-port" not in seen.text
    assert "By=bank" not in seen.text


@pytest.mark.parametrize("mask", ["a\r\nX-Evil: 1", "a b", "a/b", "a\n", "${PORT}${PORT}", "é"])
def test_a_host_mask_that_is_no_host_is_refused(engine: Engine, mask: str) -> None:
    body = {"templateID": "base", "network": {"maskRequestHost": mask}}
    with engine.client() as client:
        answer = client.post("/sandboxes", json=body)
    assert answer.status_code == 400
    assert "maskRequestHost" in answer.json()["message"]


@pytest.mark.parametrize("name", ["..", ".", "../x", "a b", "a\n", "-x", "x" * 200, "é"])
def test_a_template_name_that_is_no_name_is_refused(engine: Engine, name: str) -> None:
    with engine.client() as client:
        answer = client.post("/v3/templates", json={"name": name})
    assert answer.status_code == 400
    assert "template name" in answer.json()["message"]


@pytest.mark.parametrize("tag", ["..", "../x", "a b", "é", "x" * 200])
def test_a_tag_that_is_no_tag_is_refused(engine: Engine, tag: str) -> None:
    bodies = ({"name": f"tagged:{tag}"}, {"name": "tagged", "tags": [tag]})
    with engine.client() as client:
        answers = [client.post("/v3/templates", json=body) for body in bodies]
    assert [one.status_code for one in answers] == [400, 400]
    assert "tag" in answers[1].json()["message"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/sandboxes", "GET, POST"),
        ("/templates/x", "DELETE, GET, PATCH"),
        ("/events/webhooks", "GET, POST"),
    ],
)
def test_a_method_that_is_not_allowed_is_told_those_that_are(
    engine: Engine, path: str, allowed: str
) -> None:
    with engine.client() as client:
        answer = client.put(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_an_upload_url_is_good_for_an_hour(engine: Engine) -> None:
    files_hash = "a" * 64
    with engine.client() as client:
        made = client.post("/v3/templates", json={"name": "uploads"}).json()
        path = f"/templates/{made['templateID']}/files/{files_hash}"
        offered = client.get(path).json()["url"]
        for own in (f"localhost:{engine.port}", "127.0.0.1:9", "a.localhost"):
            there = client.get(path, headers={"Host": own}).json()["url"]
            assert there.startswith(f"http://{own}/templates/")
        for other in ("evil.example", f"evil.example:{engine.port}", "203.0.113.9"):
            there = client.get(path, headers={"Host": other}).json()["url"]
            assert there.startswith(f"{engine.url}/templates/"), "where the connection arrived"
        client.headers["Host"] = "evil host/@"
        assert client.get(path).status_code == 400
    query = parse_qs(urlsplit(offered).query)
    expires = int(query["expires"][0])
    assert 3500 < expires - time.time() <= 3600
    later = offered.replace(f"expires={expires}", f"expires={expires + 9999}")
    assert httpx.put(later, content=b"x").status_code == 403
    assert httpx.put(offered, content=b"x").status_code == 200


def test_a_hard_link_to_nothing_fails_the_build_with_its_name(engine: Engine) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        link = tarfile.TarInfo("app/evil")
        link.type, link.linkname = tarfile.LNKTYPE, "etc/shadow"
        tar.addfile(link)
    files_hash = "b" * 64
    with engine.client() as client:
        made = client.post("/v3/templates", json={"name": "hard-link"}).json()
        template, build = made["templateID"], made["buildID"]
        url = client.get(f"/templates/{template}/files/{files_hash}").json()["url"]
        httpx.put(url, content=archive.getvalue())
        steps = [{"type": "COPY", "args": ["app", "/app"], "filesHash": files_hash}]
        client.post(
            f"/v2/templates/{template}/builds/{build}",
            json={"fromTemplate": "base", "steps": steps},
        )

        def status() -> dict[str, object]:
            found: dict[str, object] = client.get(
                f"/templates/{template}/builds/{build}/status"
            ).json()
            return found

        eventually_sync(lambda: status()["status"] == "error", within_s=60)
        assert "app/evil" in str(status()["reason"])


def test_a_tree_of_any_depth_can_be_removed(engine: Engine) -> None:
    sandbox = Sandbox.create(**engine.sdk_options())
    try:
        deep = "import os\nfor _ in range(3000):\n os.mkdir('d'); os.chdir('d'); open('f', 'w')"
        sandbox.commands.run(f'mkdir deep && cd deep && python3 -c "{deep}"')
        sandbox.files.remove("deep")
        assert not sandbox.files.exists("deep")
        assert sandbox.get_metrics() is not None
    finally:
        sandbox.kill()


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "http://[fe80::1]/",
        "http://[::ffff:169.254.169.254]/",
        "http://0.0.0.0/",
        "http://224.0.0.1/",
        "ftp://127.0.0.1/",
    ],
)
def test_a_webhook_to_a_special_network_is_refused(engine: Engine, url: str) -> None:
    body = {
        "name": "x",
        "url": url,
        "events": ["sandbox.lifecycle.created"],
        "signatureSecret": "s",
    }
    with engine.client() as client:
        answer = client.post("/events/webhooks", json=body)
    assert answer.status_code == 400
    assert "url" in answer.json()["message"]
