"""The unmodified official SDKs, old and new, walk through every call against one engine."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from support.engine_process import Engine

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OLDER = ("2.30.0", "2.45.1")
OLDEST = ("2.10.2", "2.20.3")
"""Each with e2b-code-interpreter 2.4.1."""


async def walk(engine: Engine, *line: str, **extra: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *line,
        env={**os.environ, **engine.env, **extra},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output
    return output


def find_sdk(version: str) -> str:
    folder = ROOT / ".venv" / "sdk" / version
    if not (folder / ".ready").exists():
        pytest.skip(f"e2b {version} is not installed: make sdks")
    return str(folder)


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("version", OLDEST)
async def test_the_oldest_supported_sdks_lead_a_short_life(
    engine: Engine, version: str, flavour: str
) -> None:
    path = find_sdk(version)
    output = await walk(engine, sys.executable, str(HERE / "story.py"), flavour, PYTHONPATH=path)
    assert output.splitlines()[-1] == "held: story"


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("version", [*OLDER, "newest"])
async def test_the_python_sdk_walks_through_every_call(
    engine: Engine, version: str, flavour: str
) -> None:
    path = {} if version == "newest" else {"PYTHONPATH": find_sdk(version)}
    output = await walk(engine, sys.executable, str(HERE / "walk.py"), flavour, **path)
    assert output.splitlines()[-1] == "held: endings"


@pytest.mark.parametrize(
    ("package", "program"), [("e2b", "walk.mjs"), ("@e2b/code-interpreter", "code.mjs")]
)
async def test_the_javascript_sdks_walk_through_every_call(
    engine: Engine, package: str, program: str
) -> None:
    node = shutil.which("node")
    if node is None or not (ROOT / "node_modules" / package).exists():
        pytest.skip(f"node and the {package} package are not here: install Node.js, then make test")
    output = await walk(engine, node, str(HERE / program))
    assert output.splitlines()[-1] == "held: endings"
