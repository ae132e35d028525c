"""Requests in progress, and how they end when their sandbox is paused or killed.

A request ends in one of three ways: it is answered, the client disconnects, or the sandbox stops
taking traffic. In the last case the connection is dropped without a proper end, because clients
then check whether the sandbox still runs. The lifecycle calls `cancel_for_sandbox` at that moment;
a poll finds sandboxes that stopped in any other way, for example because the machine killed them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass

from sandkeeper.engine.http.responses import NOT_FOUND, send_not_found
from sandkeeper.engine.sandboxes.routing import RunningSandbox, RunningSandboxes
from sandkeeper.relay.asgi import Message, Receive, Scope, Send

POLL_INTERVAL_S = 0.1
"""Longer leaves clients hanging on a sandbox that is gone; shorter only burns CPU time."""


@dataclass(eq=False, slots=True)
class ActiveRequest:
    """One request to one running sandbox."""

    sandbox: RunningSandbox
    scope: Scope
    task: asyncio.Task[object]
    sandboxes: RunningSandboxes
    dropped: bool = False
    left: bool = False
    started: bool = False
    answered: bool = False

    @property
    def sandbox_id(self) -> str:
        return self.sandbox.sandbox_id

    def is_running(self) -> bool:
        """Return whether the sandbox still takes traffic."""
        return self.sandboxes.find(self.sandbox_id) is not None

    def cancel_sandbox_gone(self) -> None:
        """End the request without an answer, because the sandbox stopped."""
        if not (self.dropped or self.answered):
            self.dropped = True
            if asyncio.current_task() is not self.task:
                self.task.cancel()

    def cancel_client_gone(self) -> None:
        """End the request, because the client disconnected."""
        if not (self.left or self.answered) and asyncio.current_task() is not self.task:
            self.left = True
            self.task.cancel()


_current: ContextVar[ActiveRequest] = ContextVar("active_request")


def current_request() -> ActiveRequest:
    """Return the request that this code serves."""
    return _current.get()


class ActiveRequests:
    """The requests in progress of all sandboxes, both to envd and to their ports."""

    def __init__(self, sandboxes: RunningSandboxes) -> None:
        self._sandboxes = sandboxes
        self._open: dict[str, set[ActiveRequest]] = {}
        self._poll_timer: asyncio.TimerHandle | None = None

    async def serve(
        self,
        request: ActiveRequest,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        receive: Receive,
        send: Send,
    ) -> None:
        """Run `app` for this request; return when it is answered or cancelled."""

        async def watched_receive() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                request.cancel_client_gone()
            return message

        async def watched_send(message: Message) -> None:
            if request.dropped:
                return
            request.started = True
            # Servers also report a disconnect after a complete response; ignore that one.
            request.answered = message["type"] == "http.response.body" and not message.get(
                "more_body", False
            )
            await send(message)

        token = _current.set(request)
        self._open.setdefault(request.sandbox_id, set()).add(request)
        self._schedule_poll()
        try:
            await app(request.scope, watched_receive, watched_send)
        except BaseException:
            # The flags say whether we caused the cancellation; the RPC library may have turned it
            # into an error of its own.
            if not (request.dropped or request.left):
                raise
            request.task.uncancel()
        finally:
            _current.reset(token)
            requests = self._open[request.sandbox_id]
            requests.discard(request)
            if not requests:
                del self._open[request.sandbox_id]
        if request.dropped and not request.started:
            await _refuse(request, send)

    def cancel_for_sandbox(self, sandbox_id: str) -> None:
        """Drop every request of a sandbox that stops taking traffic."""
        for request in list(self._open.get(sandbox_id, ())):
            request.cancel_sandbox_gone()

    def _schedule_poll(self) -> None:
        if self._poll_timer is None:
            loop = asyncio.get_running_loop()
            self._poll_timer = loop.call_later(POLL_INTERVAL_S, self._poll)

    def _poll(self) -> None:
        self._poll_timer = None
        for sandbox_id in list(self._open):
            if self._sandboxes.find(sandbox_id) is None:
                self.cancel_for_sandbox(sandbox_id)
        if self._open:
            self._schedule_poll()


async def _refuse(request: ActiveRequest, send: Send) -> None:
    if request.scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1013, "reason": NOT_FOUND})
    else:
        await send_not_found(send, request.sandbox_id)
