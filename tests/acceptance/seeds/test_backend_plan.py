"""Snippets of the plan for an E2B backend: routes, a creation, envd and a Dockerfile."""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2b import Sandbox, Template

from support.databases import on_both_databases
from support.keeper_process import Keeper

pytestmark = on_both_databases

ROUTES = """
POST   /sandboxes                    - Create sandbox
GET    /sandboxes                    - List sandboxes
GET    /sandboxes/{id}               - Get sandbox details
POST   /sandboxes/{id}/timeout       - Set timeout
POST   /sandboxes/{id}/refreshes     - Refresh TTL
GET    /sandboxes/{id}/metrics       - Get resource usage
GET    /sandboxes/{id}/logs          - Get logs
POST   /sandboxes/{id}/pause         - Pause sandbox
POST   /sandboxes/{id}/connect       - Connect to existing
DELETE /sandboxes/{id}               - Kill sandbox
"""

CREATE = {
    "templateID": "base",
    "timeout": 300,
    "envVars": {"KEY": "value"},
    "metadata": {"user": "123"},
}

BODIES: dict[str, dict[str, object]] = {
    "timeout": {"timeout": 300},
    "refreshes": {"duration": 60},
    "connect": {"timeout": 300},
}

RESPONSE = ("sandboxID", "templateID", "clientID", "envdVersion", "envdAccessToken", "domain")

RPC = """
service Process {
    rpc Start(StartRequest) returns (stream StartResponse);
    rpc Connect(ConnectRequest) returns (stream ConnectResponse);
    rpc SendInput(SendInputRequest) returns (SendInputResponse);
    rpc SendSignal(SendSignalRequest) returns (SendSignalResponse);
    rpc List(ListRequest) returns (ListResponse);
}
service Filesystem {
    rpc Stat(StatRequest) returns (StatResponse);
    rpc MakeDir(MakeDirRequest) returns (MakeDirResponse);
    rpc ListDir(ListDirRequest) returns (ListDirResponse);
    rpc Remove(RemoveRequest) returns (RemoveResponse);
    rpc Move(MoveRequest) returns (MoveResponse);
    rpc WatchDir(WatchDirRequest) returns (stream WatchDirResponse);
}
"""

FILES = """
GET  /files?path=/app/file.txt     - Download file
POST /files?path=/app/file.txt     - Upload file (multipart)
GET  /health                        - Health check
GET  /metrics                       - Resource metrics
"""

DOCKERFILE = """\
FROM e2b/base:latest
RUN echo ready > /home/user/ready.txt
"""


def test_every_route_of_the_control_plane_is_answered(keeper: Keeper) -> None:
    with keeper.engine_client() as engine:
        made = engine.post("/sandboxes", json=CREATE)
        assert made.status_code == 201, made.text
        assert set(RESPONSE) <= set(made.json())
        sandbox_id = made.json()["sandboxID"]
        for line in ROUTES.strip().splitlines()[1:]:
            method, path = line.split()[:2]
            body = BODIES.get(path.rpartition("/")[2], {} if method == "POST" else None)
            answer = engine.request(method, path.format(id=sandbox_id), json=body)
            assert answer.is_success, (line, answer.text)
        assert engine.get(f"/sandboxes/{sandbox_id}").status_code == 404


def test_a_wrong_field_of_the_network_is_refused_with_the_right_name(keeper: Keeper) -> None:
    network = {"egressCIDRs": ["0.0.0.0/0"]}
    with keeper.engine_client() as engine:
        refused = engine.post("/sandboxes", json={**CREATE, "network": network})
        assert refused.status_code == 400
        assert "network.egressCIDRs" in refused.json()["message"]
        assert "'network.allowOut'" in refused.json()["message"]
        right = {"allowOut": network["egressCIDRs"]}
        made = engine.post("/sandboxes", json={**CREATE, "network": right})
        assert made.status_code == 201, made.text
        engine.delete(f"/sandboxes/{made.json()['sandboxID']}")


def test_commands_and_files_of_the_plan(keeper: Keeper) -> None:
    sandbox = Sandbox.create("base", timeout=120, **keeper.sdk_options())
    try:
        assert "hello" in sandbox.commands.run("echo hello").stdout
        sandbox.files.write("/tmp/test.txt", "content")
        assert sandbox.files.read("/tmp/test.txt") == "content"
        headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
        health = httpx.get(f"{keeper.engine_url}/health", headers=headers)
        assert health.is_success, health.text
    finally:
        sandbox.kill()


