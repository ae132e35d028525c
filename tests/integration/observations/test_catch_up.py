"""What was missed while we were away, or without any webhook, is read from the provider's log."""

from __future__ import annotations

import pytest

from conftest import House
from sandkeeper.domain.errors import ProviderUnavailableError, ProviderUnsupportedError
from sandkeeper.domain.states import State
from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.testing.providers import DownProvider, MisbehavingProvider, SimulatedProvider


class WithoutEventsProvider(MisbehavingProvider):
    """A self-hosted E2B that has no event log."""

    async def spoil(self, call: object) -> object:
        del call
        raise ProviderUnsupportedError


async def test_changes_arrive_without_a_webhook_and_are_read_once(house: House) -> None:
    sandbox = await house.launch()
    await house.provider.pause(sandbox.instance_id or "")
    first = (await house.catch_up.run())[0]
    assert (first.read, first.changed > 0) == (2, True)
    assert (await house.read(sandbox)).state is State.PAUSED
    assert (await house.catch_up.run())[0].read == 0

    house.provider.end(sandbox.instance_id or "", reason="timeout")
    assert (await house.catch_up.run())[0].read == 1
    assert (await house.read(sandbox)).state is State.EXPIRED


async def test_an_event_that_came_by_webhook_is_not_read_again(house: House) -> None:
    sandbox = await house.launch()
    await house.provider.pause(sandbox.instance_id or "")
    for event in house.provider.events:
        await house.deliver(event)
    before = await house.read(sandbox)
    assert (await house.catch_up.run())[0].read == 0
    assert await house.read(sandbox) == before


async def test_a_region_that_is_down_does_not_hide_the_other(house: House) -> None:
    sandbox = await house.launch()
    await house.provider.pause(sandbox.instance_id or "")
    down = DownProvider(SimulatedProvider(name="other", region="far"))
    house.use(down, house.provider)  # type: ignore[arg-type]
    with pytest.raises(ProviderUnavailableError):
        await house.catch_up.run()
    assert (await house.read(sandbox)).state is State.PAUSED
    down.is_down = False
    assert len(await house.catch_up.run()) == 2


async def test_a_provider_without_an_event_log_is_said_to_have_none(house: House) -> None:
    house.use(WithoutEventsProvider(house.provider, "list_events"))  # type: ignore[arg-type]
    assert isinstance(house.regions, ProviderRegistry)
    assert [report.supported for report in await house.catch_up.run()] == [False]
