"""Snippets of the plan for an E2B backend: routes, a creation, envd and a Dockerfile."""

from __future__ import annotations

import secrets

import httpx
import pytest
from e2b import Sandbox, Template

from support.keeper_process import Keeper

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
