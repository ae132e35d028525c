"""What a user's sessions have learned outlives them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sandkeeper.domain.decisions.adaptive_timeout import compute_idle_timeout_s
from sandkeeper.domain.sessions.session import SessionKind
from sandkeeper.services.composition import Services
from sandkeeper.services.sessions.supplier import AcquireRequest

Make = Callable[..., Awaitable[Services]]


async def test_the_next_session_of_a_user_begins_with_what_the_last_one_learned(
    keeping: Make,
) -> None:
    keeper = await keeping(session_idle="adaptive", pools={"base": 1})
    await keeper.pools.fill()

    async def learn(user: str, task: str, kind: SessionKind = SessionKind.EXECUTION) -> float:
        asked = AcquireRequest(user_id=user, task_id=task, kind=kind, template="base", lease_s=1)
        acquired = await keeper.sessions.acquire(asked, actor="test")
        if (user, task) == ("ann", "first"):
            await keeper.deps.store.usage_history.load(acquired.sandbox.id, "200," * 20)
        assert await keeper.session_cleaner.close(acquired.session, actor="test")
        return compute_idle_timeout_s(acquired.sandbox) or 0

    assert await learn("ann", "first") == 600, "nothing is known at first, in one from the pool"
    assert await learn("ann", "second") == 250
    assert await learn("ann", "third") == 250
    assert await learn("bob", "first") == 600
    assert await learn("ann", "screen", SessionKind.DESKTOP) == 900


async def test_a_fixed_timeout_is_kept_out_of_it(keeping: Make) -> None:
    keeper = await keeping()
    asked = AcquireRequest(user_id="ann", task_id="one", template="base", lease_s=1)
    acquired = await keeper.sessions.acquire(asked, actor="test")
    await keeper.session_cleaner.close(acquired.session, actor="test")
    assert await keeper.deps.store.usage_history.find("execution:ann") is None
