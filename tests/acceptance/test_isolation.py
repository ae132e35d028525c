"""The status of a sandbox tells what isolates it, as its engine told."""

from __future__ import annotations

from pathlib import Path

import httpx

from support.isolation import ISOLATION, needs_gvisor
from support.keeper_process import Keeper


def _create(keeper: Keeper, project: str, template: str) -> str | None:
    headers = {"Authorization": f"Bearer {keeper.key}"}
    with httpx.Client(base_url=keeper.url, headers=headers, timeout=60) as api:
        made = api.put(f"/api/sandboxes/{project}", json={"template": template})
        made.raise_for_status()
        status = api.get(f"/api/sandboxes/{project}/status").raise_for_status().json()
    assert status["isolation"] == made.json()["isolation"]
    return str(status["isolation"])


@needs_gvisor
def test_each_sandbox_tells_its_own_wall(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "data", "--runtime", "base=runsc").start()
    try:
        assert _create(keeper, "hostile", "base") == "gvisor"
        assert _create(keeper, "own", "code-interpreter-v1") == ISOLATION
    finally:
        keeper.stop()
