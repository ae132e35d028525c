"""What the engine itself pushes and logs reaches the record, however the sandbox was changed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
import uvicorn

from sandkeeper.domain.breaker import Breaker
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.providers.e2b.endpoint import E2BConnection
from sandkeeper.providers.e2b.provider import E2BProvider
from support.engine_process import Engine
from support.eventually import eventually
from support.observing_keeper import ObservingKeeper

# The engine is what is real here; the other tests show that both databases behave alike.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
async def engine_house(engine: Engine, keeper: ObservingKeeper) -> AsyncIterator[ObservingKeeper]:
    """The services on the running engine instead of the simulated provider."""
    provider = E2BProvider(
        E2BConnection(**engine.sdk_options()),
        keeper=f"observed-{uuid.uuid4().hex[:8]}",
        breaker=Breaker(),
    )
    keeper.provider = provider  # type: ignore[assignment]
    keeper.use(provider)
    yield keeper
    await keeper.webhook_registration.unregister()
    for instance in (await provider.list_instances()).instances:
        await provider.kill(instance.instance_id)
    await provider.close()


class Receiver:
    """A bare web server that hands each delivery to the keeper's receiver."""

    def __init__(self, keeper: ObservingKeeper) -> None:
        self.keeper = keeper
        self.outcomes: list[str] = []

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        body = b""
        while True:
            message = await receive()  # type: ignore[operator]
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}  # type: ignore[index]
        status = 200
        try:
            self.outcomes.append((await self.keeper.webhooks.receive(body, headers)).outcome)
        except SandkeeperError as error:
            status = 400
            self.outcomes.append(error.code)
        await send({"type": "http.response.start", "status": status, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]


async def test_the_engines_own_webhooks_keep_the_record_true(engine_house: ObservingKeeper) -> None:
    keeper = engine_house
    receiver = Receiver(keeper)
    config = uvicorn.Config(receiver, port=0, log_config=None, lifespan="off")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        await keeper.webhook_registration.register(f"http://127.0.0.1:{port}")
        sandbox = await keeper.launch()
        instance_id = sandbox.instance_id or ""

        await keeper.provider.pause(instance_id)
        await eventually(lambda: _is(keeper, sandbox.id, State.PAUSED))
        await keeper.provider.connect(instance_id, timeout_s=300)
        await eventually(lambda: _is(keeper, sandbox.id, State.RUNNING))
        await keeper.provider.set_timeout(instance_id, timeout_s=1)
        await keeper.provider.kill(instance_id)
        await eventually(lambda: _is(keeper, sandbox.id, State.KILLED))
        assert (await keeper.read(sandbox)).last_end.killed_reason is KilledReason.MANUAL
        assert "invalid_signature" not in receiver.outcomes
    finally:
        server.should_exit = True
        await serving


async def test_without_webhooks_the_engines_log_keeps_the_record_true(
    engine_house: ObservingKeeper,
) -> None:
    keeper = engine_house
    sandbox = await keeper.launch()
    await keeper.provider.pause(sandbox.instance_id or "")
    await eventually(lambda: _caught_up(keeper, sandbox.id, State.PAUSED))
    assert (await keeper.read(sandbox)).run.run_id is not None
    await keeper.provider.kill(sandbox.instance_id or "")
    await eventually(lambda: _caught_up(keeper, sandbox.id, State.KILLED))
    await keeper.reconciliation.run()
    assert (await keeper.read(sandbox)).state is State.KILLED


async def _is(keeper: ObservingKeeper, sandbox_id: str, state: State) -> bool:
    return (await keeper.store.sandboxes.get(sandbox_id)).state is state


async def _caught_up(keeper: ObservingKeeper, sandbox_id: str, state: State) -> bool:
    await keeper.event_polling.run()
    return await _is(keeper, sandbox_id, state)
