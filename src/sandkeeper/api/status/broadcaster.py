"""Updates the status cache and the live streams from the feed.

Each round of the feed reports the new events and the sandboxes that were written. A record that is
known here is read once, encoded once, put into the status cache and sent to every listener. A
stream carries two kinds of events: ``change`` (an entry of the log, with its number as id) and
``status`` (after a change, after activity, after a check). A reader that returns with
``Last-Event-ID`` gets the changes it missed, then the status.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from sandkeeper.api.status.cache import CachedStatus, StatusCache
from sandkeeper.api.status.serializers import dumps, owner_slug, render_change
from sandkeeper.api.status.sse import FLEET, StreamHub, render_block
from sandkeeper.domain.errors import StoreError
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.store import Store
from sandkeeper.store.cooperative import yielding
from sandkeeper.store.events import LoggedEvent

log = structlog.get_logger(__name__)

# Changes replayed to a returning reader. The status after them shows what was left out.
REPLAY_MAX = 500
# Statuses without an event (activity, checks) of up to this many sandboxes in one round are sent to
# streams of the whole fleet. More would flood them; they see it at their next refresh. Streams of
# one sandbox always get it.
QUIET_TO_FLEET_MAX = 50


class Broadcaster:
    """Publishes what was written to the status cache and the streams."""

    def __init__(self, *, store: Store, statuses: StatusCache, hub: StreamHub) -> None:
        self._store = store
        self._statuses = statuses
        self._hub = hub

    async def publish(self, events: Sequence[LoggedEvent], written: Sequence[str]) -> None:
        """Show one round of the feed: its events, and the status of each sandbox written."""
        try:
            await self._publish(events, written)
        except StoreError:
            raise  # The feed tries the round again.
        except Exception:
            log.exception("changes_not_shown", events=len(events), written=len(written))

    async def _publish(self, events: Sequence[LoggedEvent], written: Sequence[str]) -> None:
        reported = {event.sandbox_id for event in events}
        quiet = [one for one in written if one not in reported]
        heard = [one for one in events if self._hub.has_listeners(_topics(one.owner))]
        wanted = {event.sandbox_id for event in heard}
        tells_fleet = len(quiet) <= QUIET_TO_FLEET_MAX
        if tells_fleet and self._hub.has_listeners([FLEET]):
            wanted.update(quiet)
        changed = await self._statuses.refresh({*reported, *written}, also=wanted)
        blocks: dict[str, list[bytes]] = {}
        for event in heard:
            blocks.setdefault(event.sandbox_id, []).append(_change_block(event))
        async for entry in yielding(changed):
            sandbox = entry.sandbox
            if self._hub.has_listeners(_topics(sandbox.owner)):
                block = b"".join(blocks.pop(sandbox.id, ())) + _status_block(entry)
                to_all = tells_fleet or sandbox.id in reported
                self._hub.publish(_topics(sandbox.owner)[: 2 if to_all else 1], block)
        async for event in yielding(heard):
            if event.sandbox_id in blocks:  # It changed nothing that a status shows.
                self._hub.publish(_topics(event.owner), _change_block(event))

    async def publish_all(self) -> None:
        """Word every known status again, after what all of them depend on has changed."""
        async for entry in yielding(self._statuses.encode_all()):
            if self._hub.has_listeners(_topics(entry.sandbox.owner)):
                self._hub.publish(_topics(entry.sandbox.owner), _status_block(entry))

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
            blocks.append(_status_block(entry))
        blocks.append(render_block(event="open", data=dumps({"seq": latest}), seq=latest))
        return b"".join(blocks)


def _topics(owner: Owner) -> tuple[str, str]:
    return owner_slug(owner), FLEET


def _status_block(entry: CachedStatus) -> bytes:
    return render_block(event="status", data=entry.body)


def _change_block(event: LoggedEvent) -> bytes:
    return render_block(event="change", data=dumps(render_change(event)), seq=event.seq)
