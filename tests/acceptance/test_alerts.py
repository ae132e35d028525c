"""Every selector of the shipped alert rules finds a series of a running keeper."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import httpx
from prometheus_client.parser import text_string_to_metric_families

from sandkeeper.domain.errors import PayloadTooLargeError
from sandkeeper.domain.tasks import TaskName
from sandkeeper.services.observe.webhooks import DELIVERY_OUTCOMES, FAILURE_OUTCOMES
from support.alert_rules import read_selectors
from support.keeper_process import Keeper
from support.signed_webhooks import make_event, read_secret, send, sign

Series = list[tuple[str, dict[str, str]]]


def read_series(api: httpx.Client) -> Series:
    text = api.get("/metrics").text
    return [
        (sample.name, sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def list_values(series: Series, label: str, metric: str) -> set[str]:
    return {labels[label] for name, labels in series if name == metric}


@contextmanager
def without_inbox(keeper: Keeper) -> Iterator[None]:
    """A database that cannot record deliveries, for the length of a block."""
    with sqlite3.connect(keeper.data / "sandkeeper.db") as database:
        database.execute("ALTER TABLE deliveries RENAME TO deliveries_away")
    try:
        yield
    finally:
        with sqlite3.connect(keeper.data / "sandkeeper.db") as database:
            database.execute("ALTER TABLE deliveries_away RENAME TO deliveries")


def post_each_kind(keeper: Keeper, api: httpx.Client, instance_id: str) -> None:
    secret = read_secret(keeper, api)

    def post(body: bytes) -> httpx.Response:
        return send(api, body, sign(secret, body))

    lost = make_event(instance_id, id=secrets.token_hex(8))
    with without_inbox(keeper):
        assert post(lost).status_code >= 500
    now = datetime.now(UTC).isoformat()
    paused = make_event(
        instance_id, id=secrets.token_hex(8), type="sandbox.lifecycle.paused", timestamp=now
    )
    assert post(paused).json()["outcome"] == "changed"
    assert post(paused).json()["outcome"] == "duplicate"
    assert post(make_event("unknown", id=secrets.token_hex(8))).json()["outcome"] == "unknown"
    odd = make_event(instance_id, id=secrets.token_hex(8), type="sandbox.lifecycle.sang")
    assert post(odd).json()["outcome"] == "ignored"
    assert send(api, paused, "nonsense").status_code == 401
    assert post(b"this is not JSON").status_code == 422


def test_every_selector_of_the_alert_rules_finds_a_series(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    made = api.put(f"/api/sandboxes/{project}", json={}).json()
    for task in TaskName:
        run = api.post(f"/api/tasks/{task}/run").json()
        assert run["ok"], run
    registered = {task["name"] for task in api.get("/readyz").json()["tasks"]}
    assert registered == {task.value for task in TaskName}
    post_each_kind(keeper, api, made["instanceId"])
    series = read_series(api)
    success = "sandkeeper_background_last_success_timestamp_seconds"
    assert list_values(series, "task", success) == registered
    outcomes = list_values(series, "outcome", "sandkeeper_webhook_received_total")
    # The server refuses a body that is too large before the receiver sees it.
    assert FAILURE_OUTCOMES - {PayloadTooLargeError.code} <= outcomes <= DELIVERY_OUTCOMES
    assert [one for one in read_selectors() if not one.finds(series)] == []
    api.delete(f"/api/sandboxes/{project}")
