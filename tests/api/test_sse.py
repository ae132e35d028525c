"""The hub of live streams, with a reader at the other end of a real ASGI conversation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandkeeper.api.auth import Caller, Role
from sandkeeper.api.status.sse import FLEET, WAITING_MAX, StreamHub, render_block
from sandkeeper.api.wire_errors import TooManyStreamsError
from sandkeeper.telemetry import Metrics
from support.eventually import eventually


class Reader:
    """One connection: what arrived on it, and the way to close it. A stalled one takes nothing."""

    def __init__(self, *, stalled: bool = False) -> None:
        self.chunks: list[bytes] = []
        self.ended = False
        self._gone = asyncio.Event()
        self._flow = asyncio.Event()
        if not stalled:
            self._flow.set()

    async def receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            if len(self.chunks) >= 1:
                await self._flow.wait()
            self.chunks.append(message["body"])
            self.ended = not message.get("more_body", False)

    def hang_up(self) -> None:
        self._gone.set()

    @property
    def text(self) -> bytes:
        return b"".join(self.chunks)


@pytest.fixture
async def hub() -> StreamHub:
    return StreamHub(connections_max=3, gauge=Metrics().sse_connections)


async def opening() -> bytes:
    return b"event: status\ndata: 0\n\n"


def connect(
    hub: StreamHub, reader: Reader, *topics: str, caller: Caller | None = None
) -> asyncio.Task[None]:
    return asyncio.create_task(
        hub.serve(reader.receive, reader.send, topics=topics, opening=opening, caller=caller)
    )


async def test_a_reader_gets_the_opening_then_its_topics_only(hub: StreamHub) -> None:
    reader, other = Reader(), Reader()
    tasks = [connect(hub, reader, "shop"), connect(hub, other, FLEET)]
    await eventually(lambda: reader.chunks and other.chunks)
    hub.publish(("shop", FLEET), render_block(event="status", data=b"1", seq=7))
    hub.publish(("else", FLEET), render_block(event="status", data=b"2", seq=8))
    await eventually(lambda: b"data: 2" in other.text)
    assert b"id: 7\nevent: status\ndata: 1\n\n" in reader.text
    assert b"data: 2" not in reader.text
    reader.hang_up()
    other.hang_up()
    await asyncio.gather(*tasks)
    assert hub.connections == 0


async def test_one_reader_of_two_topics_gets_a_block_once(hub: StreamHub) -> None:
    reader = Reader()
    task = connect(hub, reader, "shop", FLEET)
    await eventually(lambda: reader.chunks)
    hub.publish(("shop", FLEET), render_block(event="status", data=b"1"))
    await eventually(lambda: b"data: 1" in reader.text)
    assert reader.text.count(b"data: 1") == 1
    reader.hang_up()
    await task


async def test_a_reader_that_stalls_is_dropped_and_blocks_no_other(hub: StreamHub) -> None:
    stalled, quick = Reader(stalled=True), Reader()
    tasks = [connect(hub, stalled, FLEET), connect(hub, quick, FLEET)]
    await eventually(lambda: stalled.chunks and quick.chunks)
    for number in range(WAITING_MAX + 50):
        hub.publish((FLEET,), render_block(event="status", data=b"%d" % number))
        await asyncio.sleep(0)
    await eventually(lambda: b"data: %d\n" % (WAITING_MAX + 49) in quick.text)
    await eventually(lambda: hub.connections == 1)
    quick.hang_up()
    await asyncio.gather(*tasks)


async def test_more_streams_than_allowed_are_refused(hub: StreamHub) -> None:
    readers = [Reader() for _ in range(3)]
    tasks = [connect(hub, reader, FLEET) for reader in readers]
    await eventually(lambda: hub.connections == 3)
    late = Reader()
    with pytest.raises(TooManyStreamsError):
        await hub.serve(late.receive, late.send, topics=[FLEET], opening=opening)
    hub.close()
    await asyncio.gather(*tasks)
    assert all(reader.ended for reader in readers)


async def test_a_quiet_stream_is_pinged(hub: StreamHub) -> None:
    reader = Reader()
    task = connect(hub, reader, FLEET)
    pings = asyncio.create_task(hub.ping_forever(0.01))
    await eventually(lambda: reader.text.count(b": ping\n\n") > 2)
    pings.cancel()
    reader.hang_up()
    await task


async def test_a_stream_ends_with_the_token_that_opened_it(hub: StreamHub) -> None:
    callers = [
        Caller(Role.CLIENT, "project", "shop", token_id="revoked", expires_at=1000),
        Caller(Role.CLIENT, "project", "shop", token_id="expired", expires_at=10),
        Caller(Role.OPERATOR),
    ]
    readers = [Reader() for _ in callers]
    tasks = [
        connect(hub, reader, "shop", caller=caller)
        for reader, caller in zip(readers, callers, strict=True)
    ]
    await eventually(lambda: all(reader.chunks for reader in readers))
    hub.end_unadmitted({"revoked"}.__contains__, now=10)
    await eventually(lambda: hub.connections == 1)
    assert [reader.ended for reader in readers] == [True, True, False]
    readers[2].hang_up()
    await asyncio.gather(*tasks)
