"""The broadcaster over an SQLite file: from a written change to the streams and the cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.api.status.broadcaster import QUIET_TO_FLEET_MAX, Broadcaster
from sandkeeper.api.status.cache import StatusCache
from sandkeeper.api.status.serializers import PresentationTable
from sandkeeper.api.status.sse import FLEET, StreamHub
from sandkeeper.domain.activity import Activity, ActivityClass, Touch
from sandkeeper.domain.events import MismatchReported
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.store import Store, open_store
from sandkeeper.telemetry import Metrics
from support.eventually import eventually

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = PresentationTable(poll_running_ms=5000, poll_starting_ms=1000, poll_waking_ms=500)


def record(name: str) -> Sandbox:
    return Sandbox(
        id=f"sandbox-{name}",
        owner=Owner.project(name),
        provider="e2b",
        created_at=NOW,
        updated_at=NOW,
        state_since=NOW,
    )


class Parts:
    """A store, a cache and a hub around one broadcaster, with one reader of each topic."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.hub = StreamHub(connections_max=100, gauge=Metrics().sse_connections)
        self.statuses = StatusCache(sandboxes=store.sandboxes, words=WORDS, entries_max=100)
        self.live = Broadcaster(store=store, statuses=self.statuses, hub=self.hub)
        self.readers: list[asyncio.Task[None]] = []

    async def listen(self, topic: str) -> list[bytes]:
        """Return the list that fills with what a reader of this topic gets."""
        chunks: list[bytes] = []

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Any) -> None:
            chunks.append(message.get("body", b""))

        async def opening() -> bytes:
            return b""

        serving = self.hub.serve(receive, send, topics=[topic], opening=opening)
        self.readers.append(asyncio.create_task(serving))
        await eventually(lambda: len(chunks) > 1)
        chunks.clear()
        return chunks

    async def change(self, sandbox: Sandbox, *reasons: str) -> None:
        """Append an event for each reason and hand them to the broadcaster, as the feed does."""
        before = await self.store.events.latest_seq()
        for reason in reasons:
            event = MismatchReported(
                sandbox_id=sandbox.id,
                owner=sandbox.owner,
                at=NOW,
                actor="test",
                reason=reason,
                shown="RUNNING",
                found="PAUSED",
            )
            await self.store.sandboxes.append_events(sandbox, [event], now=NOW)
        await self.live.publish(await self.store.events.after(before, limit=100), [])


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    async with open_store(f"sqlite:///{tmp_path}/keeper.db") as store:
        made = Parts(store)
        yield made
        made.hub.close()
        await asyncio.gather(*made.readers)


async def test_a_batch_sends_each_change_and_one_status_to_the_right_topics(parts: Parts) -> None:
    sandbox = record("shop")
    await parts.store.sandboxes.insert(sandbox)
    shop, other, fleet = [await parts.listen(topic) for topic in ("shop", "other", FLEET)]
    await parts.change(sandbox, "first", "second")
    await eventually(lambda: b"event: status" in b"".join(shop))
    text = b"".join(shop)
    assert (text.count(b"event: change"), text.count(b"event: status")) == (2, 1)
    assert text.index(b"first") < text.index(b"second") < text.index(b"event: status")
    assert b"".join(fleet) == text
    assert other == []
    assert parts.statuses.peek(sandbox.owner) is not None


async def test_a_failed_batch_does_not_stop_the_next_one(parts: Parts) -> None:
    sandbox = record("shop")
    await parts.store.sandboxes.insert(sandbox)
    shop = await parts.listen("shop")
    await parts.live.publish([None], [])  # type: ignore[list-item]  # Any failure.
    await parts.change(sandbox, "after")
    await eventually(lambda: b"after" in b"".join(shop))


async def test_a_returning_reader_gets_missed_changes_before_the_status(parts: Parts) -> None:
    sandbox = record("shop")
    await parts.store.sandboxes.insert(sandbox)
    seen = await parts.store.events.latest_seq()
    await parts.change(sandbox, "first", "second")
    text = await parts.live.initial_sandbox_events(sandbox, after=seen)
    assert text.index(b"first") < text.index(b"second") < text.index(b"event: status")
    assert b"event: change" not in await parts.live.initial_sandbox_events(sandbox, after=None)


@pytest.mark.parametrize(
    ("count", "is_sent"),
    [(1, True), (QUIET_TO_FLEET_MAX, True), (QUIET_TO_FLEET_MAX + 1, False)],
)
async def test_activity_of_many_at_once_is_not_sent_to_the_fleet(
    parts: Parts, count: int, is_sent: bool
) -> None:
    sandbox = record("shop")
    await parts.store.sandboxes.insert(sandbox)
    parts.statuses.put(sandbox)
    shop, fleet = [await parts.listen(topic) for topic in ("shop", FLEET)]
    active = Activity(at=NOW + timedelta(seconds=5), kind=ActivityClass.INTENT, source="test")
    await parts.store.sandboxes.touch([Touch(sandbox.id, active=active, passive=None)])
    others = [f"unknown-{number}" for number in range(count - 1)]
    await parts.live.publish([], [sandbox.id, *others])
    await eventually(lambda: b"event: status" in b"".join(shop))
    assert (b"event: status" in b"".join(fleet)) is is_sent
