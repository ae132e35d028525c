"""Traces arrive at a real OTLP receiver, and lead from a request to its claim, act and record."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from support.engine_process import Engine
from support.keeper_process import Keeper
from support.otlp_receiver import receiving_traces

KEY = "sk_traced"


class TracedKeeper(Keeper):
    """A keeper whose environment names an OTLP endpoint."""

    endpoint = ""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint}


def test_a_trace_leads_from_the_request_through_claim_act_and_record_to_events_and_logs(
    engine: Engine, project: str, tmp_path: Path
) -> None:
    keeper = TracedKeeper(tmp_path / "data", engine=engine, operator_key=KEY, log_format="json")
    path = f"/api/sandboxes/{project}"
    with receiving_traces() as receiver:
        keeper.endpoint = receiver.url
        try:
            keeper.start()
            trace_id, caller = secrets.token_hex(16), secrets.token_hex(8)
            given = {"traceparent": f"00-{trace_id}-{caller}-01"}
            with keeper.client(KEY) as api:
                assert api.put(path, json={"policy": {"idleTimeoutMs": 600_000}}).is_success
                assert api.post(f"{path}/pause", headers=given).is_success
                changes = api.get(f"{path}/history").json()["items"]
                problem = api.post(f"{path}/nothing", headers=given).json()
                api.delete(path)
        finally:
            keeper.stop()
        spans = receiver.of(trace_id)
    assert problem["traceId"] == trace_id
    assert trace_id in [change["detail"].get("traceId") for change in changes]
    lines = [json.loads(line) for line in keeper.output.splitlines() if line.startswith("{")]
    named = [line for line in lines if line.get("trace_id") == trace_id]
    assert {line.get("project") for line in named} >= {project}
    assert all(line["request_id"] for line in named)
    by_id = {span.span_id: span for span in spans}
    request = next(span for span in spans if span.name.endswith("/pause"))
    assert (request.parent_id, request.service) == (caller, "sandkeeper")
    assert request.attributes["sandkeeper.project"] == project
    assert request.attributes["http.response.status_code"] == 200
    for name in ("claim", "provider pause", "record"):
        found = next(span for span in spans if span.name == name)
        while found.parent_id in by_id:
            found = by_id[found.parent_id]
        assert found is request
    record = next(span for span in spans if span.name == "record")
    assert record.attributes["sandkeeper.events"] == ["sandbox.state_changed"]
