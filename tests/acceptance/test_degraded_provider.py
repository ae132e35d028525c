"""A provider without parts of E2B's API: the check finds them, the keeper works around them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sandkeeper.providers.features import ProviderFeature
from support.base_cache import lend_base
from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import Keeper

MISSING = {"pause", "events", "webhooks"}
CONTENT = "made before the end\n"


@pytest.fixture(scope="module")
def poor_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that cannot pause, and has neither events nor webhooks."""
    data = lend_base(tmp_path_factory, tmp_path_factory.mktemp("poor") / "data")
    options = [word for part in sorted(MISSING) for word in ("--without", part)]
    engine = Engine(data, *options).start()
    yield engine
    engine.stop()


@pytest.fixture
def keeper(poor_engine: Engine, tmp_path: Path) -> Iterator[Keeper]:
    one = Keeper(tmp_path / "data", engine=poor_engine, idle_timeout_s=2).start()
    yield one
    one.stop()


def was_refused(api: httpx.Client, path: str) -> bool:
    """Whether the sweep tried to pause it, and was refused."""
    return "provider_unsupported" in api.get(f"{path}/history").text


def create(api: httpx.Client, path: str) -> str:
    """Create a sandbox with a file that soon counts as idle, and return its instance."""
    made = api.put(path, json={"policy": {"idleTimeoutMs": 2000}}).json()
    written = api.put(f"{path}/files/note.txt", content=CONTENT)
    assert written.is_success, written.text
    return str(made["instanceId"])


@pytest.mark.timeout(240)
def test_an_idle_sandbox_ends_with_its_files_where_the_check_found_no_pause(
    keeper: Keeper, project: str
) -> None:
    before, after = f"/api/sandboxes/{project}", f"/api/sandboxes/{project}-after"
    with keeper.client() as api:
        instance = create(api, before)
        eventually_sync(lambda: was_refused(api, before), within_s=60)
        status = api.get(f"{before}/status").json()
        assert (status["status"], status["instanceId"]) == ("RUNNING", instance), (
            "one refused pause ends nothing"
        )

        said = keeper.run("doctor", "--provider", "--yes", "--json")
        found = {one["feature"]: one for one in map(json.loads, said.stdout.splitlines())}
        assert set(found) == {feature.value for feature in ProviderFeature}
        lacked = {name for name, one in found.items() if one["supported"] is False}
        assert lacked == MISSING | {"resume", "memory", "reboot"}
        assert all(found[name]["instead"] for name in lacked)
        assert "Remembered" in said.stderr

        instance = create(api, after)
        eventually_sync(
            lambda: api.get(f"{after}/status").json()["status"] == "TERMINATED", within_s=90
        )
        assert api.post(f"{after}/wake?wait=60").json()["status"] == "succeeded"
        assert api.get(f"{after}/files/note.txt").text == CONTENT
        woken = api.get(f"{after}/status").json()
        assert woken["instanceId"] != instance
        for path in (before, after):
            assert api.delete(path).is_success
