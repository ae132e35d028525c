"""What was missed while we were away, or without any webhook, is read from the provider's log."""

from __future__ import annotations

import pytest

from sandkeeper.domain.errors import ProviderUnavailableError, ProviderUnsupportedError
from sandkeeper.domain.states import State
from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.testing.providers import DownProvider, MisbehavingProvider, SimulatedProvider
from support.observing_keeper import ObservingKeeper


class WithoutEventsProvider(MisbehavingProvider):
    """A self-hosted E2B that has no event log."""

    async def inject_fault(self, call: object) -> object:
        del call
        raise ProviderUnsupportedError


async def test_changes_arrive_without_a_webhook_and_are_read_once(keeper: ObservingKeeper) -> None:
    sandbox = await keeper.launch()
    await keeper.provider.pause(sandbox.instance_id or "")
    first = (await keeper.event_polling.run())[0]
    assert (first.read, first.changed > 0) == (2, True)
    assert (await keeper.read(sandbox)).state is State.PAUSED
    assert (await keeper.event_polling.run())[0].read == 0

    keeper.provider.end(sandbox.instance_id or "", reason="timeout")
    assert (await keeper.event_polling.run())[0].read == 1
    assert (await keeper.read(sandbox)).state is State.EXPIRED


async def test_an_event_that_came_by_webhook_is_not_read_again(keeper: ObservingKeeper) -> None:
    sandbox = await keeper.launch()
    await keeper.provider.pause(sandbox.instance_id or "")
    for event in keeper.provider.events:
        await keeper.deliver(event)
    before = await keeper.read(sandbox)
    assert (await keeper.event_polling.run())[0].read == 0
    assert await keeper.read(sandbox) == before


async def test_a_region_that_is_down_does_not_hide_the_other(keeper: ObservingKeeper) -> None:
    sandbox = await keeper.launch()
    await keeper.provider.pause(sandbox.instance_id or "")
    down = DownProvider(SimulatedProvider(name="other", region="far"))
    keeper.use(down, keeper.provider)  # type: ignore[arg-type]
    with pytest.raises(ProviderUnavailableError):
        await keeper.event_polling.run()
    assert (await keeper.read(sandbox)).state is State.PAUSED
    down.is_down = False
    assert len(await keeper.event_polling.run()) == 2


async def test_a_provider_without_an_event_log_is_said_to_have_none(
    keeper: ObservingKeeper,
) -> None:
    keeper.use(WithoutEventsProvider(keeper.provider, "list_events"))  # type: ignore[arg-type]
    assert isinstance(keeper.deps.providers, ProviderRegistry)
    assert [report.supported for report in await keeper.event_polling.run()] == [False]
