"""The npm package `sandkeeper`, built as it is published, in Node against a real keeper."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.keeper_process import Keeper, keeping

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients" / "typescript"


@pytest.fixture(scope="module")
def package() -> Path:
    """Return the folder of the built package."""
    if shutil.which("node") is None or not (PACKAGE / "dist" / "index.js").exists():
        pytest.skip("Node.js or the built package is not here: make typescript")
    return PACKAGE


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    with keeping(tmp_path_factory.mktemp("typescript") / "data", creations_per_s=50) as running:
        yield running


async def run(folder: Path, *line: str, **variables: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *line,
        cwd=folder,
        env={**os.environ, **variables},
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


async def test_the_client_does_what_it_says_against_a_real_keeper(
    package: Path, keeper: Keeper
) -> None:
    variables = {"SANDKEEPER_URL": keeper.url, "SANDKEEPER_OPERATOR_KEY": keeper.key}
    output = await run(package, "node", "--test", "test/", **variables)
    assert "# fail 0" in output, output
    assert "# pass 0" not in output, output
