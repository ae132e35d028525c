"""The stream behind the waiting page: the steps of the wake, and nothing else of the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import orjson

from sandkeeper.api.status.cache import StatusCache
from sandkeeper.common.elapsed import now_s
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.receipt import WakeMethod, list_steps
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.domain.texts.previews import STEPS
from sandkeeper.relay.asgi import Receive, Scope, Send
from sandkeeper.store import LoggedEvent

# Pages that wait at a time, in one process. Above it a page is told to come back by itself.
WAITING_MAX: Final = 2_000
# The longest time without a line, so that proxies keep the stream. A page that hears nothing of a
# change at once sees it then.
BEAT_S: Final = 5.0
BEGINS_WITHIN_S: Final = 4.0
"""How long a wake that was asked for may take to begin. Lower than the beat, at which a page that
hears of no change looks again."""
HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


class WaitingPages:
    """Streams of those who wait for a sandbox; the keeper's feed says when to look again."""

    def __init__(self, statuses: StatusCache, clock: Callable[[], datetime]) -> None:
        self._statuses = statuses
        self._clock = clock
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._count = 0
        self._closing = False

    async def wake_up(self, events: Sequence[LoggedEvent], written: Sequence[str]) -> None:
        """Let the pages of these sandboxes look again."""
        del events
        for sandbox_id in written:
            for waiting in self._waiting.get(sandbox_id, ()):
                waiting.set()

    def close(self) -> None:
        """End every stream: the process is about to stop."""
        self._closing = True
        for waiting in self._waiting.values():
            for one in waiting:
                one.set()

    async def serve(
        self, owner: Owner, sandbox: Sandbox, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send each step as it begins, until the app is there, the wake failed or the page left."""
        del scope
        changed = asyncio.Event()
        self._waiting.setdefault(sandbox.id, set()).add(changed)
        self._count += 1
        leaving = asyncio.ensure_future(_wait_until_left(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            if self._count <= WAITING_MAX:
                await self._tell(owner, changed, leaving, send)
            await send({"type": "http.response.body", "body": b""})
        finally:
            leaving.cancel()
            self._count -= 1
            waiting = self._waiting[sandbox.id]
            waiting.discard(changed)
            if not waiting:
                del self._waiting[sandbox.id]

    async def _tell(
        self, owner: Owner, changed: asyncio.Event, leaving: asyncio.Future[None], send: Send
    ) -> None:
        told: dict[str, Any] | None = None
        begins_by_s = now_s() + BEGINS_WITHIN_S
        while not (leaving.done() or self._closing):
            changed.clear()
            entry = await self._statuses.get(owner)
            if entry is None:
                return
            told_now = render_progress(entry.sandbox, self._clock())
            if not told_now["failed"]:
                begins_by_s = 0.0
            elif now_s() < begins_by_s:
                told_now["failed"] = ""  # The wake that the visit asked for has not begun yet.
            line = b": ping\n\n"
            if told_now != told:
                told, line = told_now, b"data: " + orjson.dumps(told_now) + b"\n\n"
            await send({"type": "http.response.body", "body": line, "more_body": True})
            if told_now["ready"] or told_now["failed"]:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), BEAT_S)


def render_progress(sandbox: Sandbox, now: datetime) -> dict[str, Any]:
    """Return what a waiting page shows: the steps, or that it is over."""
    mark = sandbox.wake
    is_waking = sandbox.is_waking(now) or sandbox.state is State.STARTING
    is_starting = mark is not None and mark.step is not None
    steps = list_steps(mark.method if mark is not None and is_starting else WakeMethod.RESUME)
    at = steps.index(mark.step) if mark and mark.step in steps else 0
    marks = ["done" if here < at else "now" if here == at else "next" for here in range(len(steps))]
    is_over = not (is_waking or is_starting)
    failed = ""
    if is_over and sandbox.state is not State.RUNNING:
        failed = "It could not be woken."
    return {
        "ready": sandbox.state is State.RUNNING and (sandbox.run.ready or is_over),
        "failed": failed,
        "usualMs": mark.usual_ms if mark is not None and is_starting else None,
        "steps": [
            {"words": STEPS[step], "is": is_at} for step, is_at in zip(steps, marks, strict=True)
        ],
    }


async def _wait_until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
