"""Three replicas on one PostgreSQL share a sweep; one of them is killed in the middle of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.sandbox import CurrentRun, Sandbox
from sandkeeper.domain.states import State
from sandkeeper.store import SandboxQuery, Store, open_store
from support.eventually import eventually

SANDBOXES = 500
TESTS = Path(__file__).parents[2]


async def fill(store: Store) -> None:
    """Idle sandboxes, all due now."""
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    for number in range(SANDBOXES):
        await store.sandboxes.insert(
            Sandbox(
                id=f"sb-{number:04}",
                owner=Owner.project(f"p{number}"),
                provider="simulated",
                region="default",
                created_at=long_ago,
                updated_at=long_ago,
                state_since=long_ago,
                state=State.RUNNING,
                instance_id=f"i{number:04}",
                run=CurrentRun(run_started_at=long_ago),
                policy=Policy(lifetime_s=None),
                next_check_at=long_ago,
            )
        )


@pytest.mark.timeout(400)
async def test_every_idle_sandbox_is_paused_once_although_a_replica_dies(
    postgres_database: str, tmp_path: Path
) -> None:
    async with open_store(postgres_database) as store:
        await fill(store)
        with ExitStack() as stack:
            replicas = [start(postgres_database, name, tmp_path, stack) for name in "abc"]
            notes = tmp_path / "pauses"
            await eventually(
                lambda: notes.exists() and len(notes.read_text().split()) > 100, within_s=80
            )
            replicas[1].send_signal(signal.SIGKILL)

            async def all_asleep() -> bool:
                counts = await store.counts.by_state()
                return counts[State.PAUSED] == SANDBOXES

            await eventually(all_asleep, within_s=80, every_s=0.2)
        await check(store, Counter(notes.read_text().split()))


def start(url: str, name: str, folder: Path, stack: ExitStack) -> subprocess.Popen[bytes]:
    replica = subprocess.Popen(
        [sys.executable, "-m", "support.sweep_replica", url, name, str(folder)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.DEVNULL,
    )
    stack.callback(replica.wait)
    stack.callback(replica.kill)
    return replica


async def check(store: Store, calls: Counter[str]) -> None:
    page = await store.sandboxes.list(SandboxQuery(limit=1000))
    assert len(page.items) == SANDBOXES
    assert [one.id for one in page.items if one.claim is not None] == []
    assert [one.id for one in page.items if not one.is_paused_by_sweep] == []
    changes = Counter(
        event.sandbox_id
        for event in await store.events.after(0, limit=1000)
        if event.type == "sandbox.state_changed"
    )
    assert len(changes) == SANDBOXES
    assert set(changes.values()) == {1}
    # What the dead replica had under way is asked for a second time, which is harmless.
    assert len(calls) == SANDBOXES
