"""`deploy/compose.yaml` and what it mounts fit together; `make smoke` runs all of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return found


def test_every_file_that_is_mounted_exists(services: dict[str, Any]) -> None:
    mounted = [
        volume.partition(":")[0]
        for service in services.values()
        for volume in service.get("volumes", [])
        if volume.startswith("./")
    ]
    assert len(mounted) == 6
    for path in mounted:
        assert (DEPLOY / path).exists(), path


def test_every_host_that_a_file_names_is_a_service_or_an_alias(services: dict[str, Any]) -> None:
    known = set(services) | {"keeper"}
    texts = [
        yaml.safe_dump(services),
        (DEPLOY / "prometheus.yaml").read_text(),
        (DEPLOY / "Caddyfile").read_text(),
        (DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yaml").read_text(),
    ]
    named = set(re.findall(r"\b([a-z][a-z0-9-]*):(?:7420|9000|9090|9093)\b", " ".join(texts)))
    assert {"bucket", "prometheus", "alertmanager", "keeper-1", "keeper-2"} <= named <= known
    for name in ("keeper-1", "keeper-2"):
        assert services[name]["networks"]["default"]["aliases"] == ["keeper"]


def test_every_variable_that_compose_needs_is_in_the_example(services: dict[str, Any]) -> None:
    needed = set(re.findall(r"\$\{(\w+)", yaml.safe_dump(services)))
    given = set(re.findall(r"^(\w+)=", (DEPLOY / "example.env").read_text(), re.MULTILINE))
    assert needed == given


def test_the_keepers_have_a_read_only_root_and_no_rights(services: dict[str, Any]) -> None:
    for name in ("keeper-1", "keeper-2"):
        keeper = services[name]
        assert keeper["read_only"] is True
        assert keeper["cap_drop"] == ["ALL"]
        assert keeper["security_opt"] == ["no-new-privileges:true"]
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^USER 10001:10001$", dockerfile, re.MULTILINE)
    assert "HEALTHCHECK" in dockerfile


@pytest.mark.parametrize(
    "words",
    [
        ["caddy", "validate", "--adapter", "caddyfile", "--config", "Caddyfile"],
        ["promtool", "check", "config", "--lint=none", "prometheus.yaml"],
        ["amtool", "check-config", "alertmanager.yaml"],
    ],
    ids=lambda words: words[0],
)
def test_the_programs_accept_their_configuration(words: list[str], tmp_path: Path) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    done = subprocess.run(
        words,
        cwd=DEPLOY,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
