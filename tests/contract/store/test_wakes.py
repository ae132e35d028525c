"""Wakes, jobs and rebuilds: one under way at a time, taken up by one replica only."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from sandkeeper.domain.decisions.wake import StepOutcome, Wake, WakeStatus, WakeStep
from sandkeeper.domain.errors import JobNotFoundError
from sandkeeper.domain.job import Job, JobStatus, Rebuild, RebuildStatus
from sandkeeper.domain.receipt import FileLoss, Receipt, StepName, WakeMethod
from sandkeeper.store import Store
from support.records import T0

LATER = T0 + timedelta(minutes=1)


def make(number: int = 1) -> Wake:
    return Wake(f"wk-{number}", "sb", "ann", started_at=T0, updated_at=T0, due_at=T0)


async def test_many_who_begin_at_once_get_one_wake(store: Store) -> None:
    begun = await asyncio.gather(
        *(store.wakes.begin(make(number), driver="r") for number in range(8))
    )
    assert len({wake.id for wake, _ in begun}) == 1
    assert sum(is_new for _, is_new in begun) == 1


async def test_a_wake_is_driven_by_one_and_kept_as_it_ended(store: Store) -> None:
    wake, _ = await store.wakes.begin(make(), driver="r")
    claims = [store.wakes.claim(wake.id, driver="r", now=T0, until=LATER) for _ in range(4)]
    assert sum(found is not None for found in await asyncio.gather(*claims)) == 1
    assert await store.wakes.list_due(now=T0, limit=10) == []
    receipt = Receipt(WakeMethod.RECREATE, restored=3, lost=(FileLoss("a", "gone"),), lost_count=1)
    step = WakeStep(StepName.RECREATING, T0, outcome=StepOutcome.DONE, took_ms=5, detail="ok")
    ended = wake.evolve(
        status=WakeStatus.SUCCEEDED,
        method=WakeMethod.RECREATE,
        steps=(step,),
        receipt=receipt,
        finished_at=LATER,
        due_at=LATER,
    )
    await store.wakes.save(ended)
    await store.wakes.save(wake.evolve(status=WakeStatus.FAILED))
    assert await store.wakes.find_last("sb") == ended
    assert await store.wakes.find_open("sb") is None
    assert await store.wakes.find_usual_ms(WakeMethod.RECREATE) == 60_000
    assert (await store.wakes.begin(make(2), driver="r"))[1]


async def test_jobs_are_listed_by_age_page_by_page(store: Store) -> None:
    for number in range(5):
        at = T0 + timedelta(seconds=number // 2)
        job, is_new = await store.jobs.insert_new(Job(f"j{number}", at, at))
        assert is_new
    assert (await store.jobs.insert_new(job))[1] is False
    names: list[str] = []
    after: tuple[datetime, str] | None = None
    while page := await store.jobs.list_newest(limit=2, after=after):
        names += [one.id for one in page]
        after = (page[-1].created_at, page[-1].id)
    assert names == ["j4", "j3", "j2", "j1", "j0"]


async def test_two_who_change_one_job_at_once_lose_nothing_to_each_other(store: Store) -> None:
    await store.jobs.insert_new(Job("j", T0, T0))
    await asyncio.gather(
        store.jobs.change("j", build_version="v2"), store.jobs.change("j", debug_id="d1")
    )
    after = await store.jobs.change("j", status=JobStatus.READY)
    assert (after.build_version, after.debug_id, after.status) == ("v2", "d1", JobStatus.READY)
    assert await store.jobs.get("j") == after
    with pytest.raises(JobNotFoundError):
        await store.jobs.change("unknown", build_version="v2")


async def test_a_job_has_one_rebuild_under_way(store: Store) -> None:
    first = Rebuild("rb-1", "j", "ann", created_at=T0, updated_at=T0, due_at=T0)
    assert await store.jobs.begin_rebuild(first, driver="r") == (first, True)
    assert await store.jobs.begin_rebuild(first, driver="r") == (first, False)
    second = Rebuild("rb-2", "j", "bob", created_at=T0, updated_at=T0, due_at=T0)
    assert await store.jobs.begin_rebuild(second, driver="r") == (first, False)
    assert await store.jobs.claim_rebuild("rb-1", driver="r", now=T0, until=LATER) is not None
    assert await store.jobs.claim_rebuild("rb-1", driver="r", now=T0, until=LATER) is None
    await store.jobs.save_rebuild(first.evolve(status=RebuildStatus.DONE))
    await store.jobs.save_rebuild(first.evolve(status=RebuildStatus.FAILED))
    done = await store.jobs.find_rebuild("rb-1")
    assert done is not None
    assert done.status is RebuildStatus.DONE
    assert await store.jobs.begin_rebuild(second, driver="r") == (second, True)