@pytest.mark.parametrize("image", ["e2b/base:latest", "e2bdev/base"])
def test_the_template_of_the_dockerfile_is_built(keeper: Keeper, image: str) -> None:
    name = f"seed-{secrets.token_hex(4)}"
    text = DOCKERFILE.replace("e2b/base:latest", image)
    Template.build(Template().from_dockerfile(text), name, **keeper.sdk_options())
    sandbox = Sandbox.create(name, timeout=120, **keeper.sdk_options())
    try:
        assert sandbox.files.read("/home/user/ready.txt") == "ready\n"
    finally:
        sandbox.kill()


@pytest.fixture
def inside(keeper: Keeper) -> Iterator[httpx.Client]:
    """What the plan's `https://{port}-{id}.{domain}` reaches, with the token where E2B takes it."""
    with keeper.engine_client() as engine:
        made = engine.post("/sandboxes", json=CREATE).json()
        host = f"49983-{made['sandboxID']}.localhost"
        headers = {"Host": host, "X-Access-Token": made["envdAccessToken"]}
        with httpx.Client(base_url=keeper.engine_url, headers=headers, timeout=60) as client:
            yield client
        engine.delete(f"/sandboxes/{made['sandboxID']}")


def stream(client: httpx.Client, method: str, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Call a method that streams, as connect-go does, and give its messages."""
    body = json.dumps(message).encode()
    headers = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}
    content = struct.pack(">BI", 0, len(body)) + body
    with client.stream("POST", f"/{method}", content=content, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        data = b""
        for piece in answer.iter_bytes():
            data += piece
            while len(data) >= 5 and len(data) >= 5 + (size := struct.unpack(">I", data[1:5])[0]):
                yield json.loads(data[5 : 5 + size])
                data = data[5 + size :]


def test_every_method_of_envd_is_there(inside: httpx.Client) -> None:
    service = ""
    for line in RPC.strip().splitlines():
        words = line.replace("(", " ").split()
        if words[0] == "service":
            service = words[1]
            package = service.lower()
        elif words[0] == "rpc":
            method = f"{package}.{service}/{words[1]}"
            if "(stream " in line:
                answer = [*stream(inside, method, {})][-1].get("error", {})
            else:
                answer = inside.post(f"/{method}", json={}).json()
            assert answer.get("code") != "unimplemented", method


def test_the_token_in_the_plans_header_is_refused_with_the_right_name(
    inside: httpx.Client,
) -> None:
    bearer = f"Bearer {inside.headers.pop('X-Access-Token')}"
    for path in ("/files?path=/app/file.txt", "/metrics"):
        refused = inside.get(path, headers={"Authorization": bearer})
        assert refused.status_code == 401
        assert "X-Access-Token" in refused.json()["message"]


def test_a_command_runs_as_the_plan_starts_it(inside: httpx.Client) -> None:
    config = {"cmd": "sh", "args": ["-c", "echo hello; exit 3"], "cwd": "/home/user"}
    events = [
        one.get("event", {}) for one in stream(inside, "process.Process/Start", {"process": config})
    ]
    said = [one["data"]["stdout"] for one in events if "data" in one]
    assert said == ["aGVsbG8K"]
    assert [one["end"]["exitCode"] for one in events if "end" in one] == [3]


def test_files_are_written_and_read_as_the_plan_does_it(inside: httpx.Client) -> None:
    (get, path), (post, upload), (_, health), (_, metrics) = (
        line.split()[:2] for line in FILES.strip().splitlines()
    )
    written = inside.request(post, upload, files={"file": ("file.txt", b"content")})
    assert written.status_code == 200, written.text
    assert inside.request(get, path).content == b"content"
    assert inside.get(health).is_success
    assert inside.get(metrics).json()["cpu_count"] >= 1
    listed = inside.post("/filesystem.Filesystem/ListDir", json={"path": "/app"}).json()["entries"]
    assert [(one["name"], one["path"]) for one in listed] == [("file.txt", "/app/file.txt")]
