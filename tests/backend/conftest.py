"""One contract, two backends.

kind          the backend under test: E2B's cloud when `E2B_API_KEY` is set,
              and the local engine always
make_config   a config for it
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from sandkeeper.integrations.backend import BackendConfig
from sandkeeper.integrations.backend.factory import BackendKind
from support.engine_process import Engine

CLOUD = pytest.param(
    "e2b",
    marks=[
        pytest.mark.cloud,
        pytest.mark.skipif(
            not os.environ.get("E2B_API_KEY"), reason="E2B's cloud needs E2B_API_KEY"
        ),
    ],
)


@pytest.fixture(params=["local", CLOUD])
def kind(request: pytest.FixtureRequest) -> BackendKind:
    chosen: BackendKind = request.param
    return chosen


@pytest.fixture
def make_config(kind: BackendKind, engine: Engine) -> Callable[..., BackendConfig]:
    def make(**given: Any) -> BackendConfig:
        place = {"data": engine.data} if kind == "local" else {}
        return BackendConfig(timeout_s=300, **place, **given)

    return make
