"""Whatever the OpenAPI document allows, and what it does not, the server answers as it promises."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from sandkeeper.api.app import make_api
from sandkeeper.api.routes import ROUTES
from support.keeper_process import Keeper

DOCUMENT: dict[str, Any] = make_api().openapi()

# Streams never end; some would make a real sandbox for every odd name thought of; the
# others turn parts off or run a whole pass. Each of them has tests of its own.
ELSEWHERE = {
    ("GET", "/api/sandboxes/{project}/events"),
    ("GET", "/api/fleet/events"),
    ("PUT", "/api/sandboxes/{project}"),
    ("POST", "/api/sessions/acquire"),
    ("POST", "/api/jobs"),
    ("POST", "/api/generation"),
    ("PUT", "/api/pools"),
    ("PATCH", "/api/switches"),
    ("POST", "/api/tasks/{name}/run"),
    ("POST", "/api/fleet/reconcile"),
    ("POST", "/api/webhooks"),
    ("DELETE", "/api/webhooks"),
    ("GET", "/metrics"),
}
OPERATIONS = [
    (method.upper(), path)
    for path, methods in DOCUMENT["paths"].items()
    for method in methods
    if (method.upper(), path) not in ELSEWHERE
]
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_operation_keeps_its_promise(keeper: Keeper, method: str, path: str) -> None:
    @settings(
        max_examples=8,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=SCHEMA[path][method].as_strategy())
    def probe(case: Any) -> None:
        headers = {"Authorization": f"Bearer {keeper.key}"}
        case.call_and_validate(base_url=keeper.url, headers=headers, checks=CHECKS)

    probe()


def test_every_answer_with_a_body_tells_its_shape() -> None:
    silent = {
        (method.upper(), path)
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
        if not any(
            answer.get("content")
            for status, answer in operation["responses"].items()
            if status.startswith("2")
        )
    }
    assert silent == {(entry.method, _plain(entry.path)) for entry in ROUTES if not entry.answer}


def _plain(path: str) -> str:
    return path.replace(":path}", "}")
