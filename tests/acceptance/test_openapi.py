"""Whatever the OpenAPI document allows, and what it does not, the server answers as it promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS
from schemathesis.config import SchemathesisConfig

from sandkeeper.api.app import make_api
from sandkeeper.api.routes import ROUTES
from support.engine_process import Engine
from support.keeper_process import Keeper, keeping

DOCUMENT: dict[str, Any] = make_api().openapi()

# Streams never end; they have tests of their own.
STREAMS = {
    ("GET", "/api/sandboxes/{project}/events"),
    ("GET", "/api/fleet/events"),
}
OPERATIONS = [
    (method.upper(), path)
    for path, methods in DOCUMENT["paths"].items()
    for method in methods
    if (method.upper(), path) not in STREAMS
]
# What a request may get wrong: any body is a file's content, and an unknown query is ignored.
REFUSABLE = {
    (method.upper(), path)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if "requestBody" in operation
}
# 422 is also the answer to what no schema can say: an unknown region, a cursor of another list.
ACCEPTED = ["2xx", "3xx", "401", "402", "403", "404", "409", "422", "429"]
CONFIG = SchemathesisConfig.from_dict(
    {"checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}}}
)
# These compare several calls, which only the tool's own runner makes.
FOR_OTHERS = {"use_after_free", "ensure_resource_availability", "object_level_authorization"}
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT, config=CONFIG)


@pytest.fixture(scope="module")
def keeper(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    """A keeper of its own: the calls turn switches off and send many wrong keys."""
    data = tmp_path_factory.mktemp("openapi")
    with keeping(data, engine=engine, failed_logins_max=1_000_000) as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        (*operation, mode)
        for operation in OPERATIONS
        for mode in GenerationMode
        if mode is GenerationMode.POSITIVE or operation in REFUSABLE
    ],
)
def test_every_operation_keeps_its_promise(
    keeper: Keeper, method: str, path: str, mode: GenerationMode
) -> None:
    @settings(
        max_examples=3,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=SCHEMA[path][method].as_strategy(generation_mode=mode))
    def probe(case: Any) -> None:
        headers = {"Authorization": f"Bearer {keeper.key}"}
        checks = [one for one in CHECKS.get_all() if one.__name__ not in FOR_OTHERS]
        case.call_and_validate(base_url=keeper.url, headers=headers, checks=checks)

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
