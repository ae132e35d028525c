"""The dashboard's charts, each with a title and the sentence that reads it aloud."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime
from typing import Any

from sandkeeper.domain.events import StateChanged, WakeProgressed
from sandkeeper.domain.receipt import StepName
from sandkeeper.domain.states import State
from sandkeeper.services.monitoring.metrics_history import MetricsHistory
from sandkeeper.store import Delivery, LoggedEvent, Store

# Points of one line. More than a screen has pixels for says nothing more.
POINTS_MAX = 240
# State changes that are read for the charts, the newest ones.
CHANGES_MAX = 1000

WAKE_KINDS = {
    StepName.RESUMING.value: "resume",
    StepName.REBOOTING.value: "reboot",
    StepName.RECREATING.value: "recreation",
}


async def draw_charts(store: Store, trends: MetricsHistory, *, since: datetime) -> dict[str, Any]:
    """Return every chart, from `since` on."""
    samples = await trends.list_states(since=since)
    found = await store.events.latest(types=[StateChanged.type], limit=CHANGES_MAX)
    changes = [event for event in reversed(found) if event.at >= since]
    steps = await store.events.latest(types=[WakeProgressed.type], limit=CHANGES_MAX)
    received = await store.deliveries.latest(limit=CHANGES_MAX)
    every = max(1, len(samples) // POINTS_MAX)
    return {
        "since": since,
        "stepS": 60 * every,
        "charts": [
            _states([(one.at, one.data) for one in samples[::every]]),
            _transitions(changes),
            _lags(changes),
            _wakes([event for event in reversed(steps) if event.at >= since]),
            _webhooks([one for one in reversed(received) if one.received_at >= since]),
        ],
    }


def _states(samples: list[tuple[datetime, dict[str, Any]]]) -> dict[str, Any]:
    last = samples[-1][1] if samples else {}
    text = ", ".join(f"{count} {name.lower()}" for name, count in last.items() if count)
    return {
        "name": "states",
        "title": "Sandboxes by state",
        "sentence": f"Now: {text}." if text else "Nothing has been measured yet.",
        "unit": "sandboxes",
        "series": [
            {
                "name": state.value,
                "points": [[at, float(data.get(state.value, 0))] for at, data in samples],
            }
            for state in State
        ],
    }


def _transitions(changes: list[LoggedEvent]) -> dict[str, Any]:
    by_cause: dict[str, Counter[datetime]] = defaultdict(Counter)
    for event in changes:
        hour = event.at.replace(minute=0, second=0, microsecond=0)
        by_cause[str(event.data.get("source") or event.actor)][hour] += 1
    return {
        "name": "transitions",
        "title": "State changes by cause",
        "sentence": f"{len(changes)} changes in this time.",
        "unit": "changes per hour",
        "series": [
            {"name": cause, "points": [[at, float(count)] for at, count in sorted(hours.items())]}
            for cause, hours in sorted(by_cause.items())
        ],
    }


def _lags(changes: list[LoggedEvent]) -> dict[str, Any]:
    points = [
        (event.at, float(lag))
        for event in changes
        if event.data.get("new_state") == State.PAUSED.value
        and isinstance(lag := event.data.get("lag_s"), int | float)
    ]
    sentence = "Nothing was put to sleep by the scheduler in this time."
    if points:
        p95 = _p95([lag for _, lag in points])
        sentence = f"95 of 100 idle sandboxes slept within {p95:.1f} s of their deadline."
    return {
        "name": "idle_lag",
        "title": "Lateness of idle pauses",
        "sentence": sentence,
        "unit": "s",
        "series": [{"name": "lag", "points": points[-POINTS_MAX:]}],
    }


def _wakes(steps: list[LoggedEvent]) -> dict[str, Any]:
    """Return how long wakes took, by their first step."""
    kinds: dict[str, str] = {}
    lines: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    for event in steps:
        wake, step = str(event.data.get("wake_id")), str(event.data.get("step"))
        kind = kinds.setdefault(wake, WAKE_KINDS.get(step, "app start"))
        if event.data.get("status") == "succeeded":
            lines[kind].append((event.at, float(event.data.get("elapsed_ms", 0)) / 1000))
    sentences = [
        f"95 of 100 wakes by {kind} took at most {_p95([took for _, took in points]):.1f} s."
        for kind, points in sorted(lines.items())
    ]
    return {
        "name": "wake_latency",
        "title": "Time until awake",
        "sentence": " ".join(sentences) or "Nothing was woken in this time.",
        "unit": "s",
        "series": [
            {"name": kind, "points": points[-POINTS_MAX:]} for kind, points in sorted(lines.items())
        ],
    }


def _webhooks(received: list[Delivery]) -> dict[str, Any]:
    points = [
        (one.received_at, max(0.0, (one.received_at - one.event_at).total_seconds()))
        for one in received
        if one.event_at is not None
    ]
    sentence = "No webhook came in this time."
    if points:
        p95 = _p95([lag for _, lag in points])
        sentence = f"95 of 100 webhooks came within {p95:.1f} s of their events."
    return {
        "name": "webhook_lag",
        "title": "Lateness of webhooks",
        "sentence": sentence,
        "unit": "s",
        "series": [{"name": "lag", "points": points[-POINTS_MAX:]}],
    }


def _p95(values: list[float]) -> float:
    """Return the 95th percentile."""
    return sorted(values)[int(0.95 * (len(values) - 1))]
