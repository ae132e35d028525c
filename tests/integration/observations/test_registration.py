"""One webhook per keeper at each provider, with a secret that all replicas share."""

from __future__ import annotations

import asyncio

import pytest

from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.services.monitoring.provider_features import ProviderFeatures
from sandkeeper.services.observe.webhook_registration import WebhookRegistration
from support.observing_keeper import ObservingKeeper


async def test_registering_again_moves_the_one_webhook(keeper: ObservingKeeper) -> None:
    await keeper.provider.create_webhook(name="foreign", url="https://x.test", secret="s")
    first = await keeper.webhook_registration.register("https://keeper.test/")
    assert first[0].url == "https://keeper.test/api/webhooks/e2b"
    second = await keeper.webhook_registration.register("https://moved.test")
    assert second[0].webhook_id == first[0].webhook_id
    assert [one.url for one in await keeper.webhook_registration.list()] == [
        "https://moved.test/api/webhooks/e2b"
    ]
    assert await keeper.webhook_registration.unregister() == 1
    assert await keeper.webhook_registration.list() == []
    assert [one.name for one in await keeper.provider.list_webhooks()] == ["foreign"]


async def test_all_replicas_agree_on_one_secret(keeper: ObservingKeeper) -> None:
    replicas = [WebhookRegistration(keeper.deps, ProviderFeatures(keeper.deps)) for _ in range(5)]
    made = await asyncio.gather(*(replica.secret() for replica in replicas))
    assert len(set(made)) == 1
    assert len(made[0]) >= 40


async def test_an_address_that_is_none_is_refused(keeper: ObservingKeeper) -> None:
    with pytest.raises(InvalidRequestError):
        await keeper.webhook_registration.register("keeper.test")
