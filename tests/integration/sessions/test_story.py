"""A known story of sessions, told to one keeper, and what it counts, checks and refuses."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from e2b import AsyncSandbox

from sandkeeper.domain.breaker import Breaker
from sandkeeper.domain.errors import SessionLimitError, SessionNotFoundError
from sandkeeper.domain.sessions.session import SessionKind
from sandkeeper.domain.states import State
from sandkeeper.providers.e2b.endpoint import E2BConnection
from sandkeeper.providers.e2b.provider import E2BProvider
from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.services.composition import Services
from sandkeeper.services.sessions.health_checks import HealthChecker
from sandkeeper.services.sessions.pools import FillReport
from sandkeeper.services.sessions.sdk_handles import SdkHandleCache
from sandkeeper.services.sessions.supplier import AcquireRequest, AcquireSource
from sandkeeper.testing.providers import NeverProvider
from support.engine_process import Engine
from support.eventually import eventually

Make = Callable[..., Awaitable[Services]]


async def test_the_numbers_are_right_after_a_known_story(keeping: Make, engine: Engine) -> None:
    keeper = await keeping(sessions_max=3)
    sessions, closing = keeper.sessions, keeper.session_cleaner

    async def acquire(task: str, kind: SessionKind = SessionKind.EXECUTION) -> AcquireSource:
        asked = AcquireRequest(user_id="ann", task_id=task, kind=kind, template="base", lease_s=1)
        return (await sessions.acquire(asked, actor="test")).source

    assert await acquire("one") is AcquireSource.CREATED
    assert await acquire("one") is AcquireSource.REUSED
    assert await acquire("one") is AcquireSource.REUSED
    assert await acquire("two") is AcquireSource.CREATED
    assert await acquire("one", SessionKind.DESKTOP) is AcquireSource.CREATED
    with pytest.raises(SessionLimitError, match="3 sessions are open"):
        await acquire("three")
    assert await acquire("two") is AcquireSource.REUSED, "a known one is served at the limit"
    listed = {
        one.task_id: one
        for one in await keeper.deps.store.sessions.list(user_id="ann", kind=SessionKind.EXECUTION)
    }
    dead = await keeper.deps.store.sandboxes.get_by_owner(listed["two"].owner)
    with engine.client() as provider:
        provider.delete(f"/sandboxes/{dead.instance_id}")
    assert await acquire("two") is AcquireSource.REPLACED
    assert await closing.close(listed["one"], actor="test")
    assert not await closing.close(listed["one"], actor="test")
    with pytest.raises(SessionNotFoundError):
        await sessions.touch(listed["one"].id)
    counts = await keeper.session_stats.measure()
    failures = counts["execution"].pop("health_check_failures")
    assert failures == counts["totals"].pop("health_check_failures")
    # An event of the provider may tell of the death before the check finds out.
    assert failures in (0, 1)
    assert counts == {
        "execution": {
            "active_sessions": 1,
            "total_created": 3,
            "total_cleaned": 1,
            "total_reused": 3,
        },
        "desktop": {
            "active_sessions": 1,
            "total_created": 1,
            "total_cleaned": 0,
            "total_reused": 0,
            "health_check_failures": 0,
        },
        "totals": {
            "active_sessions": 2,
            "total_created": 4,
            "total_cleaned": 1,
            "total_reused": 3,
        },
    }


def check_with(keeper: Services, providers: ProviderRegistry, *, timeout_s: float) -> HealthChecker:
    settings = keeper.deps.settings.model_copy(update={"session_check_timeout_s": timeout_s})
    deps = replace(keeper.deps, providers=providers, settings=settings)
    return HealthChecker(deps, SdkHandleCache(deps))


async def test_a_check_that_hangs_is_a_check_that_failed(keeping: Make, engine: Engine) -> None:
    keeper = await keeping()
    asked = AcquireRequest(user_id="ann", task_id="one")
    found = await keeper.sessions.acquire(asked, actor="test")
    regions = ProviderRegistry(
        [
            E2BProvider(
                E2BConnection(api_key=engine.key, api_url=engine.url, sandbox_url=engine.url),
                keeper="test",
                breaker=Breaker(),
            )
        ]
    )
    provider = regions.get(found.sandbox)
    native = provider.build_sdk_sandbox(found.access)
    await native.files.write("/home/user/.bash_profile", "sleep 600\n")
    checks = check_with(keeper, regions, timeout_s=2)
    both = await asyncio.gather(
        *(checks.check(found.sandbox, SessionKind.EXECUTION) for _ in range(2))
    )
    assert both == [False, False]
    never = ProviderRegistry([NeverProvider(provider, "get_connection_info")])
    silent = check_with(keeper, never, timeout_s=0.5)
    assert not await silent.check(found.sandbox, SessionKind.EXECUTION)


async def test_a_check_that_is_shouted_at_fails_and_keeps_none_of_it(
    keeping: Make, engine: Engine
) -> None:
    keeper = await keeping(session_check_timeout_s=3)
    asked = AcquireRequest(user_id="ann", task_id="one")
    found = await keeper.sessions.acquire(asked, actor="test")
    instance_id = found.access.instance_id
    native = await AsyncSandbox.connect(instance_id, timeout=600, **engine.sdk_options())
    await native.files.write("/home/user/.bash_profile", "yes $(printf %4000s x)\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not await keeper.health_checks.check(found.sandbox, SessionKind.EXECUTION)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kb < 64 * 1024


async def test_a_pool_member_that_is_old_sick_or_too_many_is_retired(
    keeping: Make, engine: Engine
) -> None:
    keeper = await keeping(pool_age_max_s=600)
    pools = keeper.pools
    await pools.set("base", target=2)
    await eventually(lambda: _has_ready(keeper, 2))
    members = await keeper.deps.store.pools.list_members("base", limit=10)
    with engine.client() as provider:
        provider.delete(f"/sandboxes/{members[0].instance_id}")
    # It is found to be gone by an event or by the next check, and another takes its place.
    await keeper.verification.verify(members[0].id)
    await pools.fill()
    await eventually(lambda: _has_ready(keeper, 2))
    assert (await keeper.deps.store.sandboxes.get(members[0].id)).state.is_ended
    await pools.set("base", target=1)
    await pools.fill()
    await eventually(lambda: _has_ready(keeper, 1))
    taken = await keeper.sessions.acquire(
        AcquireRequest(user_id="ann", task_id="one"), actor="test"
    )
    assert taken.source is AcquireSource.POOL
    assert not await pools.retire(members[1], "old") or taken.sandbox.id != members[1].id
    assert (await keeper.deps.store.sandboxes.get(taken.sandbox.id)).state is State.RUNNING


async def _has_ready(keeper: Services, count: int) -> bool:
    status = (await keeper.pools.list())[0]
    return status.ready == count


async def test_what_a_pool_was_asked_for_while_another_replica_fills_it_is_not_forgotten(
    keeping: Make,
) -> None:
    """The period is an hour, so that nothing but the pass itself can bring it back."""
    keeper = await keeping()
    pools = keeper.deps.store.pools
    await pools.put_new("base", target=0, now=keeper.deps.clock())
    assert await pools.hold("base", holder="another", lease_s=600, now=keeper.deps.clock())
    await keeper.pools.set("base", target=1)
    assert await keeper.pools.fill() == FillReport()
    await pools.release("base", holder="another")
    await eventually(lambda: _has_ready(keeper, 1))


async def test_a_pool_tries_again_when_the_wait_after_a_failure_is_over(
    keeping: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandkeeper.domain.decisions.pool.BACKOFF_S", 0.1)
    keeper = await keeping()
    pools = keeper.pools
    await pools.set("no-such-template", target=1)

    async def has_failed_thrice() -> bool:
        return (await pools.list())[0].pool.failures >= 3

    await eventually(has_failed_thrice)


async def test_a_pool_whose_template_is_broken_stops_and_says_why(keeping: Make) -> None:
    keeper = await keeping(pool_failures_max=1)
    pools = keeper.pools
    await pools.set("no-such-template", target=2)

    async def has_stopped() -> bool:
        return (await pools.list())[0].is_stopped

    await eventually(has_stopped)
    status = (await pools.list())[0]
    assert "no-such-template" in status.pool.error
    assert (status.ready, status.starting) == (0, 0)
    counts = await keeper.deps.store.counts.by_state()
    assert (await pools.fill()).created == 0
    assert await keeper.deps.store.counts.by_state() == counts, "it does not try again"
    asked = AcquireRequest(user_id="ann", task_id="one", template="base")
    assert (await keeper.sessions.acquire(asked, actor="test")).source is AcquireSource.CREATED
    assert not (await pools.set("no-such-template", target=0)).is_stopped
