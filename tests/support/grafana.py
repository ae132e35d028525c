"""The Grafana dashboard, made from the keeper's own list of metrics.

Every panel names its metric as an attribute of `Metrics`, so a renamed metric cannot leave a panel
behind. `UPDATE_DOCS=1 pytest tests/conventions` writes the dashboard again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from sandkeeper.telemetry import Metrics

PAGE = Path(__file__).parents[2] / "deploy/grafana/dashboards/sandkeeper.json"
METRICS = Metrics()
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
PROMETHEUS = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: its title, unit and PromQL expressions with their legends."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"


def rate(metric: str, *by: str) -> str:
    """Return the rate per second of a counter, summed over replicas."""
    return f"sum{_by(by)} (rate({_name(metric, Counter)}_total[$__rate_interval]))"


def latest(metric: str, *by: str, over: str = "max") -> str:
    """Return a gauge; replicas report the same fleet, so the largest value counts."""
    return f"{over}{_by(by)} ({_name(metric, Gauge)})"


def quantile(metric: str, share: float, *by: str) -> str:
    """Return a quantile of a histogram over all replicas."""
    bucket = f"{_name(metric, Histogram)}_bucket"
    return f"histogram_quantile({share}, sum{_by(('le', *by))} (rate({bucket}[$__rate_interval])))"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def _name(metric: str, kind: type[Counter | Gauge | Histogram]) -> str:
    found = getattr(METRICS, metric)
    assert isinstance(found, kind), f"{metric} is not a {kind.__name__}"
    name: str = found._name
    return name


def lines(title: str, *queries: tuple[str, str], unit: str = "short") -> Panel:
    return Panel(title, queries, unit)


def spread(title: str, metric: str, *by: str) -> Panel:
    """Return a chart of the median and the 95th percentile of a histogram of seconds."""
    legend = " ".join(f"{{{{{label}}}}}" for label in by)
    shares = ((0.5, "p50"), (0.95, "p95"))
    queries = tuple((quantile(metric, share, *by), f"{name} {legend}") for share, name in shares)
    return Panel(title, queries, "s")


ROWS: dict[str, tuple[Panel, ...]] = {
    "Fleet": (
        lines("Sandboxes by state", (latest("sandboxes", "state"), "{{state}}")),
        lines(
            "State changes", (rate("transitions", "to_state", "cause"), "{{to_state}} {{cause}}")
        ),
        lines(
            "Attention",
            (latest("sandboxes_stale"), "stale records"),
            (latest("idle_overdue"), "overdue pauses"),
            (latest("captures_waiting"), "captures waiting"),
        ),
    ),
    "Sleep": (
        spread("Idle pause delay", "idle_lag"),
        spread("Idle time before a pause", "idle_tail"),
        lines(
            "Idle pauses",
            (rate("idle_pauses_failed"), "failed"),
            (rate("idle_pauses_early"), "too early"),
            (rate("work_checks", "found"), "check: {{found}}"),
        ),
    ),
    "Wake": (
        spread("Time until the app answers", "ready_duration", "op"),
        spread("Lifecycle operations", "operation_duration", "op"),
        lines(
            "Recreated, restored, warmed up",
            (rate("recreations", "reason"), "recreated: {{reason}}"),
            (rate("files_restored"), "files restored"),
            (rate("warmups", "outcome"), "warm-up: {{outcome}}"),
        ),
    ),
    "Provider": (
        lines(
            "Provider up, breaker",
            (latest("provider_up", "provider", "region", over="min"), "up {{region}}"),
            (latest("breaker_state", "provider", "region"), "breaker {{region}}"),
            (latest("reconciler", "provider", "region", over="sum"), "reconcilers {{region}}"),
        ),
        lines("Requests by result", (rate("provider_requests", "op", "code"), "{{op}} {{code}}")),
        spread("Request duration", "provider_duration", "op"),
    ),
    "Capacity": (
        lines(
            "Slots",
            (latest("slots_taken", "region"), "taken {{region}}"),
            (latest("slots_max", "region"), "limit {{region}}"),
        ),
        spread("Wait in line", "admission_wait"),
        lines(
            "Admissions",
            (rate("admissions", "outcome"), "{{outcome}}"),
            (rate("evictions", "outcome"), "made room: {{outcome}}"),
        ),
    ),
    "Webhooks and drift": (
        lines(
            "Webhooks",
            (rate("webhooks_received", "outcome"), "{{outcome}}"),
            (latest("webhooks_expected"), "expected"),
        ),
        spread("From event to record", "webhook_lag"),
        lines(
            "Drift and wrong times",
            (rate("drift", "kind"), "{{kind}}"),
            (rate("events_ahead", "source"), "ahead: {{source}}"),
        ),
    ),
    "Requests": (
        lines("Requests", (rate("requests", "method", "code"), "{{method}} {{code}}")),
        spread("Time until the answer begins", "http_duration", "route"),
        lines(
            "Pages",
            (rate("page_views"), "page views"),
            (rate("mismatches"), "mismatches"),
            (latest("sse_connections", over="sum"), "open streams"),
        ),
    ),
    "Previews": (
        lines(
            "Requests to previews",
            (rate("preview_requests", "code", "preview"), "{{code}} {{preview}}"),
        ),
        spread("Time until the answer is complete", "preview_duration"),
    ),
    "Sessions and files": (
        lines(
            "Sessions",
            (latest("sessions_active", "kind"), "active {{kind}}"),
            (rate("sessions_created", "kind"), "created {{kind}}"),
            (rate("sessions_reused", "kind"), "reused {{kind}}"),
            (rate("sessions_cleaned", "kind"), "closed {{kind}}"),
            (rate("sessions_health_failures", "kind"), "unhealthy {{kind}}"),
        ),
        lines("Warm pools", (rate("pool_claims", "outcome"), "{{outcome}}")),
        lines(
            "Captures",
            (rate("captures", "outcome"), "{{outcome}}"),
            (latest("folder_watches", over="sum"), "watched folders"),
        ),
    ),
    "Costs": (
        lines("Dollars of this month", (latest("cost_dollars", "part"), "{{part}}")),
        lines("Dollars saved this month", (latest("cost_saved_dollars", "against"), "{{against}}")),
        lines(
            "Budgets",
            (latest("budgets_spent"), "spent"),
            (rate("budget_notices", "share"), "notices at {{share}} %"),
        ),
    ),
    "Keeper": (
        spread("Background runs", "background_run", "task"),
        lines(
            "Time since the last success",
            (f"time() - {latest('background_success', 'task')}", "{{task}}"),
            (latest("feed_age", "instance"), "feed {{instance}}"),
            unit="s",
        ),
        spread("Event loop lag", "event_loop_lag"),
        lines(
            "Database connections",
            (latest("database_connections", "instance", "state"), "{{instance}} {{state}}"),
        ),
        lines(
            "Clock difference",
            (latest("clock_skew", "clock", "region"), "{{clock}} {{region}}"),
            unit="s",
        ),
        lines(
            "Processor and memory",
            ("rate(process_cpu_seconds_total[$__rate_interval])", "cores {{instance}}"),
            ("process_resident_memory_bytes / 1e9", "GB {{instance}}"),
        ),
    ),
}


def render() -> str:
    """Return the dashboard as Grafana's JSON."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append(
            _place({"type": "row", "title": title, "panels": []}, len(panels), 0, top, 24, 1)
        )
        top += 1
        for index, panel in enumerate(row):
            left, down = index % COLUMNS * WIDTH, index // COLUMNS * HEIGHT
            panels.append(_place(_chart(panel), len(panels), left, top + down, WIDTH, HEIGHT))
        top += -(-len(row) // COLUMNS) * HEIGHT
    page = {
        "uid": "sandkeeper",
        "title": "Sandkeeper",
        "tags": ["sandkeeper"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source_variable()]},
        "panels": panels,
    }
    return json.dumps(page, indent=1) + "\n"


def _source_variable() -> dict[str, Any]:
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _chart(panel: Panel) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": PROMETHEUS,
            "expr": query,
            "legendFormat": legend.strip(),
        }
        for index, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": PROMETHEUS,
        "targets": targets,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "custom": {"spanNulls": False}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi"},
        },
    }


def _place(
    panel: dict[str, Any], number: int, left: int, top: int, width: int, height: int
) -> dict[str, Any]:
    return {"id": number + 1, "gridPos": {"x": left, "y": top, "w": width, "h": height}, **panel}
