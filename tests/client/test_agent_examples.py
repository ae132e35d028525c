"""The agents of the examples, with a scripted model, each in a lease of a real keeper."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from sandkeeper.client import AsyncSandkeeper
from support.engine_process import Engine
from support.keeper_process import keeping

ROOT = Path(__file__).parents[2]
NAMES = ("openai-agents", "deepagents", "smolagents", "pydantic-ai", "vercel-ai", "mastra")


@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not os.environ.get("ALL_EXAMPLES"), reason="it installs agent frameworks: make examples"
)
@pytest.mark.parametrize("name", NAMES)
async def test_an_agent_works_in_its_lease(engine: Engine, tmp_path: Path, name: str) -> None:
    with keeping(tmp_path / "data", engine=engine) as keeper:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(ROOT / "scripts" / "example.py"),
            name,
            env={**keeper.environment, "SANDKEEPER_OPERATOR_KEY": keeper.key},
            stdout=asyncio.subprocess.PIPE,
        )
        output = (await process.communicate())[0].decode()
        assert process.returncode == 0
        assert output.strip().endswith("It said 42")
        async with (
            AsyncSandkeeper(keeper.url, keeper.key) as client,
            client.lease("ada", name) as sandbox,
        ):
            assert await sandbox.files.read("answer.txt") == "42\n"
