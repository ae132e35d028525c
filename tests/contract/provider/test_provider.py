"""The provider's contract, against every implementation: simulated, the local engine, E2B's cloud.

The cloud takes part only when `E2B_API_KEY` is set, and with the same tests.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from sandkeeper.domain.breaker import Breaker
from sandkeeper.domain.errors import (
    InstanceGoneError,
    ProviderAmbiguousError,
    ProviderError,
    ProviderUnsupportedError,
    WrongStateError,
)
from sandkeeper.providers.base import (
    CreateSpec,
    EventKind,
    Instance,
    InstanceState,
    OwnershipMetadata,
    Provider,
)
from sandkeeper.providers.conformance import check_provider
from sandkeeper.providers.e2b.endpoint import E2BConnection
from sandkeeper.providers.e2b.provider import E2BProvider
from sandkeeper.providers.features import ProviderFeature
from sandkeeper.testing.providers import SimulatedProvider
from support.eventually import eventually
from support.isolation import ISOLATION


@pytest.fixture(
    params=["simulated", "engine", pytest.param("cloud", marks=pytest.mark.cloud)],
)
async def provider(request: pytest.FixtureRequest) -> AsyncIterator[Provider]:
    """One provider, with a keeper's name of its own; what it created is gone afterwards."""
    keeper = f"contract-{uuid.uuid4().hex[:12]}"
    provider: Provider
    if request.param == "simulated":
        provider = SimulatedProvider(keeper=keeper)
    elif request.param == "engine":
        engine = request.getfixturevalue("engine")
        provider = E2BProvider(
            E2BConnection(**engine.sdk_options()), keeper=keeper, breaker=Breaker()
        )
    else:
        if not os.environ.get("E2B_API_KEY"):
            pytest.skip("E2B's cloud needs E2B_API_KEY")
        provider = E2BProvider(E2BConnection(), keeper=keeper, breaker=Breaker())
    yield provider
    for instance in (await provider.list_instances()).instances:
        await provider.kill(instance.instance_id)
    await provider.close()


def spec(provider: Provider, sandbox_id: str = "s1", generation: int = 1) -> CreateSpec:
    return CreateSpec(
        tag=OwnershipMetadata(provider.keeper, sandbox_id, "project", "shop / ü & co", generation),
        template="base",
        timeout_s=120,
        metadata={"colour": "blue"},
        env={"GREETING": "hello"},
        port=3000,
    )


async def test_a_life_from_creation_to_the_end(provider: Provider) -> None:
    wanted = spec(provider)
    created = await provider.create(wanted)
    assert created.state is InstanceState.RUNNING
    assert created.tag == wanted.tag
    assert created.isolation in {ISOLATION, "provider"}
    assert created.url is not None
    assert f"3000-{created.instance_id}" in created.url

    seen = await provider.get(created.instance_id, port=3000)
    assert seen.state is InstanceState.RUNNING
    assert seen.tag == wanted.tag
    assert seen.metadata["colour"] == "blue"
    assert seen.url == created.url
    assert seen.end_at is not None
    assert seen.end_at > datetime.now(UTC) + timedelta(seconds=60)

    assert (await provider.pause(created.instance_id)).state is InstanceState.PAUSED
    assert (await provider.pause(created.instance_id)).state is InstanceState.PAUSED
    assert (await provider.get(created.instance_id)).state is InstanceState.PAUSED

    woken = await provider.connect(created.instance_id, timeout_s=600, port=3000)
    assert (woken.instance_id, woken.state) == (created.instance_id, InstanceState.RUNNING)
    after = await provider.get(created.instance_id)
    assert after.state is InstanceState.RUNNING
    assert after.end_at is not None
    assert after.end_at > datetime.now(UTC) + timedelta(seconds=400)

    await provider.set_timeout(created.instance_id, timeout_s=60)
    shortened = await provider.get(created.instance_id)
    assert shortened.end_at is not None
    assert shortened.end_at < datetime.now(UTC) + timedelta(seconds=120)

    assert await provider.kill(created.instance_id) is True
    assert await provider.kill(created.instance_id) is False


async def test_a_creation_that_is_repeated_makes_no_second_instance(provider: Provider) -> None:
    """A request that is carried out late is the same: its sender has asked again before."""
    wanted = spec(provider, "s-twice")
    answers = await asyncio.gather(
        *(provider.create(wanted) for _ in range(3)), return_exceptions=True
    )
    made = {one.instance_id for one in answers if isinstance(one, Instance)}
    assert len(made) == 1
    for one in answers:
        assert isinstance(one, Instance | ProviderAmbiguousError), "it is never refused for good"
    assert (await provider.create(wanted)).instance_id in made
    later = await provider.create(spec(provider, "s-twice", generation=2))
    assert later.instance_id not in made
    for instance_id in (*made, later.instance_id):
        assert await provider.kill(instance_id)


async def test_what_never_was_is_gone_for_every_question(provider: Provider) -> None:
    for ask in (
        provider.get("i00000000000000000000"),
        provider.pause("i00000000000000000000"),
        provider.connect("i00000000000000000000", timeout_s=60),
        provider.set_timeout("i00000000000000000000", timeout_s=60),
    ):
        with pytest.raises(InstanceGoneError):
            await ask


async def test_a_look_and_a_list_leave_a_paused_instance_asleep(provider: Provider) -> None:
    created = await provider.create(spec(provider))
    await provider.pause(created.instance_id)
    for _ in range(3):
        assert (await provider.get(created.instance_id)).state is InstanceState.PAUSED
        page = await provider.list_instances()
        assert [one.state for one in page.instances] == [InstanceState.PAUSED]


