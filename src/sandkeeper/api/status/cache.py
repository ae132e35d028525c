"""Status answers, encoded once and served from memory.

An entry is loaded from the database when it is first read, and loaded again whenever the feed
reports that its sandbox was written, by any replica and for any cause. A read waits neither for the
provider nor, once there is an entry, for the database.

`peek` reads memory only, `get` reads memory or else the database.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

import structlog

from sandkeeper.api.status.serializers import PresentationTable, dumps, render_status
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.store.cooperative import yielding
from sandkeeper.store.sandboxes.query import ListedRow, RowPage, SandboxQuery

log = structlog.get_logger(__name__)

# Records read with one query. More hold a connection for longer, fewer cost more queries.
READ_TOGETHER: Final = 100


@dataclass(frozen=True, slots=True)
class CachedStatus:
    """One encoded status with its response headers."""

    sandbox: Sandbox
    body: bytes
    etag: bytes
    headers: list[tuple[bytes, bytes]]
    encode_again_at: float | None
    """When the words change by time alone: a wake's claim ends."""
    down_since: datetime | None
    """Since when the provider does not answer, as the words say it."""


class SandboxReader(Protocol):
    """The queries of the store that the cache needs."""

    async def find_by_owner(self, owner: Owner) -> Sandbox | None: ...

    async def list_by_id(self, sandbox_ids: Sequence[str]) -> Sequence[Sandbox]: ...

    async def list_rows(self, query: SandboxQuery, cursor: str | None = None) -> RowPage: ...


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
        self._loads: dict[Owner, asyncio.Task[CachedStatus | None]] = {}
        self._written_during_load: dict[object, set[str]] = {}
        self._put_since_refresh: set[str] = set()

    def peek(self, owner: Owner) -> CachedStatus | None:
        """Return the entry in memory, if there is one."""
        entry = self._entries.get(owner)
        if entry is None:
            return None
        self._entries.move_to_end(owner)
        if entry.encode_again_at is not None and time.monotonic() > entry.encode_again_at:
            entry = self._entries[owner] = self._encode(entry.sandbox)
        return entry

    async def get(self, owner: Owner) -> CachedStatus | None:
        """Return the entry from memory, or else from the database; callers share one query."""
        entry = self.peek(owner)
        if entry is not None:
            return entry
        return await asyncio.shield(self._loads.get(owner) or self._start(owner))

    async def read_page(
        self, query: SandboxQuery, cursor: str | None
    ) -> tuple[list[CachedStatus], str | None]:
        """Return one page of a list, and the cursor of the next.

        The database chooses and orders; an entry that is as new as its row comes from memory. So a
        list never shows what the status of the same moment does not.
        """
        page = await self._sandboxes.list_rows(query, cursor)
        missing = [row.id for row in page.rows if not self._is_current(row)]
        for start in range(0, len(missing), READ_TOGETHER):
            await self._load_many(missing[start : start + READ_TOGETHER])
        found = (self.peek(row.owner) for row in page.rows)
        return [entry for entry in found if entry is not None], page.next_cursor

    def put(self, sandbox: Sandbox) -> CachedStatus:
        """Store a record and return its entry; a record older than the known one is ignored."""
        self._put_since_refresh.add(sandbox.id)
        return self._put(sandbox)

    async def refresh(
        self, written: Collection[str], *, also: Collection[str] = ()
    ) -> list[CachedStatus]:
        """Load the sandboxes that were written, if they are known here; return what changed.

        `written` must name everything that was written, so that a load that is under way and may
        have read the state before is repeated. Those in `also` are loaded even if not known.
        """
        for seen in self._written_during_load.values():
            seen.update(written)
        put, self._put_since_refresh = self._put_since_refresh, set()
        ids = [one for one in written if one in self._owners or one in also]
        changed: list[CachedStatus] = []
        for start in range(0, len(ids), READ_TOGETHER):
            some = ids[start : start + READ_TOGETHER]
            found = {one.id: one for one in await self._sandboxes.list_by_id(some)}
            async for sandbox_id in yielding(some):
                sandbox = found.get(sandbox_id)
                if sandbox is None:
                    self._remove(sandbox_id)
                    continue
                shown = self._entries.get(sandbox.owner)
                entry = self._put(sandbox)
                if entry is not shown or sandbox_id in put or sandbox_id in also:
                    changed.append(entry)
        return changed

    def encode_all(self) -> Iterator[CachedStatus]:
        """Encode every entry again and return them one by one."""
        for owner, entry in list(self._entries.items()):
            # It may have been replaced or evicted between two of them.
            if self._entries.get(owner) is entry:
                self._entries[owner] = again = self._encode(entry.sandbox)
                yield again

    def _put(self, sandbox: Sandbox) -> CachedStatus:
        known = self._entries.get(sandbox.owner)
        if known is not None and (sandbox == known.sandbox or _is_older(sandbox, known.sandbox)):
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

    def _start(self, owner: Owner) -> asyncio.Task[CachedStatus | None]:
        task = asyncio.get_running_loop().create_task(self._load(owner))
        self._loads[owner] = task
        task.add_done_callback(lambda done: self._finish(owner, done))
        return task

    def _finish(self, owner: Owner, done: asyncio.Task[CachedStatus | None]) -> None:
        self._loads.pop(owner, None)
        self._written_during_load.pop(owner, None)
        if not done.cancelled() and done.exception() is not None:
            log.warning("status_not_loaded", owner=str(owner), error=str(done.exception()))

    async def _load(self, owner: Owner) -> CachedStatus | None:
        while True:
            written = self._written_during_load[owner] = set()
            sandbox = await self._sandboxes.find_by_owner(owner)
            if sandbox is None:
                return None
            if sandbox.id not in written:
                return self.put(sandbox)

    async def _load_many(self, ids: Sequence[str]) -> None:
        """Load these; load again what was written at the same time, as `_load` does."""
        load = object()
        try:
            while ids:
                written = self._written_during_load[load] = set()
                found = await self._sandboxes.list_by_id(ids)
                async for sandbox in yielding(found):
                    if sandbox.id not in written:
                        self.put(sandbox)
                ids = [one.id for one in found if one.id in written]
        finally:
            self._written_during_load.pop(load, None)

    def _is_current(self, row: ListedRow) -> bool:
        """Return whether the entry in memory shows this row, or a newer one."""
        entry = self._entries.get(row.owner)
        if entry is None or entry.sandbox.id != row.id:
            return False
        if entry.down_since != self._words.find_down_since(entry.sandbox):
            self._entries[row.owner] = self._encode(entry.sandbox)
        known = entry.sandbox
        if known.version != row.version:
            return known.version > row.version
        return (
            known.activity.last_active_at == row.last_active_at
            and known.sightings.last_verified_at == row.last_verified_at
            and known.sightings.observed_at == row.observed_at
        )

    def _remove(self, sandbox_id: str) -> None:
        owner = self._owners.pop(sandbox_id, None)
        entry = self._entries.get(owner) if owner is not None else None
        if owner is not None and entry is not None and entry.sandbox.id == sandbox_id:
            del self._entries[owner]

    def _encode(self, sandbox: Sandbox) -> CachedStatus:
        now = self._clock()
        body = dumps(render_status(sandbox, words=self._words, now=now))
        down_since = self._words.find_down_since(sandbox)
        etag = render_etag(sandbox, down_since=down_since)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"etag", etag),
            (b"cache-control", b"no-cache, private"),
        ]
        again_at = None
        if sandbox.claim is not None and sandbox.is_waking(now):
            again_at = time.monotonic() + (sandbox.claim.until - now).total_seconds()
        return CachedStatus(sandbox, body, etag, headers, again_at, down_since)


def render_etag(sandbox: Sandbox, *, down_since: datetime | None = None) -> bytes:
    """Return the version, and the time of what came after it and has no version of its own."""
    newest = max(
        sandbox.as_of,
        sandbox.activity.last_active_at or sandbox.as_of,
        down_since or sandbox.as_of,
    )
    if newest <= sandbox.updated_at:
        return b'"v%d"' % sandbox.version
    return b'"v%d-%x"' % (sandbox.version, int(newest.timestamp() * 1000))


def _is_older(new: Sandbox, known: Sandbox) -> bool:
    """Return True for a record that was read before the known one.

    Both were read from one row. Within a version, activity and confirmations only move forward.
    """
    if new.id != known.id:
        return False
    if new.version != known.version:
        return new.version < known.version
    return any(mine < theirs for mine, theirs in zip(_times(new), _times(known), strict=True))


def _times(sandbox: Sandbox) -> tuple[float, float, int]:
    active_at = sandbox.activity.last_active_at
    return (
        active_at.timestamp() if active_at is not None else 0.0,
        sandbox.as_of.timestamp(),
        sandbox.activity.passive_count,
    )
