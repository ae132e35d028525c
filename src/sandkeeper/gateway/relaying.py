"""One request on its way to the app, and what its answer says about the app."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sandkeeper.domain.gateway.requests import is_use_of_socket
from sandkeeper.domain.gateway.visits import PreviewProblem
from sandkeeper.gateway.fields import Crossing
from sandkeeper.gateway.limits import PreviewLimits
from sandkeeper.relay.asgi import Fields, Message, Receive, Scope, Send
from sandkeeper.relay.headers import UnsafeHeadError
from sandkeeper.relay.request import relay
from sandkeeper.relay.upstream import Upstream, UpstreamClosedError
from sandkeeper.relay.web_socket import relay_socket

NO_SERVER: Final = 502
# A provider's own answer is far smaller. Higher would hold more of an app's; lower might cut one.
HELD_MAX: Final = 16 * 1024
NOT_FOUND: Final = b"not found"
"""What a provider says of an instance that does not run, rather than of a port."""
USE_EVERY_S: Final = 5.0
"""Messages of one socket count once in this time."""


@dataclass(slots=True)
class Exchange:
    """What is known of one request so far."""

    sandbox_id: str
    instance_id: str
    crossing: Crossing
    limits: PreviewLimits
    on_use: Callable[[], None]
    status: int = 0
    sent: int = 0
    received: int = 0
    is_over: bool = False
    has_left: bool = False
    """The client went before the answer was complete."""
    began: float = field(default_factory=time.perf_counter)

    @property
    def took_ms(self) -> int:
        return round((time.perf_counter() - self.began) * 1000)


class ProviderAnswer:
    """Holds back an answer that may be the provider's own, until it is known whose it is."""

    def __init__(self, instance_id: str) -> None:
        self._instance_id = instance_id.encode()
        self._start: Message | None = None
        self._held: list[Message] = []
        self._size = 0

    def take(self, message: Message) -> list[Message]:
        """Return what may be sent now; raise ProviderSaysNo for the provider's own."""
        if message["type"] == "http.response.start" and message["status"] == NO_SERVER:
            self._start = message
            return []
        if self._start is None:
            return [message]
        self._held.append(message)
        self._size += len(message.get("body", b""))
        if message.get("more_body", False) and self._size <= HELD_MAX:
            return []
        body = b"".join(one.get("body", b"") for one in self._held)
        if self._size <= HELD_MAX and self._instance_id in body:
            is_gone = NOT_FOUND in body.lower()
            raise ProviderSaysNo(
                PreviewProblem.INSTANCE_GONE if is_gone else PreviewProblem.APP_STARTING
            )
        ready, self._start, self._held = [self._start, *self._held], None, []
        return ready


class ProviderSaysNo(Exception):  # noqa: N818  An answer, for which there is a page.
    """The provider answered instead of the app."""

    def __init__(self, problem: PreviewProblem) -> None:
        super().__init__(problem.value)
        self.problem = problem


async def pass_on(
    exchange: Exchange,
    upstream: Upstream,
    fields: Fields,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> PreviewProblem | None:
    """Relay the request; return the problem if nothing was sent, and the app did not answer."""
    task = asyncio.current_task()
    assert task is not None
    pass_both_ways = relay_socket if scope["type"] == "websocket" else relay
    watched = _watch_receive(exchange, receive, task)
    try:
        await pass_both_ways(upstream, fields, scope, watched, _watch_send(exchange, send))
    except ProviderSaysNo as said:
        return said.problem
    except UpstreamClosedError:
        return PreviewProblem.APP_BROKE_OFF
    except UnsafeHeadError:
        return PreviewProblem.BAD_REQUEST
    except asyncio.CancelledError:
        if not exchange.has_left:
            raise
        task.uncancel()
    return None


def _watch_receive(exchange: Exchange, receive: Receive, task: asyncio.Task[object]) -> Receive:
    before: bytes | None = None
    used_at = -USE_EVERY_S

    async def watched() -> Message:
        nonlocal before, used_at
        message = await receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            exchange.received += size
            if size:
                await exchange.limits.pay(exchange.sandbox_id, size)
        elif message["type"] == "http.disconnect":
            if not (exchange.is_over or exchange.has_left):
                exchange.has_left = True
                task.cancel()
        elif message["type"] == "websocket.receive":
            text = message.get("text")
            data = text.encode() if text is not None else message["bytes"]
            exchange.received += len(data)
            await exchange.limits.pay(exchange.sandbox_id, len(data))
            now = time.monotonic()
            if now - used_at >= USE_EVERY_S and is_use_of_socket(data, before):
                used_at = now
                exchange.on_use()
            before = data
        return message

    return watched


def _watch_send(exchange: Exchange, send: Send) -> Send:
    provider = ProviderAnswer(exchange.instance_id)

    async def watched(message: Message) -> None:
        for one in provider.take(message):
            kind = one["type"]
            if kind == "http.response.start":
                exchange.status = one["status"]
                one["headers"] = _translate(one["headers"], exchange.crossing)
            elif kind == "websocket.accept":
                exchange.status = 101
            size = _size_of(one)
            exchange.sent += size
            if size:
                await exchange.limits.pay(exchange.sandbox_id, size)
            if kind == "http.response.body" and not one.get("more_body", False):
                exchange.is_over = True
            await send(one)

    return watched


def _translate(fields: Fields, crossing: Crossing) -> Fields:
    return [
        (name, crossing.to_public(value) if name == b"location" else value)
        for name, value in fields
    ]


def _size_of(message: Message) -> int:
    text = message.get("text")
    if text is not None:
        return len(text)
    return len(message.get("body") or message.get("bytes") or b"")