async def test_only_our_own_are_listed_page_by_page(provider: Provider) -> None:
    wanted = [spec(provider, "s1"), spec(provider, "s2"), spec(provider, "s2", generation=2)]
    created = [await provider.create(one) for one in wanted]
    await provider.pause(created[0].instance_id)

    seen: dict[str, OwnershipMetadata | None] = {}
    cursor: str | None = None
    while True:
        page = await provider.list_instances(cursor=cursor, limit=2)
        assert len(page.instances) <= 2
        seen.update((one.instance_id, one.tag) for one in page.instances)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == {one.instance_id: it.tag for one, it in zip(created, wanted, strict=True)}

    of_one = await provider.list_instances(sandbox_id="s2")
    assert {one.instance_id for one in of_one.instances} == {
        created[1].instance_id,
        created[2].instance_id,
    }
    everyone = {one.instance_id for one in (await provider.list_instances(foreign=True)).instances}
    assert set(seen) <= everyone


async def test_the_event_log_tells_the_whole_life(provider: Provider) -> None:
    since = datetime.now(UTC) - timedelta(seconds=5)
    created = await provider.create(spec(provider))
    instance_id = created.instance_id
    await provider.pause(instance_id)
    await provider.connect(instance_id, timeout_s=60)
    await provider.kill(instance_id)
    life = [EventKind.CREATED, EventKind.PAUSED, EventKind.RESUMED, EventKind.KILLED]

    async def told() -> list[EventKind]:
        events = await provider.list_events(since=since, instance_id=instance_id)
        return [event.kind for event in events if event.kind in life]

    assert await eventually(lambda: _equals(told, life), within_s=30)
    events = await provider.list_events(since=since, instance_id=instance_id)
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert len({event.event_id for event in events}) == len(events)
    runs = {event.kind: event.run_id for event in events}
    assert runs[EventKind.CREATED] != runs[EventKind.RESUMED]
    ended = next(event for event in events if event.kind is EventKind.KILLED)
    assert ended.kill_reason == "request"
    assert await provider.list_events(since=datetime.now(UTC) + timedelta(hours=1)) == []


async def _equals(told: object, life: list[EventKind]) -> bool:
    return bool(await told() == life)  # type: ignore[operator]


async def test_webhooks_are_registered_changed_and_removed(provider: Provider) -> None:
    made = await provider.create_webhook(
        name="sandkeeper-contract", url="https://keeper.test/api/webhooks/e2b", secret="s" * 40
    )
    assert set(made.events) == {kind.value for kind in EventKind}
    assert made.webhook_id in {one.webhook_id for one in await provider.list_webhooks()}
    changed = await provider.update_webhook(
        made.webhook_id, url="https://other.test/hook", enabled=False
    )
    assert (changed.url, changed.enabled) == ("https://other.test/hook", False)
    assert await provider.delete_webhook(made.webhook_id) is True
    assert await provider.delete_webhook(made.webhook_id) is False


async def test_two_pauses_and_two_connects_at_once_all_succeed(provider: Provider) -> None:
    created = await provider.create(spec(provider))
    paused = await asyncio.gather(*(provider.pause(created.instance_id) for _ in range(2)))
    assert {one.state for one in paused} == {InstanceState.PAUSED}
    woken = await asyncio.gather(
        *(provider.connect(created.instance_id, timeout_s=60) for _ in range(2))
    )
    assert {one.instance_id for one in woken} == {created.instance_id}
    assert (await provider.get(created.instance_id)).state is InstanceState.RUNNING


async def test_the_native_object_works_and_does_not_wake(provider: Provider) -> None:
    created = await provider.create(spec(provider))
    try:
        native = await provider.open_sdk_sandbox(created.instance_id)
    except ProviderUnsupportedError:
        pytest.skip("nothing runs in this provider's sandboxes")
    done = await native.commands.run("echo $GREETING")
    assert done.stdout.strip() == "hello"

    await provider.pause(created.instance_id)
    native = await provider.open_sdk_sandbox(created.instance_id)
    assert (await provider.get(created.instance_id)).state is InstanceState.PAUSED
    with pytest.raises(Exception) as caught:  # noqa: PT011 - The SDK's errors have no common root.
        await native.commands.run("true")
    assert isinstance(
        provider.translate(caught.value, instance_id=created.instance_id), WrongStateError
    )
    assert (await provider.get(created.instance_id)).state is InstanceState.PAUSED

    await provider.kill(created.instance_id)
    with pytest.raises(ProviderError) as gone:
        await provider.open_sdk_sandbox(created.instance_id)
    assert isinstance(gone.value, InstanceGoneError)


async def test_a_look_finds_nothing_in_a_quiet_instance_and_wakes_no_paused_one(
    provider: Provider,
) -> None:
    created = await provider.create(spec(provider))
    access = await provider.get_connection_info(created.instance_id)
    assert list(await provider.list_commands(access)) == []
    ids = [created.instance_id, "i00000000000000000000"]
    assert set(await provider.measure_cpu_pct(ids)) <= {created.instance_id}
    await provider.pause(created.instance_id)
    with pytest.raises((WrongStateError, ProviderError)):
        await provider.list_commands(access)
    await provider.measure_cpu_pct(ids)
    assert (await provider.get(created.instance_id)).state is InstanceState.PAUSED


async def test_the_check_finds_every_feature_and_leaves_nothing_behind(provider: Provider) -> None:
    """`sandkeeper doctor --provider` is the same code."""
    if isinstance(provider, SimulatedProvider):
        pytest.skip("nothing runs in this provider's sandboxes")
    findings = {one.feature: one async for one in check_provider(provider)}
    assert set(findings) == set(ProviderFeature)
    assert {name: one.detail for name, one in findings.items() if not one.is_supported} == {}
    assert (await provider.list_instances()).instances == ()
    assert not [one for one in await provider.list_webhooks() if "check-" in one.name]
