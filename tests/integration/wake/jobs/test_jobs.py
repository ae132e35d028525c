"""Jobs on real sandboxes: asleep when ready, back when asked, rebuilt for exactly one credit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sandkeeper.domain.errors import (
    CreditRefusedError,
    CreditUnavailableError,
    InvalidRequestError,
    JobNotFoundError,
    JobNotReadyError,
    SandboxBusyError,
    SandboxExpiredError,
    WrongStateError,
)
from sandkeeper.domain.job import JobStatus, RebuildStatus
from sandkeeper.domain.policy import Launch
from sandkeeper.domain.states import State
from sandkeeper.services.jobs.credits import Charge
from sandkeeper.services.jobs.jobs import Jobs, JobView
from sandkeeper.testing.providers import UnpausableProvider
from support.engine_process import Engine
from support.wake_replica import PORT, PYTHON_APP, STAY, WORKDIR, Waker, browse

Make = Callable[..., Awaitable[Waker]]


class Bank:
    """A host application that takes each key once; its answers are lost or refused on demand."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.taken: set[str] = set()
        self.loses_answers = 0
        self.refuses = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, charge: Charge) -> None:
        self.asked.append(charge.key)
        await self.gate.wait()
        if self.refuses:
            raise CreditRefusedError
        self.taken.add(charge.key)
        if self.loses_answers:
            self.loses_answers -= 1
            raise CreditUnavailableError


def open_jobs(waker: Waker, bank: Bank) -> Jobs:
    return Jobs(
        waker.replica.deps,
        waker.replica.creation,
        waker.replica.lifecycle,
        waker.wakes,
        waker.files,
        bank,
    )


async def build(waker: Waker, jobs: Jobs, job_id: str) -> JobView:
    """A job whose app answers, with a page of its own."""
    view, is_new = await jobs.create(
        job_id,
        launch=Launch(template="base", port=PORT, start_command=PYTHON_APP, workdir=WORKDIR),
        policy=STAY,
        actor="test",
    )
    assert is_new
    assert view.sandbox is not None
    await waker.settle(view.sandbox)
    await waker.write(view.sandbox, "index.html", f"built {job_id}")
    return view


async def test_a_ready_job_sleeps_at_once_and_is_resumed_where_it_was(
    waking: Make, engine: Engine
) -> None:
    waker = await waking()
    jobs = open_jobs(waker, Bank())
    await build(waker, jobs, "one")
    with pytest.raises(JobNotReadyError):
        await jobs.snapshot("one", actor="test")
    with pytest.raises(JobNotFoundError):
        await jobs.snapshot("none", actor="test")
    ready = await jobs.mark_ready("one", actor="test", build_version="v2")
    assert (ready.job.status, ready.job.build_version) == (JobStatus.READY, "v2")
    assert ready.is_paused
    assert (await jobs.snapshot("one", actor="test")).is_paused
    back = await jobs.resume("one", actor="test", within_s=60)
    assert back.sandbox is not None
    assert (back.is_paused, back.sandbox.run.ready) == (False, True)
    assert back.job.status is JobStatus.READY
    assert await browse(engine.url, back.sandbox) == "built one"


async def test_a_plan_that_cannot_pause_is_an_error_and_nothing_is_marked_paused(
    waking: Make,
) -> None:
    waker = await waking(UnpausableProvider)
    jobs = open_jobs(waker, Bank())
    await build(waker, jobs, "one")
    ready = await jobs.mark_ready("one", actor="test")
    assert ready.job.status is JobStatus.READY
    assert not ready.is_paused
    assert (ready.job.pause_note or "").startswith("pause_unsupported")
    assert (await jobs.get("one")).sandbox.state is State.RUNNING  # type: ignore[union-attr]  # Made.


async def test_what_is_gone_is_rebuilt_for_one_credit_however_often_it_is_confirmed(
    waking: Make, engine: Engine
) -> None:
    waker, bank = await waking(), Bank()
    jobs = open_jobs(waker, bank)
    view = await build(waker, jobs, "one")
    ready = await jobs.mark_ready("one", actor="test")
    assert ready.sandbox is not None
    await waker.provider.kill(ready.sandbox.instance_id or "")
    with pytest.raises(SandboxExpiredError):
        await jobs.resume("one", actor="test", within_s=60)
    question = await jobs.ask_rebuild("one")
    assert bank.asked == []
    other = await jobs.ask_rebuild("one")
    bank.gate.clear()
    confirmed = [
        asyncio.create_task(
            jobs.rebuild("one", confirmation=question.confirmation, actor="test", within_s=60)
        )
        for _ in range(8)
    ]
    while not bank.asked:
        await asyncio.sleep(0.01)
    with pytest.raises(SandboxBusyError):
        await jobs.rebuild("one", confirmation=other.confirmation, actor="test", within_s=60)
    bank.gate.set()
    done = await asyncio.gather(*confirmed)
    assert {rebuild.status for _, rebuild in done} == {RebuildStatus.DONE}
    assert len(bank.asked) == 1
    assert view.sandbox is not None
    back = await waker.get(view.sandbox)
    assert (back.state, back.generation) == (State.RUNNING, 2)
    assert await browse(engine.url, back) == "built one"
    again = await jobs.rebuild("one", confirmation=question.confirmation, actor="test", within_s=60)
    assert (again[1].status, len(bank.asked)) == (RebuildStatus.DONE, 1)
    with pytest.raises(InvalidRequestError):
        await jobs.rebuild("one", confirmation="rb-1.9999999999.00", actor="x", within_s=1)


async def test_a_lost_answer_and_a_crash_charge_no_second_credit(
    waking: Make, engine: Engine
) -> None:
    """The first process dies while it charges; the second one asks again with the same key."""
    waker, bank = await waking(), Bank()
    first = open_jobs(waker, bank)
    await build(waker, first, "one")
    await first.mark_ready("one", actor="test")
    question = await first.ask_rebuild("one")
    bank.loses_answers = 1
    with pytest.raises(CreditUnavailableError):
        await first.rebuild("one", confirmation=question.confirmation, actor="t", within_s=60)
    await first.close()
    waker.replica.clock.advance(minutes=1)
    second = open_jobs(waker, bank)
    assert await second.resume_interrupted() == 1
    _, rebuild = await second.rebuild(
        "one", confirmation=question.confirmation, actor="t", within_s=60
    )
    assert rebuild.status is RebuildStatus.DONE
    assert (len(bank.asked), len(bank.taken)) == (2, 1)
    view = await second.get("one")
    assert view.sandbox is not None
    assert await browse(engine.url, view.sandbox) == "built one"


async def test_a_refused_credit_touches_nothing_and_a_failed_job_is_not_ready(
    waking: Make,
) -> None:
    waker, bank = await waking(), Bank()
    jobs = open_jobs(waker, bank)
    view = await build(waker, jobs, "one")
    await jobs.mark_ready("one", actor="test")
    bank.refuses = True
    question = await jobs.ask_rebuild("one")
    with pytest.raises(CreditRefusedError):
        await jobs.rebuild("one", confirmation=question.confirmation, actor="t", within_s=60)
    assert view.sandbox is not None
    kept = await waker.get(view.sandbox)
    assert (kept.state, kept.instance_id) == (State.PAUSED, view.sandbox.instance_id)
    failed = await jobs.change("one", error_message="it broke")
    assert failed.job.status is JobStatus.FAILED
    with pytest.raises(WrongStateError):
        await jobs.mark_ready("one", actor="test")
