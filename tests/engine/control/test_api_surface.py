"""Every route that an official SDK can call is here, or says 501 and why; and the smaller ones."""

from __future__ import annotations

import pkgutil
import re
import uuid
from importlib import import_module
from pathlib import Path
from typing import Any

import e2b.api.client.api
import e2b.volume.client.api
import httpx
import orjson
import pytest
from e2b import Sandbox, Secret
from e2b.exceptions import SandboxException, SecretNotFoundException

from sandkeeper.engine.control.account import count_points
from sandkeeper.engine.control.unsupported import LEFT_OUT
from support.engine_process import Engine

SCHEMA = Path(__file__).parents[3] / "node_modules" / "e2b" / "dist" / "index.d.ts"
OF_ENVD = ("/envs", "/files", "/health", "/metrics")


def list_python_routes() -> set[tuple[str, str]]:
    found = set()
    for package in (e2b.api.client.api, e2b.volume.client.api):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            source = Path(str(import_module(module.name).__file__)).read_text()
            call = re.search(r'"method": "(\w+)",\s+"url": f?"([^"]+)"', source)
            if call:
                found.add((call[1].upper(), call[2]))
    return found


def list_javascript_routes() -> set[tuple[str, str]]:
    if not SCHEMA.exists():
        pytest.skip("the e2b package of npm is not here: make test installs it")
    found = set()
    for path, body in re.findall(r'\n  "(/[^"]*)": \{(.*?)\n  \};', SCHEMA.read_text(), re.DOTALL):
        methods = re.findall(r"\n    (get|put|post|patch|delete): \{", body)
        found |= {(one.upper(), path) for one in methods if not path.startswith(OF_ENVD)}
    return found


@pytest.mark.parametrize("list_routes", [list_python_routes, list_javascript_routes])
def test_every_route_of_an_sdk_is_here_or_says_that_it_is_not(
    engine: Engine, list_routes: Any
) -> None:
    routes = list_routes()
    assert len(routes) > 30

    missing = []
    with engine.client() as client:
        for method, path in sorted(routes):
            answer = client.request(method, re.sub(r"\{\w+\}", str(uuid.uuid4()), path), json={})
            is_unknown = answer.status_code == 405 or "there is no /" in answer.text
            if is_unknown or answer.status_code == 501:
                missing.append((method, path))
    assert missing == []


def test_what_is_left_out_answers_501_with_its_name(engine: Engine) -> None:
    with engine.client() as client:
        for (method, path), (name, _advice) in LEFT_OUT.items():
            answer = client.request(method, path.replace("{id}", "x").replace("{build}", "y"))
            assert (answer.status_code, name in answer.json()["message"]) == (501, True)
    assert httpx.post(f"{engine.url}/api-keys").status_code == 401


def test_there_is_one_team_with_the_key_and_its_metrics(engine: Engine) -> None:
    box = Sandbox.create(**engine.sdk_options())
    with engine.client() as client:
        (team,) = client.get("/teams").json()
        (key,) = client.get("/api-keys").json()
        points = client.get(f"/teams/{team['teamID']}/metrics").json()
        metric = {"metric": "concurrent_sandboxes"}
        most = client.get(f"/teams/{team['teamID']}/metrics/max", params=metric).json()
        assert client.get("/teams/another/metrics").status_code == 404
        assert client.get(f"/teams/{team['teamID']}/metrics/max").status_code == 400
    box.kill()

    assert (team["apiKey"], team["isDefault"]) == (engine.key, True)
    assert engine.key.endswith(key["mask"]["maskedValueSuffix"])
    assert points[-1]["timestampUnix"] >= points[0]["timestampUnix"]
    assert most["value"] >= 1


def test_metrics_count_what_ran_at_once_and_what_started() -> None:
    def kind(name: str) -> str:
        return f"sandbox.lifecycle.{name}"

    changes = [
        (100.0, kind("created"), "a"),
        (101.0, kind("created"), "b"),
        (102.0, kind("paused"), "a"),
        (130.0, kind("killed"), "a"),
        (131.0, kind("killed"), "b"),
    ]
    assert count_points(changes, 90, 150, 15) == [
        (90, 0, 0.0),
        (105, 2, 2 / 15),
        (120, 1, 0.0),
        (135, 1, 0.0),
        (150, 0, 0.0),
    ]


