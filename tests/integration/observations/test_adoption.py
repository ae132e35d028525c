"""Instances that exist before their record are adopted: on request, by an event, by reconcile."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sandkeeper.domain.errors import InstanceGoneError, InstanceTakenError, SandboxExistsError
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.states import State
from sandkeeper.providers.base import EventKind, Instance, InstanceState, LifecycleEvent
from sandkeeper.services.observe.adoption import UNMARKED, AdoptRequest
from support.eventually import eventually
from support.observing_keeper import ObservingKeeper


def add_foreign(keeper: ObservingKeeper, **metadata: str) -> Instance:
    """An instance that another program created."""
    now = datetime.now(UTC)
    instance = Instance(
        f"i{uuid.uuid4().hex[:20]}",
        InstanceState.RUNNING,
        now,
        started_at=now,
        end_at=now + timedelta(seconds=60),
        template="base",
        metadata=metadata,
    )
    keeper.provider.instances[instance.instance_id] = instance
    return instance


def ask(project: str, instance: Instance, **options: str) -> AdoptRequest:
    return AdoptRequest(Owner.project(project), instance.instance_id, Policy(), **options)


async def test_an_instance_of_another_program_is_kept_as_one_of_ours(
    keeper: ObservingKeeper,
) -> None:
    running, asleep = add_foreign(keeper), add_foreign(keeper)
    await keeper.provider.pause(asleep.instance_id)
    tried = await keeper.adoption.adopt(ask("shop", running), actor="ada", dry_run=True)
    assert (tried.is_new, tried.sandbox.state) == (True, State.RUNNING)
    assert await keeper.store.sandboxes.find_by_owner(Owner.project("shop")) is None

    first = await keeper.adoption.adopt(ask("shop", running), actor="ada")
    again = await keeper.adoption.adopt(ask("shop", running), actor="ada")
    second = await keeper.adoption.adopt(ask("blog", asleep), actor="ada")
    assert (first.is_new, again.is_new, again.sandbox.id) == (True, False, first.sandbox.id)
    assert (first.sandbox.state, first.sandbox.generation) == (State.RUNNING, UNMARKED)
    assert second.sandbox.state is State.PAUSED
    end_at = keeper.provider.instances[running.instance_id].end_at
    assert end_at is not None
    assert end_at > datetime.now(UTC) + timedelta(minutes=50)

    keeper.clock.ahead = timedelta(seconds=90)
    assert not (await keeper.reconciliation.run())[0].corrections
    assert (await keeper.verification.verify(first.sandbox.id)).state is State.RUNNING
    paused = await keeper.lifecycle.pause(second.sandbox.id, actor="ada")
    assert paused.state is State.PAUSED
    keeper.provider.vanish(running.instance_id)
    assert (await keeper.verification.verify(first.sandbox.id)).state is State.KILLED


async def test_what_is_taken_gone_or_anothers_is_refused(keeper: ObservingKeeper) -> None:
    mine = await keeper.launch("shop")
    other = add_foreign(keeper)
    taken = replace(other, instance_id=mine.instance_id or "")
    with pytest.raises(InstanceTakenError, match="project:shop"):
        await keeper.adoption.adopt(ask("blog", taken), actor="ada")
    with pytest.raises(SandboxExistsError):
        await keeper.adoption.adopt(ask("shop", other), actor="ada")
    with pytest.raises(InstanceGoneError):
        await keeper.adoption.adopt(ask("blog", replace(other, instance_id="none")), actor="ada")

    spec = keeper.spec(mine)
    theirs = await keeper.provider.create(replace(spec, tag=replace(spec.tag, keeper="other")))
    with pytest.raises(InstanceTakenError, match="keeper other"):
        await keeper.adoption.adopt(ask("blog", theirs), actor="ada")
    moved = await keeper.adoption.adopt(ask("blog", theirs, from_keeper="other"), actor="ada")
    assert (moved.sandbox.instance_id, moved.sandbox.generation) == (theirs.instance_id, UNMARKED)


async def test_a_new_instance_is_adopted_by_its_metadata_if_the_setting_says_so(
    keeper: ObservingKeeper,
) -> None:
    pushed, listed = add_foreign(keeper, project="shop"), add_foreign(keeper, project="blog")
    event = LifecycleEvent(
        str(uuid.uuid4()), EventKind.CREATED, pushed.instance_id, None, datetime.now(UTC)
    )
    assert await keeper.deliver(event) == "unknown"
    assert (await keeper.reconciliation.run())[0].counts["foreign"] == 2

    keeper.use(keeper.provider, adopt_by_metadata="project")
    again = replace(event, event_id=str(uuid.uuid4()))
    assert await keeper.deliver(again) == "unknown"
    shop, blog = Owner.project("shop"), Owner.project("blog")
    found = await eventually(lambda: keeper.store.sandboxes.find_by_owner(shop))
    assert found is not None
    assert found.instance_id == pushed.instance_id
    assert (await keeper.reconciliation.run())[0].counts["adopted"] == 1
    assert (await keeper.store.sandboxes.get_by_owner(blog)).instance_id == listed.instance_id
