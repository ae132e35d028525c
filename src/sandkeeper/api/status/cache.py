"""Status answers, encoded once and served from memory.

An entry is filled from the database, kept coherent by the feed, and read again in the background
when it is some seconds old, so that a lost notice or another replica's activity shows too. A read
never waits for the provider, and waits for the database only the first time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Protocol

import structlog

from sandkeeper.api.status.serializers import PresentationTable, dumps, render_status
from sandkeeper.domain.activity import ActivityClass, Touch
from sandkeeper.domain.decisions.adaptive_timeout import add_gap
from sandkeeper.domain.errors import StoreError
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.store.cooperative import yielding

log = structlog.get_logger(__name__)

# Age at which a read has its entry loaded again in the background. Higher shows another replica's
# activity later; lower asks the database more often for what the feed has told already.
REFRESH_AFTER_S = 10.0
# Age at which a read waits for the database instead. Verification leaves no event, so an entry that
# nobody asked for would say that it was verified long ago.
RELOAD_AFTER_S = 60.0
# Entries that are loaded again with one query, and how long others of the same age are waited for.
# A query costs as much as ten entries: a thousand of the same age, taken as they are asked for,
# would cost half of a second's work. Longer shows them later, more hold a connection for longer.
REFRESH_BATCH = 50
GATHER_S = 0.1


@dataclass(frozen=True, slots=True)
class CachedStatus:
    """One answer as it goes over the wire."""

    sandbox: Sandbox
    body: bytes
    etag: bytes
    headers: list[tuple[bytes, bytes]]
    loaded: float


class SandboxReader(Protocol):
    """What this cache asks of the store."""

    async def find_by_owner(self, owner: Owner) -> Sandbox | None: ...

    async def list_by_owner(self, owners: Sequence[Owner]) -> Sequence[Sandbox]: ...


class StatusCache:
    """The cache. It is bounded: the entry not read for longest goes first."""

    def __init__(
        self,
        *,
        sandboxes: SandboxReader,
        words: PresentationTable,
        entries_max: int,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._sandboxes = sandboxes
        self._words = words
        self._entries_max = entries_max
        self._clock = clock
        self._entries: OrderedDict[Owner, CachedStatus] = OrderedDict()
        self._owners: dict[str, Owner] = {}
        self._loading: dict[Owner, asyncio.Task[CachedStatus | None]] = {}
        self._old: dict[Owner, None] = {}
        self._refreshing: asyncio.Task[None] | None = None

    def find(self, owner: Owner) -> CachedStatus | None:
        """The entry in memory, if there is one; an old one is read again behind the answer."""
        entry = self._entries.get(owner)
        if entry is None:
            return None
        self._entries.move_to_end(owner)
        if time.monotonic() - entry.loaded > REFRESH_AFTER_S:
            self._refresh(owner)
        return entry

    async def get(self, owner: Owner) -> CachedStatus | None:
        """The entry, loaded if need be; many callers at once cause one read.

        One that nobody read for long is loaded too, unless the database is away.
        """
        entry = self.find(owner)
        if entry is None:
            return await self.load(owner)
        if time.monotonic() - entry.loaded > RELOAD_AFTER_S:
            with contextlib.suppress(StoreError):
                return await self.load(owner)
        return entry

    async def load(self, owner: Owner) -> CachedStatus | None:
        """The entry as the database has it now."""
        task = self._loading.get(owner) or self._start(owner)
        return await asyncio.shield(task)

    def put(self, sandbox: Sandbox) -> CachedStatus:
        """Take in a record; an older one than is known changes nothing."""
        known = self._entries.get(sandbox.owner)
        if known is not None and _is_older(sandbox, known.sandbox):
            return known
        entry = self._encode(sandbox)
        before = self._owners.get(sandbox.id)
        if before is not None and before != sandbox.owner:
            self._entries.pop(before, None)
        self._entries[sandbox.owner] = entry
        self._entries.move_to_end(sandbox.owner)
        self._owners[sandbox.id] = sandbox.owner
        while len(self._entries) > self._entries_max:
            _, oldest = self._entries.popitem(last=False)
            self._owners.pop(oldest.sandbox.id, None)
        return entry

    def touch(self, touch: Touch) -> CachedStatus | None:
        """Show an act that was just written; None if nobody has asked for this sandbox.

        Looks are not shown here: a thousand polls a second would have a thousand answers encoded
        for nobody. An entry shows them when it is read again.
        """
        owner = self._owners.get(touch.sandbox_id)
        known = self._entries.get(owner) if owner is not None else None
        active = touch.active
        if owner is None or known is None or active is None:
            return None
        sandbox = known.sandbox
        seen_at = sandbox.activity.last_active_at
        if seen_at is not None and active.at <= seen_at:
            return known
        gaps = sandbox.activity.gaps
        if seen_at is not None and active.kind is ActivityClass.INTENT:
            gaps = add_gap(gaps, (active.at - seen_at).total_seconds())
        sandbox = sandbox.evolve(
            gaps=gaps,
            last_active_at=active.at,
            last_active_class=active.kind,
            last_active_source=active.source,
        )
        # It is as old as it was: nothing but the act is news.
        entry = replace(self._encode(sandbox), loaded=known.loaded)
        self._entries[owner] = entry
        return entry

    def _start(self, owner: Owner) -> asyncio.Task[CachedStatus | None]:
        task = asyncio.get_running_loop().create_task(self._read(owner))
        self._loading[owner] = task
        task.add_done_callback(lambda done: self._finish(owner, done))
        return task

    def _finish(self, owner: Owner, done: asyncio.Task[CachedStatus | None]) -> None:
        self._loading.pop(owner, None)
        if not done.cancelled() and done.exception() is not None:
            log.warning("status_not_refreshed", owner=str(owner), error=str(done.exception()))

    async def _read(self, owner: Owner) -> CachedStatus | None:
        return self._store(owner, await self._sandboxes.find_by_owner(owner))

    def _refresh(self, owner: Owner) -> None:
        """Have an entry loaded again soon, together with others that are as old."""
        self._old[owner] = None
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_all())

    async def _refresh_all(self) -> None:
        try:
            while self._old:
                if len(self._old) < REFRESH_BATCH:
                    await asyncio.sleep(GATHER_S)
                owners = list(islice(self._old, REFRESH_BATCH))
                found = {one.owner: one for one in await self._sandboxes.list_by_owner(owners)}
                async for owner in yielding(owners):
                    # It leaves the list only now: reads that came meanwhile asked for nothing more.
                    self._old.pop(owner, None)
                    self._store(owner, found.get(owner))
        except Exception as error:  # noqa: BLE001 - The next read of each asks again.
            log.warning("status_not_refreshed", entries=len(self._old), error=str(error))
            self._old.clear()
        finally:
            self._refreshing = None

    def _store(self, owner: Owner, sandbox: Sandbox | None) -> CachedStatus | None:
        """Take in what the database has for an owner, which may be nothing any more."""
        if sandbox is not None:
            return self.put(sandbox)
        gone = self._entries.pop(owner, None)
        if gone is not None:
            self._owners.pop(gone.sandbox.id, None)
        return None

    def _encode(self, sandbox: Sandbox) -> CachedStatus:
        body = dumps(render_status(sandbox, words=self._words, now=self._clock()))
        etag = render_etag(sandbox)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"etag", etag),
            (b"cache-control", b"no-cache, private"),
        ]
        return CachedStatus(sandbox, body, etag, headers, time.monotonic())


def render_etag(sandbox: Sandbox) -> bytes:
    """`"v<version>"`; activity counts no version, so what came after it adds its own part."""
    active_at = sandbox.activity.last_active_at
    if active_at is None or active_at <= sandbox.updated_at:
        return b'"v%d"' % sandbox.version
    return b'"v%d-%x"' % (sandbox.version, int(active_at.timestamp() * 1000))


def _is_older(new: Sandbox, known: Sandbox) -> bool:
    if new.version != known.version:
        return new.version < known.version and new.id == known.id
    active, seen = new.activity.last_active_at, known.activity.last_active_at
    return seen is not None and (active is None or active < seen)