def test_a_killed_sandbox_keeps_its_log_as_the_command_line_reads_it(engine: Engine) -> None:
    box = Sandbox.create(**engine.sdk_options())
    box.kill()

    with engine.client() as client:
        first = client.get(f"/sandboxes/{box.sandbox_id}/logs").json()
        second = client.get(f"/v2/sandboxes/{box.sandbox_id}/logs").json()
        assert client.get("/sandboxes/ixxxxxxxxxxxxxxxxxxxx/logs").status_code == 404

    lines = [orjson.loads(one["line"]) for one in first["logs"]]
    assert [line["message"] for line in lines] == ["sandbox created", "sandbox killed"]
    assert {(line["level"], line["logger"]) for line in lines} == {("info", "lifecycle")}
    assert [entry["message"] for entry in second["logs"]] == ["sandbox created", "sandbox killed"]


def test_secrets_are_kept_and_never_shown(engine: Engine) -> None:
    options = {"api_url": engine.url, "api_key": engine.key}
    name = f"key-{uuid.uuid4()}"
    made = Secret.create(name, "first-value", metadata={"team": "a"}, **options)
    updated = Secret.update(name, "second-value", **options)

    assert (made.version, updated.version, updated.metadata) == (1, 2, {"team": "a"})
    assert name in [one.name for one in Secret.list(**options).next_items()]
    with engine.client() as client:
        shown = client.get("/secrets").text + client.get(f"/secrets/{made.secret_id}").text
        assert "value" not in shown
        assert client.post("/secrets", json={"name": name, "value": "x"}).status_code == 409
        assert client.post("/secrets", json={"name": "{", "value": "x"}).status_code == 400
        assert (
            client.post("/secrets", json={"name": "big", "value": "x" * 65537}).status_code == 400
        )
    assert Secret.destroy(name, **options)
    with pytest.raises(SecretNotFoundException):
        Secret.get_info(name, **options)


@pytest.mark.parametrize("name", [":x", "a:", "a::b"])
def test_a_name_with_half_a_tag_is_refused(engine: Engine, name: str) -> None:
    with engine.client() as client:
        assert client.post("/v3/templates", json={"name": name}).status_code == 400
        tagged = client.post("/v3/templates", json={"name": "tagged", "tags": [name]})
        assert tagged.status_code == 400


def test_tags_are_counted_found_and_grouped(engine: Engine) -> None:
    with engine.client() as client:
        assert client.get("/templates/base/tags/count").json() == {"total": 1}
        found = client.get("/templates/base/tags/exists", params={"tag": "none"}).json()
        assert found == {"exists": False, "normalizedTag": "none"}
        (group,) = client.get("/templates/base/tags/groups").json()["tags"]
        (one,) = client.get("/templates/base/tags/default/assignments").json()["data"]
        assert (group["tag"], group["assignments"]) == ("default", [one])
        assert client.get("/templates/base/tags/no/assignments").status_code == 404
        assert client.get("/templates/base/tags/groups?sort=x").status_code == 400


def test_a_boot_id_changes_with_a_start_from_the_disk_only(engine: Engine) -> None:
    box = Sandbox.create(**engine.sdk_options())

    def read() -> str:
        return box.files.read("/proc/sys/kernel/random/boot_id")

    first = read()
    assert str(uuid.UUID(first.strip())) == first.strip()
    with engine.client() as client:
        client.post(f"/sandboxes/{box.sandbox_id}/pause", json={"memory": False})
    box.connect()
    second = read()
    box.pause()
    box.connect()
    assert (first != second, read()) == (True, second)
    box.kill()


def test_files_of_proc_are_read_by_a_process_of_the_user(engine: Engine) -> None:
    box = Sandbox.create(**engine.sdk_options())

    assert box.files.read("/proc/self/status").startswith("Name:\tcat\n")
    assert "MemTotal" in box.files.read("/proc/meminfo")
    box.commands.run("ln -s /proc/version link")
    assert box.files.read("link").startswith("Linux version")
    with pytest.raises(SandboxException, match="permission denied"):
        box.files.read("/proc/1/environ")
    with pytest.raises(SandboxException, match="does not exist"):
        box.files.read("/proc/nothing")
    box.kill()
