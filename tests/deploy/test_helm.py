"""The Helm chart renders, and Kubernetes' own schemas accept what it renders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandkeeper.settings import Settings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "sandkeeper"
TOOLS = ROOT / ".venv" / "sdk" / "helm"
FILES_URL = "files.url=s3://bucket/prefix"
EVERYTHING = (
    FILES_URL,
    "publicUrl=https://sandkeeper.example.com",
    "files.claim=shared",
    "env.SANDKEEPER_IDLE_TIMEOUT_S=300",
    "ingress.enabled=true",
    "ingress.className=nginx",
    "ingress.previewDomain=preview.example.com",
    "ingress.tlsSecret=wildcard",
    "autoscaling.enabled=true",
    "serviceMonitor.enabled=true",
    "prometheusRules.enabled=true",
    "image.digest=sha256:0123",
)

pytestmark = pytest.mark.skipif(
    not (TOOLS / "bin" / "helm").exists(), reason="helm is not installed: make sdks"
)


def run_helm(*values: str) -> subprocess.CompletedProcess[str]:
    options = [part for value in values for part in ("--set", value)]
    return subprocess.run(
        [str(TOOLS / "bin" / "helm"), "template", "here", str(CHART), *options],
        capture_output=True,
        text=True,
        check=False,
    )


def render(*values: str) -> dict[str, Mapping[str, Any]]:
    done = run_helm(*values)
    assert done.returncode == 0, done.stderr
    return {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}


@pytest.mark.parametrize("values", [(FILES_URL,), EVERYTHING], ids=["defaults", "everything"])
def test_kubernetes_accepts_every_object_of_the_chart(
    values: tuple[str, ...], tmp_path: Path
) -> None:
    page = tmp_path / "rendered.yaml"
    page.write_text(run_helm(*values).stdout)
    done = subprocess.run(
        [sys.executable, str(TOOLS / "bin" / "kubernetes-validate"), "-k", "1.30", str(page)],
        env={**os.environ, "PYTHONPATH": str(TOOLS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = {"Deployment", "Job", "Service", "PodDisruptionBudget", "ServiceAccount"}
    passed = {kind for kind in wanted if f"passed for resource {kind.lower()}/" in done.stdout}
    assert passed == wanted


def test_without_a_place_for_files_the_chart_says_what_to_set() -> None:
    done = run_helm()
    assert done.returncode != 0
    assert "files.url says where saved files lie" in done.stderr


def test_every_variable_of_the_chart_is_a_setting() -> None:
    (keeper,) = render(*EVERYTHING)["Deployment"]["spec"]["template"]["spec"]["containers"]
    names = {one["name"] for one in keeper["env"]}
    known = {f"SANDKEEPER_{name.upper()}" for name in Settings.model_fields}
    assert names <= known
    assert "SANDKEEPER_IDLE_TIMEOUT_S" in names


def test_a_replica_runs_without_any_privilege_and_has_time_to_drain() -> None:
    pod = render(FILES_URL)["Deployment"]["spec"]["template"]["spec"]
    (keeper,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert keeper["securityContext"]["readOnlyRootFilesystem"] is True
    assert keeper["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert keeper["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert keeper["readinessProbe"]["httpGet"]["path"] == "/readyz"
    drain_s = int(keeper["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= drain_s + 10


def test_the_migration_runs_before_the_replicas_and_needs_nothing_of_the_chart() -> None:
    job = render(FILES_URL)["Job"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    pod = job["spec"]["template"]["spec"]
    assert "serviceAccountName" not in pod
    assert pod["containers"][0]["args"] == ["db", "upgrade"]


def test_previews_have_a_wildcard_host_and_alerts_are_the_shipped_ones() -> None:
    rendered = render(*EVERYTHING)
    hosts = [rule["host"] for rule in rendered["Ingress"]["spec"]["rules"]]
    assert hosts == ["sandkeeper.example.com", "*.preview.example.com"]
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus-rules.yaml").read_text())
    assert rendered["PrometheusRule"]["spec"] == rules
    image = rendered["Deployment"]["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == "sandkeeper@sha256:0123"
