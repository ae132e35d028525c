"""A sandbox that has the code interpreter with all of its packages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2b_code_interpreter import Sandbox

from sandkeeper.engine.interpreter.layer import PackagesLayer
from sandkeeper.engine.runtime.bubblewrap.binaries import find_uid_base
from support.engine_process import Engine


@pytest.fixture(scope="session", autouse=True)
def packages() -> PackagesLayer:
    found = PackagesLayer(find_uid_base())
    if not found.folder.is_dir():
        pytest.skip("the interpreter's packages are not here: make interpreter")
    return found


@pytest.fixture(scope="module")
def box(engine: Engine) -> Iterator[Sandbox]:
    sandbox = Sandbox.create(timeout=3600, **engine.sdk_options())
    yield sandbox
    sandbox.kill()
