"""After a crash: free what the dead process held, at once, and finish what it began.

A starting keeper that is alone on its SQLite file frees everything. Replicas watch each other's
heartbeats. What becomes free is due at once: the sweep finishes creations and pauses, the wake
driver continues wakes and rebuilds, and the provider is asked about each sandbox, because the dead
process may have acted and not recorded it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import timedelta

import structlog

from sandkeeper.domain.clock import SKEW_MAX
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.services.activity.feed import Feed, Signal
from sandkeeper.services.activity.lost_activity import LostActivity
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.claims import Claims
from sandkeeper.services.lifecycle.heartbeat import BEAT_PERIOD_S, EXPIRES_S, Heartbeat
from sandkeeper.services.lifecycle.verification import Verification
from sandkeeper.store.replicas.repository import LastBeat

log = structlog.get_logger(__name__)

# An expired heartbeat counts only if it did not change for this long while we watched: when the
# database was away, no heartbeat was written.
WATCH_S = 2 * BEAT_PERIOD_S

# Sandboxes that the provider is asked about at the same time.
CONCURRENCY = 10


class CrashRecovery:
    """Watch the other replicas of this keeper."""

    def __init__(
        self,
        deps: Deps,
        heartbeat: Heartbeat,
        claims: Claims,
        verification: Verification,
        feed: Feed,
        lost_activity: LostActivity,
    ) -> None:
        self._lost_activity = lost_activity
        self._store = deps.store
        self._replica = deps.replica
        self._clock = deps.clock
        self._heartbeat = heartbeat
        self._claims = claims
        self._verification = verification
        self._feed = feed
        self._lock = deps.store.replicas.make_lock()
        self._watched_at = 0.0
        self._watched: dict[str, tuple[LastBeat, float]] = {}
        self._to_verify: list[str] = []
        self.next_expiry_s: float | None = None
        """How long after the last pass the next heartbeat expires, if none is given until then."""

    async def start(self) -> None:
        """Give the first sign of life; if no other keeper uses this database, free everything."""
        if self._lock.acquire_alone():
            for seen in (await self._store.replicas.list()).values():
                await self._note_death(seen)
            self._take_over(await self._store.replicas.remove_all(now=self._clock()), "all")
        await asyncio.to_thread(self._lock.share)
        await self._heartbeat.start()

    async def stop(self) -> None:
        """Free what this process still holds."""
        await self._heartbeat.stop()
        with contextlib.suppress(SandkeeperError):
            await self._store.replicas.remove(self._replica, None, now=self._clock())
        self._lock.close()

    async def run(self) -> Mapping[str, int]:
        """Run one pass: repeat failed releases, free what dead replicas held, and verify it."""
        released = await self._claims.release_again()
        self._take_over(released, self._replica)
        dead = await self._find_dead()
        for replica, seen in dead.items():
            await self._note_death(seen)
            freed = await self._store.replicas.remove(replica, seen, now=self._clock())
            self._watched.pop(replica, None)
            log.warning("replica_dead", replica=replica, last_beat_at=str(seen.beat_at))
            self._take_over(freed, replica)
        if released or dead:
            self._feed.send(Signal.WORK_FREED)
        waiting, self._to_verify = self._to_verify, []
        await self._verify_all(waiting)
        return {"released": len(released), "dead": len(dead), "verified": len(waiting)}

    async def _find_dead(self) -> dict[str, LastBeat]:
        """Return the replicas whose heartbeat has expired and did not change while we watched."""
        found = await self._store.replicas.list()
        now = asyncio.get_running_loop().time()
        if now - self._watched_at > WATCH_S:
            self._watched = {}  # The database or this process stood still.
        self._watched_at = now
        watched: dict[str, tuple[LastBeat, float]] = {}
        for replica, seen in found.items():
            before, since = self._watched.get(replica, (None, now))
            watched[replica] = (seen, since if before == seen else now)
        watched.pop(self._replica, None)
        self._watched = watched
        left_s = {
            replica: max(self._compute_left_s(seen, now - since), since + WATCH_S - now)
            for replica, (seen, since) in watched.items()
        }
        waiting_s = [one for one in left_s.values() if one > 0]
        self.next_expiry_s = min(waiting_s, default=None)
        return {replica: found[replica] for replica, one in left_s.items() if one <= 0}

    def _compute_left_s(self, seen: LastBeat, watched_s: float) -> float:
        """Return when a heartbeat expires. One from the future counts from when we first saw it."""
        age_s = (self._clock() - seen.beat_at).total_seconds()
        return EXPIRES_S - (age_s if age_s > -SKEW_MAX.total_seconds() else watched_s)

    async def _note_death(self, seen: LastBeat) -> None:
        """Note the death before the replica is forgotten: it may have had unwritten activity."""
        latest = seen.beat_at + timedelta(seconds=EXPIRES_S)
        await self._lost_activity.note(min(latest, self._clock()))

    def _take_over(self, freed: Sequence[str], replica: str) -> None:
        if freed:
            log.warning("claims_freed", replica=replica, sandboxes=len(freed))
            self._to_verify += freed

    async def _verify_all(self, sandbox_ids: list[str]) -> None:
        places = asyncio.Semaphore(CONCURRENCY)

        async def verify(sandbox_id: str) -> None:
            async with places:
                # A failure leaves it to the reconciler; the verification logs it.
                with contextlib.suppress(SandkeeperError):
                    await self._verification.verify(sandbox_id)

        await asyncio.gather(*(verify(one) for one in sandbox_ids))
