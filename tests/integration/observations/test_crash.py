"""A crash between the provider's answer and our commit loses nothing and doubles nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from pathlib import Path

from sandkeeper.domain.breaker import Breaker
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.states import State
from sandkeeper.providers.e2b.endpoint import E2BConnection
from sandkeeper.providers.e2b.provider import E2BProvider
from sandkeeper.providers.rate_limit import RateLimiter
from sandkeeper.services.composition import Services
from sandkeeper.services.lifecycle.creation import Creation
from sandkeeper.services.observe.reconciliation import Reconciliation
from sandkeeper.store import Store, open_store
from support.deps import MovableClock, make_deps
from support.engine_process import Engine

CREATIONS = 50
LEASE_S = 60.0

CRASHING_KEEPER = """
import asyncio, os, signal, sys, json
sys.path[:0] = json.loads(sys.argv[1])
from test_crash import CREATIONS, make_creation, make_provider, owner
from sandkeeper.domain.sandbox import Launch, Policy
from sandkeeper.store import open_store

class CrashingProvider:
    '''Answers no call: when the last instance is made, the process is killed.'''
    def __init__(self, provider):
        self._provider = provider
        self._made = 0
    def __getattr__(self, name):
        return getattr(self._provider, name)
    async def create(self, spec):
        await self._provider.create(spec)
        self._made += 1
        if self._made == CREATIONS:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.Event().wait()

async def main():
    url, keeper, options = sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
    async with open_store(url) as store:
        creation = make_creation(store, CrashingProvider(make_provider(options, keeper)))
        await asyncio.gather(*(
            creation.create(owner(n), launch=Launch(), policy=Policy(), actor="test")
            for n in range(CREATIONS)
        ))

asyncio.run(main())
"""


def owner(number: int) -> Owner:
    return Owner.project(f"project-{number}")


def make_provider(options: dict[str, str], keeper: str) -> E2BProvider:
    return E2BProvider(
        E2BConnection(**options, request_timeout_s=120, boot_timeout_s=120),  # type: ignore[arg-type]
        keeper=keeper,
        breaker=Breaker(),
        rate_limiter=RateLimiter(creates_per_s=1000, concurrency_max=CREATIONS),
    )


def make_creation(store: Store, provider: E2BProvider) -> Creation:
    return Services(make_deps(store, provider, lease_s=LEASE_S * 10)).creation


def make_reconciliation(store: Store, provider: E2BProvider) -> Reconciliation:
    """One that runs after every lease of the dead process is over."""
    clock = MovableClock()
    clock.advance(seconds=LEASE_S * 20)
    return Services(make_deps(store, provider, clock=clock, replica="survivor")).reconciliation


async def list_all(provider: E2BProvider) -> dict[str, str]:
    """Instance by instance, the sandbox that it says it belongs to."""
    found: dict[str, str] = {}
    cursor: str | None = None
    while True:
        page = await provider.list_instances(cursor=cursor)
        found |= {one.instance_id: one.tag.sandbox_id for one in page.instances if one.tag}
        cursor = page.next_cursor
        if cursor is None:
            return found


async def test_fifty_creations_killed_before_their_commit_are_all_found_again(
    engine: Engine, tmp_path: Path
) -> None:
    keeper = f"crash-{uuid.uuid4().hex[:8]}"
    url = f"sqlite:///{tmp_path / 'store.db'}"
    options = engine.sdk_options()
    paths = json.dumps([str(one) for one in sys.path if one] + [str(Path(__file__).parent)])
    child = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", CRASHING_KEEPER, paths, url, keeper, json.dumps(options)],
        capture_output=True,
        timeout=150,
        check=False,
    )
    assert child.returncode == -9, child.stderr.decode()
    provider = make_provider(options, keeper)
    try:
        async with open_store(url) as store:
            made = await list_all(provider)
            assert len(made) == CREATIONS
            report = (await make_reconciliation(store, provider).run())[0]
            assert report.counts["adopted"] == CREATIONS
            assert report.counts["leak"] == 0

            creation = make_creation(store, provider)
            for number in range(CREATIONS):
                again = await creation.create(
                    owner(number), launch=Launch(), policy=Policy(), actor="test"
                )
                assert not again.is_new
                assert again.sandbox.state is State.RUNNING
                assert made.pop(again.sandbox.instance_id or "") == again.sandbox.id
            assert made == {}
            assert len(await list_all(provider)) == CREATIONS
    finally:
        instances = await list_all(provider)
        await asyncio.gather(*(provider.kill(one) for one in instances))
        await provider.close()
