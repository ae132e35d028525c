"""The wall behind which a run of the tests has its sandboxes: bubblewrap's, or gVisor's too.

`make test-gvisor` runs the engine's suites with `TEST_ISOLATION=gvisor`; `make test` a part of it.
"""

from __future__ import annotations

import os

import pytest

from sandkeeper.engine.runtime.contract import Isolation, RuntimeFaultError
from sandkeeper.engine.runtime.gvisor import runsc

ISOLATION = Isolation(os.environ.get("TEST_ISOLATION", Isolation.BUBBLEWRAP))
IS_GVISOR = ISOLATION is Isolation.GVISOR


def not_on_gvisor(reason: str) -> pytest.MarkDecorator:
    """Skip a test in the run with gVisor, for a reason that the docs tell as well."""
    return pytest.mark.skipif(IS_GVISOR, reason=f"gVisor: {reason}")


def _find_fault() -> str | None:
    """Return why this machine cannot have gVisor's wall."""
    try:
        runsc.find_program()
    except RuntimeFaultError as fault:
        return str(fault)
    return None


_FAULT = _find_fault()
needs_gvisor = pytest.mark.skipif(_FAULT is not None, reason=f"no gVisor here: {_FAULT}")
