"""The engine loads E2B's messages alone, and does not stand in the way of the whole SDK."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import sandkeeper.engine.server
assert "e2b" not in sys.modules
from sandkeeper.engine.envd.processes.service import ProcessContract
from e2b import AsyncSandbox, Sandbox
import e2b.envd.process.process_connect as again
from e2b.envd import rpc
assert again.Process is ProcessContract
assert sys.modules["e2b"].Sandbox is Sandbox
print("whole")
"""


def test_the_sdk_can_be_imported_after_the_engine() -> None:
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=120
    )
    assert said.stdout == "whole\n", said.stderr
