"""The rendered status and its schema are one shape."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from sandkeeper.api.schemas.base import ReceiptOut
from sandkeeper.api.schemas.sandboxes import Status
from sandkeeper.api.status.serializers import (
    PresentationTable,
    dumps,
    render_receipt,
    render_status,
)
from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.receipt import Receipt, StepName, WakeMethod, WakeSummary
from sandkeeper.domain.sandbox import Claim, ClaimKind, Sandbox
from sandkeeper.domain.states import State

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = PresentationTable(poll_running_ms=5000, poll_starting_ms=1000, poll_waking_ms=500)
RECEIPT = Receipt(WakeMethod.RECREATE)


def record(**fields: Any) -> Sandbox:
    return Sandbox(
        id="sandbox-1",
        owner=Owner.project("shop"),
        provider="e2b",
        created_at=NOW,
        updated_at=NOW,
        state_since=NOW,
    ).evolve(**fields)


def keys_of(schema: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in schema.model_fields.items()}


@pytest.mark.parametrize("state", State)
def test_a_status_of_each_state_has_exactly_the_keys_of_its_schema(state: State) -> None:
    status = render_status(record(state=state), words=WORDS, now=NOW)
    assert status.keys() == keys_of(Status)
    assert Status.model_validate_json(dumps(status)).status == state.value


def test_a_status_while_it_wakes_and_after_has_the_keys_of_its_schema() -> None:
    waking = WakeSummary("wake-1", WakeMethod.RESUME, NOW, 1, step=StepName.RESUMING)
    claim = Claim(ClaimKind.WAKE, "replica", NOW + timedelta(minutes=1))
    woken = WakeSummary("wake-1", WakeMethod.RECREATE, NOW, 1, receipt=RECEIPT, finished_at=NOW)
    for fields in ({"wake": waking, "claim": claim}, {"wake": woken}):
        status = render_status(record(state=State.PAUSED, **fields), words=WORDS, now=NOW)
        assert status.keys() == keys_of(Status)
        shown = Status.model_validate_json(dumps(status))
        assert (shown.waking is None, shown.receipt is None) == (
            "claim" not in fields,
            "claim" in fields,
        )


def test_a_receipt_has_exactly_the_keys_of_its_schema() -> None:
    assert render_receipt(RECEIPT).keys() == keys_of(ReceiptOut)


def test_a_copied_field_shows_the_plain_value_of_the_record() -> None:
    sandbox = record(
        state=State.RUNNING,
        version=7,
        instance_id="instance-1",
        last_active_at=NOW,
        last_active_class=ActivityClass.INTENT,
    )
    shown = orjson.loads(dumps(render_status(sandbox, words=WORDS, now=NOW)))
    assert (shown["version"], shown["instanceId"]) == (7, "instance-1")
    assert (shown["lastActiveAt"], shown["lastActiveClass"]) == ("2026-01-01T00:00:00Z", "intent")
