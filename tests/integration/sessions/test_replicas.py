"""Three keepers on one PostgreSQL and one engine: a key has one sandbox, a member one user."""

from __future__ import annotations

import asyncio

from sandkeeper.services.composition import Services
from sandkeeper.services.sessions.supplier import AcquireRequest, AcquireSource
from support.eventually import eventually


async def test_acquires_of_one_key_over_three_replicas_make_one_sandbox(
    replicas: list[Services],
) -> None:
    asked = AcquireRequest(user_id="ann", task_id="one")
    found = await asyncio.gather(
        *(replicas[number % 3].sessions.acquire(asked, actor="test") for number in range(64))
    )
    assert len({one.sandbox.instance_id for one in found}) == 1
    assert len({one.session.id for one in found}) == 1
    assert [one.source for one in found].count(AcquireSource.CREATED) == 1
    counts = [await one.session_stats.measure() for one in replicas]
    assert counts[0] == counts[1] == counts[2]
    assert counts[0]["execution"] == {
        "active_sessions": 1,
        "total_created": 1,
        "total_cleaned": 0,
        "total_reused": 63,
        "health_check_failures": 0,
    }
    closed = await asyncio.gather(
        *(one.session_cleaner.close(found[0].session, actor="test") for one in replicas)
    )
    assert sorted(closed) == [False, False, True]
    assert (await replicas[1].session_stats.measure())["totals"]["total_cleaned"] == 1


async def test_a_pool_is_filled_once_and_no_member_is_given_to_two(
    replicas: list[Services],
) -> None:
    await replicas[0].pools.set("base", target=3)

    async def fill() -> bool:
        await asyncio.gather(*(one.pools.fill() for one in replicas))
        status = (await replicas[0].pools.list())[0]
        assert status.ready + status.starting <= 3, "replicas fill one after the other"
        return status.ready == 3

    await eventually(fill)
    found = await asyncio.gather(
        *(
            replicas[number % 3].sessions.acquire(
                AcquireRequest(user_id="ann", task_id=str(number)), actor="test"
            )
            for number in range(8)
        )
    )
    assert len({one.sandbox.instance_id for one in found}) == 8
    assert len({one.sandbox.id for one in found}) == 8
    # Members that a top-up made in between may be claimed as well.
    assert [one.source for one in found].count(AcquireSource.POOL) >= 3
    assert {one.sandbox.owner for one in found} == {one.session.owner for one in found}
