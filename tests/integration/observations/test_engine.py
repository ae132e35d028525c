"""What the engine itself pushes and logs reaches the record, whoever changed the sandbox."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
import uvicorn

from conftest import House
from eventually import eventually
from running import Engine
from sandkeeper.domain.breaker import Breaker
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.providers.e2b.provider import E2BConnection, E2BProvider

# The engine is what is real here; the other tests show that both databases behave alike.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
async def engine_house(engine: Engine, house: House) -> AsyncIterator[House]:
    """The services on the running engine instead of the simulated provider."""
    provider = E2BProvider(
        E2BConnection(**engine.sdk_options()),
        keeper=f"observed-{uuid.uuid4().hex[:8]}",
        breaker=Breaker(),
    )
    house.provider = provider  # type: ignore[assignment]
    house.use(provider)
    yield house
    await house.registration.unregister()
    for instance in (await provider.list_instances()).instances:
        await provider.kill(instance.instance_id)
    await provider.close()


class Receiver:
    """A bare web server that hands each delivery to the keeper's receiver."""

    def __init__(self, house: House) -> None:
        self.house = house
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
            self.outcomes.append((await self.house.webhooks.receive(body, headers)).outcome)
        except SandkeeperError as error:
            status = 400
            self.outcomes.append(error.code)
        await send({"type": "http.response.start", "status": status, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]


async def test_the_engines_own_webhooks_keep_the_record_true(engine_house: House) -> None:
    house = engine_house
    receiver = Receiver(house)
    config = uvicorn.Config(receiver, port=0, log_config=None, lifespan="off")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        await house.registration.register(f"http://127.0.0.1:{port}")
        sandbox = await house.launch()
        instance_id = sandbox.instance_id or ""

        await house.provider.pause(instance_id)
        await eventually(lambda: _is(house, sandbox.id, State.PAUSED))
        await house.provider.connect(instance_id, timeout_s=300)
        await eventually(lambda: _is(house, sandbox.id, State.RUNNING))
        await house.provider.set_timeout(instance_id, timeout_s=1)
        await house.provider.kill(instance_id)
        await eventually(lambda: _is(house, sandbox.id, State.KILLED))
        assert (await house.read(sandbox)).killed_reason is KilledReason.MANUAL
        assert "invalid_signature" not in receiver.outcomes
    finally:
        server.should_exit = True
        await serving


async def test_without_webhooks_the_engines_log_keeps_the_record_true(engine_house: House) -> None:
    house = engine_house
    sandbox = await house.launch()
    await house.provider.pause(sandbox.instance_id or "")
    await eventually(lambda: _caught_up(house, sandbox.id, State.PAUSED))
    assert (await house.read(sandbox)).run_id is not None
    await house.provider.kill(sandbox.instance_id or "")
    await eventually(lambda: _caught_up(house, sandbox.id, State.KILLED))
    await house.reconciliation.run()
    assert (await house.read(sandbox)).state is State.KILLED


async def _is(house: House, sandbox_id: str, state: State) -> bool:
    return (await house.store.sandboxes.get(sandbox_id)).state is state


async def _caught_up(house: House, sandbox_id: str, state: State) -> bool:
    await house.catch_up.run()
    return await _is(house, sandbox_id, state)
