"""Status answers, encoded once and served from memory.

An entry is loaded from the database, updated by the feed, and reloaded in the background when it is
some seconds old, so that it also shows a lost notice or another replica's activity. A read never
waits for the provider, and for the database only if there is no entry or a very old one.

`peek` reads memory only, `get` reads memory or else the database, `reload` reads the database.
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

# Age at which a read reloads its entry in the background. Higher shows another replica's activity
# later; lower queries the database more often for what the feed has reported already.
REFRESH_AFTER_S = 10.0
# Age at which a read waits for the database instead. Verification leaves no event, so an entry that
# was not read for long would show an outdated time of verification.
RELOAD_AFTER_S = 60.0
# Entries reloaded with one query, and how long a query waits for more of them. A query costs as
# much as ten entries: a thousand of the same age, each with its own query, would cost half a second
# of CPU. A longer wait shows them later; a larger batch holds a connection for longer.
REFRESH_BATCH = 50
REFRESH_DELAY_S = 0.1


@dataclass(frozen=True, slots=True)
class CachedStatus:
    """One encoded status with its response headers."""

    sandbox: Sandbox
    body: bytes
    etag: bytes
    headers: list[tuple[bytes, bytes]]
    loaded_at: float


class SandboxReader(Protocol):
    """The queries of the store that the cache needs."""

    async def find_by_owner(self, owner: Owner) -> Sandbox | None: ...

    async def list_by_owner(self, owners: Sequence[Owner]) -> Sequence[Sandbox]: ...


class StatusCache:
    """Encoded statuses by owner; beyond `entries_max` the least recently read is evicted."""

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
        self._reloads: dict[Owner, asyncio.Task[CachedStatus | None]] = {}
        self._stale: dict[Owner, None] = {}
        self._refresh_task: asyncio.Task[None] | None = None

    def peek(self, owner: Owner) -> CachedStatus | None:
        """Return the entry in memory, if there is one; reload an old one in the background."""
        entry = self._entries.get(owner)
        if entry is None:
            return None
        self._entries.move_to_end(owner)
        if time.monotonic() - entry.loaded_at > REFRESH_AFTER_S:
            self._refresh(owner)
        return entry

    async def get(self, owner: Owner) -> CachedStatus | None:
        """Return the entry from memory, or from the database if it is missing or very old.

        If the database is unavailable, a very old entry is returned as it is.
        """
        entry = self.peek(owner)
        if entry is None:
            return await self.reload(owner)
        if time.monotonic() - entry.loaded_at > RELOAD_AFTER_S:
            with contextlib.suppress(StoreError):
                return await self.reload(owner)
        return entry

    async def reload(self, owner: Owner) -> CachedStatus | None:
        """Read the entry from the database; concurrent callers share one query."""
        task = self._reloads.get(owner) or self._start(owner)
        return await asyncio.shield(task)

    def put(self, sandbox: Sandbox) -> CachedStatus:
        """Store a record and return its entry; a record older than the known one is ignored."""
        known = self._entries.get(sandbox.owner)
        if known is not None:
            if _is_older(sandbox, known.sandbox):
                return known
            sandbox = _with_newest_activity(sandbox, known.sandbox)
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
        """Show activity that was just written; return None if the sandbox is not in the cache.

        Passive reads are not shown here: a thousand polls a second would encode a thousand answers
        that are not read. An entry shows them when it is reloaded.
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
        # Only the activity is new, so the entry keeps its age.
        entry = replace(self._encode(sandbox), loaded_at=known.loaded_at)
        self._entries[owner] = entry
        return entry

    def _start(self, owner: Owner) -> asyncio.Task[CachedStatus | None]:
        task = asyncio.get_running_loop().create_task(self._read(owner))
        self._reloads[owner] = task
        task.add_done_callback(lambda done: self._finish(owner, done))
        return task

    def _finish(self, owner: Owner, done: asyncio.Task[CachedStatus | None]) -> None:
        self._reloads.pop(owner, None)
        if not done.cancelled() and done.exception() is not None:
            log.warning("status_not_refreshed", owner=str(owner), error=str(done.exception()))

    async def _read(self, owner: Owner) -> CachedStatus | None:
        return self._store(owner, await self._sandboxes.find_by_owner(owner))

    def _refresh(self, owner: Owner) -> None:
        """Reload an entry soon, together with others that are as old."""
        self._stale[owner] = None
        if self._refresh_task is None:
            self._refresh_task = asyncio.get_running_loop().create_task(self._refresh_all())

    async def _refresh_all(self) -> None:
        try:
            while self._stale:
                if len(self._stale) < REFRESH_BATCH:
                    await asyncio.sleep(REFRESH_DELAY_S)
                owners = list(islice(self._stale, REFRESH_BATCH))
                found = {one.owner: one for one in await self._sandboxes.list_by_owner(owners)}
                async for owner in yielding(owners):
                    # It leaves the list only now, so that reads during the query add no second one.
                    self._stale.pop(owner, None)
                    self._store(owner, found.get(owner))
        except Exception as error:  # noqa: BLE001 - The next read of each retries.
            log.warning("status_not_refreshed", entries=len(self._stale), error=str(error))
            self._stale.clear()
        finally:
            self._refresh_task = None

    def _store(self, owner: Owner, sandbox: Sandbox | None) -> CachedStatus | None:
        """Apply what the database has for an owner; without a record the entry is removed."""
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
    """Return `"v<version>"`, with the time of activity that came after this version."""
    active_at = sandbox.activity.last_active_at
    if active_at is None or active_at <= sandbox.updated_at:
        return b'"v%d"' % sandbox.version
    return b'"v%d-%x"' % (sandbox.version, int(active_at.timestamp() * 1000))


def _with_newest_activity(new: Sandbox, known: Sandbox) -> Sandbox:
    """Keep an act that is shown already: a newer version may have been read before it was written.

    Activity counts no version, so the two are ordered by their own times.
    """
    active, seen = new.activity.last_active_at, known.activity.last_active_at
    if new.id != known.id or seen is None or (active is not None and active >= seen):
        return new
    return new.evolve(
        gaps=known.activity.gaps,
        last_active_at=seen,
        last_active_class=known.activity.last_active_class,
        last_active_source=known.activity.last_active_source,
    )


def _is_older(new: Sandbox, known: Sandbox) -> bool:
    if new.version != known.version:
        return new.version < known.version and new.id == known.id
    active, seen = new.activity.last_active_at, known.activity.last_active_at
    return seen is not None and (active is None or active < seen)
