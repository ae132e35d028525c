"""The shipped Grafana dashboard shows every metric that exists, and none that does not."""

from __future__ import annotations

import os
import re

from sandkeeper.telemetry import Metrics
from support import grafana


def test_the_dashboard_is_in_step_with_the_metrics() -> None:
    made = grafana.render()
    if os.environ.get("UPDATE_DOCS"):
        grafana.PAGE.write_text(made)
    assert grafana.PAGE.read_text() == made, "run UPDATE_DOCS=1 pytest tests/conventions"


def test_every_metric_of_the_keeper_is_on_a_panel_and_every_panel_shows_one() -> None:
    shown = set()
    for row in grafana.ROWS.values():
        for panel in row:
            for query, _ in panel.queries:
                found = re.findall(r"\b(?:sandkeeper|process)_\w+", query)
                assert found, panel.title
                shown.update(re.sub(r"_(total|bucket)$", "", name) for name in found)
    existing = {
        re.sub(r"_total$", "", family.name)
        for family in Metrics().registry.collect()
        if family.name.startswith("sandkeeper_")
    }
    assert {name for name in shown if name.startswith("sandkeeper_")} == existing


def test_every_label_of_a_legend_is_kept_by_its_query() -> None:
    for row in grafana.ROWS.values():
        for panel in row:
            for query, legend in panel.queries:
                kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", query))))
                if not query.startswith(("rate(process", "process")):
                    assert set(re.findall(r"{{(\w+)}}", legend)) <= kept, panel.title
