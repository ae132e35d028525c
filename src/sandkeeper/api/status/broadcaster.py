"""Updates the status cache and the live streams from the event log.

Every committed change reaches this process through the feed. Its record is read once, encoded once,
put into the status cache and sent to every listener. A stream carries two kinds of events:
``change`` (an entry of the log, with its number as id) and ``status`` (the status after it). A
reader that returns with ``Last-Event-ID`` gets the changes it missed, then the status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from sandkeeper.api.status.cache import StatusCache
from sandkeeper.api.status.serializers import dumps, owner_slug, render_change
from sandkeeper.api.status.sse import FLEET, StreamHub, render_block
from sandkeeper.domain.activity import Touch
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.store import Store
from sandkeeper.store.cooperative import yielding
from sandkeeper.store.events import LoggedEvent

log = structlog.get_logger(__name__)

# Changes replayed to a returning reader. The status after them shows what was left out.
REPLAY_MAX = 500
# Activity of up to this many sandboxes in one flush is sent to streams of the whole fleet. More
# would flood them; they see it at their next refresh. Streams of one sandbox always get it.
TOUCHES_TO_FLEET_MAX = 50

# Records read with one query. More hold a connection for longer, fewer cost more queries.
READ_TOGETHER = 100


class Broadcaster:
    """Publishes changes and activity to the status cache and the streams."""

    def __init__(self, *, store: Store, statuses: StatusCache, hub: StreamHub) -> None:
        self._store = store
        self._statuses = statuses
        self._hub = hub
        self._waiting: list[LoggedEvent] = []
        self._work: asyncio.Task[None] | None = None

    def on_events(self, events: Sequence[LoggedEvent]) -> None:
        """Accept events from the feed; they are published in order, in the background."""
        self._waiting.extend(events)
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._publish_all())

    async def on_activity(self, touches: Sequence[Touch]) -> None:
        """Publish activity that was written: it has no version and no event of its own."""
        fleet = (FLEET,) if len(touches) <= TOUCHES_TO_FLEET_MAX else ()
        active = [touch for touch in touches if touch.active is not None]
        async for touch in yielding(active):
            entry = self._statuses.touch(touch)
            if entry is not None:
                block = render_block(event="status", data=entry.body)
                self._hub.publish((owner_slug(entry.sandbox.owner), *fleet), block)

    async def initial_sandbox_events(self, sandbox: Sandbox, *, after: int | None) -> bytes:
        """Return what a new reader of one sandbox gets first: missed changes, then the status."""
        blocks: list[bytes] = []
        if after is not None:
            missed = await self._store.events.of(sandbox.id, after=after, limit=REPLAY_MAX)
            blocks += [_change_block(event) for event in reversed(missed)]
        entry = self._statuses.peek(sandbox.owner) or self._statuses.put(sandbox)
        seq = await self._store.events.latest_seq() if after is None else None
        blocks.append(render_block(event="status", data=entry.body, seq=seq))
        return b"".join(blocks)

    async def initial_fleet_events(
        self, sandboxes: Sequence[Sandbox], *, after: int | None
    ) -> bytes:
        """Return what a new reader of many gets first: missed changes, then each status."""
        blocks: list[bytes] = []
        latest = await self._store.events.latest_seq()
        if after is not None:
            missed = await self._store.events.after(after, limit=REPLAY_MAX)
            ids = {sandbox.id for sandbox in sandboxes}
            blocks += [_change_block(one) for one in missed if not ids or one.sandbox_id in ids]
        for sandbox in sandboxes:
            entry = self._statuses.peek(sandbox.owner) or self._statuses.put(sandbox)
            blocks.append(render_block(event="status", data=entry.body))
        blocks.append(render_block(event="open", data=dumps({"seq": latest}), seq=latest))
        return b"".join(blocks)

    async def _publish_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                try:
                    await self._publish(batch)
                except Exception as error:  # noqa: BLE001 - The next batch or read repairs it.
                    log.warning("changes_not_shown", error=str(error), count=len(batch))
        finally:
            self._work = None

    async def _publish(self, batch: Sequence[LoggedEvent]) -> None:
        ids = list(dict.fromkeys(event.sandbox_id for event in batch))
        found = {one.id: one for one in await self._read(ids)}
        last = {event.sandbox_id: event.seq for event in batch}
        async for event in yielding(batch):
            topics = (owner_slug(event.owner), FLEET)
            sandbox = found.get(event.sandbox_id)
            if sandbox is None:
                continue
            # Several events of one sandbox in a batch led to one status, which is sent once.
            block = _change_block(event) if self._hub.has_listeners(topics) else b""
            if last[event.sandbox_id] == event.seq:
                entry = self._statuses.put(sandbox)
                block += render_block(event="status", data=entry.body) if block else b""
            if block:
                self._hub.publish(topics, block)

    async def _read(self, sandbox_ids: Sequence[str]) -> list[Sandbox]:
        found: list[Sandbox] = []
        for start in range(0, len(sandbox_ids), READ_TOGETHER):
            some = sandbox_ids[start : start + READ_TOGETHER]
            found += await self._store.sandboxes.list_by_id(some)
        return found


def _change_block(event: LoggedEvent) -> bytes:
    return render_block(event="change", data=dumps(render_change(event)), seq=event.seq)
