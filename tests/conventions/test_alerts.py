"""The shipped alert rules select series and label values that exist, and fire when they should."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import Histogram

from sandkeeper.domain.states import State
from sandkeeper.domain.tasks import TaskName
from sandkeeper.services.monitoring.health import PAGE_VIEWS_MIN, WEBHOOKS_MIN, limits
from sandkeeper.services.observe.webhooks import DELIVERY_OUTCOMES, FAILURE_OUTCOMES
from sandkeeper.telemetry import Metrics
from support.alert_rules import RULES, Selector, read_rules, read_selectors

RULES_TEST = Path(__file__).parent / "prometheus-rules.test.yaml"

VALUES = {
    "task": {name.value for name in TaskName},
    "state": {state.value for state in State},
    "outcome": set(DELIVERY_OUTCOMES),
}
"""Every value of the labels that rules select by, from the one place that defines them."""


def describe_metrics() -> dict[str, dict[str, set[str]]]:
    """Every series' name, its labels, and the values of `le`."""
    found: dict[str, dict[str, set[str]]] = {}
    registry = Metrics().registry
    for collector, names in registry._collector_to_names.items():
        labels = {name: VALUES.get(name, set()) for name in getattr(collector, "_labelnames", ())}
        for name in names:
            found[name] = dict(labels)
            if isinstance(collector, Histogram) and name.endswith("_bucket"):
                found[name]["le"] = {
                    "+Inf" if bound == float("inf") else str(bound)
                    for bound in collector._upper_bounds
                }
    return found


@pytest.mark.parametrize("selector", read_selectors(), ids=lambda one: f"{one.alert}-{one.metric}")
def test_every_selector_of_the_alert_rules_names_series_that_exist(selector: Selector) -> None:
    metrics = describe_metrics()
    assert selector.metric in metrics
    labels = metrics[selector.metric]
    for matcher in selector.matchers:
        assert matcher.label in labels
        for value in matcher.alternatives:
            assert value in labels[matcher.label]


def test_the_webhook_alerts_select_every_outcome_that_is_a_failure() -> None:
    selected = [
        set(matcher.alternatives)
        for selector in read_selectors()
        for matcher in selector.matchers
        if matcher.label == "outcome"
    ]
    assert selected == [set(FAILURE_OUTCOMES), set(FAILURE_OUTCOMES)]


def test_the_alert_rules_have_the_limits_of_the_health_report() -> None:
    expressions = " ".join(rule["expr"] for rule in read_rules())
    numbers = {float(found) for found in re.findall(r"(?:>=?|le=\")\s*([\d.]+)", expressions)}
    wanted = {*limits().values(), WEBHOOKS_MIN, PAGE_VIEWS_MIN} - {limits()["webhook_silence"]}
    assert wanted <= numbers


def test_each_alert_fires_and_stays_silent_as_its_cases_say() -> None:
    """Run Prometheus's own rule tests; the package `prometheus` of Debian has the program."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: the package prometheus)")
    done = subprocess.run(
        [promtool, "test", "rules", str(RULES_TEST)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_in_the_rule_tests() -> None:
    cases = set(re.findall(r"alertname: (\w+)", RULES_TEST.read_text()))
    assert {rule["alert"] for rule in read_rules()} == cases


def test_each_alert_names_its_section_of_the_runbooks() -> None:
    page = RULES.parents[1] / "docs" / "operations" / "runbooks.md"
    sections = re.findall(r"^## (\w+)$", page.read_text(), re.MULTILINE)
    assert set(sections) == {rule["alert"] for rule in read_rules()}
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        wanted = f"docs/operations/runbooks.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook"] == wanted
