"""Requests under way, and how they end when their sandbox leaves.

A visit is over in one of three ways: it is answered, the client goes away, or the sandbox is killed
or paused. In the last case the connection is dropped without a proper end, because that is what
clients take for "ask whether the sandbox still lives". A look every tenth of a second finds
sandboxes that left; `dismiss` only makes it quicker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass

from sandkeeper.engine.http.responses import Message, Receive, Scope, Send, send_not_found
from sandkeeper.engine.sandboxes.routing import RunningSandbox, SandboxLookup

POLL_INTERVAL_S = 0.1
"""Longer leaves clients hanging on a sandbox that is gone; shorter only burns time."""


@dataclass(eq=False, slots=True)
class ActiveRequest:
    """One request to one running sandbox."""

    resident: RunningSandbox
    scope: Scope
    task: asyncio.Task[object]
    residents: SandboxLookup
    dropped: bool = False
    left: bool = False
    started: bool = False
    answered: bool = False

    @property
    def sandbox_id(self) -> str:
        return self.resident.sandbox_id

    def is_running(self) -> bool:
        """Whether the sandbox still takes traffic."""
        return self.residents.find(self.sandbox_id) is not None

    def cancel_sandbox_gone(self) -> None:
        """End the visit without an answer, because the sandbox has left."""
        if not (self.dropped or self.answered):
            self.dropped = True
            if asyncio.current_task() is not self.task:
                self.task.cancel()

    def cancel_client_gone(self) -> None:
        """End the visit because the client has gone."""
        if not (self.left or self.answered) and asyncio.current_task() is not self.task:
            self.left = True
            self.task.cancel()


_current: ContextVar[ActiveRequest] = ContextVar("visit")


def current_request() -> ActiveRequest:
    """The visit on whose behalf this code runs."""
    return _current.get()


class ActiveRequests:
    """All visits under way."""

    def __init__(self, residents: SandboxLookup) -> None:
        self._residents = residents
        self._open: dict[str, set[ActiveRequest]] = {}
        self._look: asyncio.TimerHandle | None = None

    async def serve(
        self,
        visit: ActiveRequest,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        receive: Receive,
        send: Send,
    ) -> None:
        """Run `app` as this visit; return when it is answered or over."""

        async def watched_receive() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                visit.cancel_client_gone()
            return message

        async def watched_send(message: Message) -> None:
            if visit.dropped:
                return
            visit.started = True
            # Servers call the end of an answer a disconnect, too: that one ends no visit.
            visit.answered = message["type"] == "http.response.body" and not message.get(
                "more_body", False
            )
            await send(message)

        token = _current.set(visit)
        self._open.setdefault(visit.sandbox_id, set()).add(visit)
        self._look_later()
        try:
            await app(visit.scope, watched_receive, watched_send)
        except BaseException:
            # The cancellation is ours if one of the flags says so; it may come back dressed as an
            # error of the RPC library.
            if not (visit.dropped or visit.left):
                raise
            visit.task.uncancel()
        finally:
            _current.reset(token)
            visits = self._open[visit.sandbox_id]
            visits.discard(visit)
            if not visits:
                del self._open[visit.sandbox_id]
        if visit.dropped and not visit.started:
            await send_not_found(send, visit.sandbox_id)

    def cancel_for_sandbox(self, sandbox_id: str) -> None:
        """Drop every visit of a sandbox that leaves."""
        for visit in list(self._open.get(sandbox_id, ())):
            visit.cancel_sandbox_gone()

    def _look_later(self) -> None:
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(POLL_INTERVAL_S, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        for sandbox_id in list(self._open):
            if self._residents.find(sandbox_id) is None:
                self.cancel_for_sandbox(sandbox_id)
        if self._open:
            self._look_later()
