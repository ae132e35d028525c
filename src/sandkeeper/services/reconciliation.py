"""Compares all that the provider has with all that we have written down, and corrects us.

The provider is the truth and the database a cache. One pass lists the provider's instances, then
walks the live records page by page. A record whose instance is in the list takes over what the list
says; one whose instance is missing there is looked at alone, because only the provider's own "there
is no such sandbox" ends a record. An instance that carries our mark and is in no record is adopted
if its creation was never acknowledged, and is otherwise a leak. Rows that somebody holds are left
alone: the holder knows more. Every correction goes through `observations.record`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import structlog

from sandkeeper.domain.errors import (
    InstanceGoneError,
    ProviderError,
    ProviderUnsupportedError,
)
from sandkeeper.domain.observation import Observation, Seen, Source
from sandkeeper.domain.sandbox import KilledReason
from sandkeeper.domain.transitions import Change, absorb
from sandkeeper.providers.base import EventKind
from sandkeeper.services.observations import Outcome, observe_event, observe_instance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from sandkeeper.domain.sandbox import Sandbox
    from sandkeeper.providers.base import Instance, Provider
    from sandkeeper.services.leaks import Leaks
    from sandkeeper.services.observations import Observations
    from sandkeeper.services.regions import Regions
    from sandkeeper.store import Store
    from sandkeeper.telemetry import Metrics

log = structlog.get_logger(__name__)

LIST_PAGES_MAX: Final = 2000
"""Pages of a hundred that are listed at most. A fleet beyond that is not compared to the end, and
the report says so; nothing is concluded from an instance's absence then."""

RECORDS_PAGE: Final = 200
"""Records that are read at once: more would hold up requests while they are compared, fewer would
cost more questions to the database."""

CONFIRM_AFTER: Final = timedelta(seconds=120)
"""A record that agrees is marked as verified when its knowledge is this old. Shorter writes the
whole fleet on each pass, longer than the age that counts as stale would make it look forgotten."""

LOOKS_MAX: Final = 500
"""Missing instances that are looked at in one pass: more would use up the provider's limit, fewer
would let a great loss be noticed late. The rest is looked at in the next pass."""

LOOKS_AT_ONCE: Final = 8
FOREIGN_KEPT_MAX: Final = 100
"""Foreign instances that are written down in one pass; all of them are counted."""

NEWBORN: Final = timedelta(seconds=60)
"""A younger unknown instance is not yet a leak: its record may be about to be written."""

END_TOLERANCE: Final = timedelta(seconds=2)
"""Two ends closer than this are one: ours is reckoned from the request, the provider's is exact."""


@dataclass(frozen=True, slots=True)
class Correction:
    """One difference: what we said, what the provider says."""

    kind: str
    instance_id: str
    sandbox_id: str | None
    ours: str
    theirs: str


@dataclass(slots=True)
class Reconciled:
    """What one pass over one region found and did."""

    region: str
    complete: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    corrections: list[Correction] = field(default_factory=list)

    def note(self, kind: str, instance_id: str, sandbox: Sandbox | None, theirs: str) -> None:
        """Count a difference and keep its words."""
        self.counts[kind] += 1
        ours = "no record" if sandbox is None else sandbox.state.value
        sandbox_id = None if sandbox is None else sandbox.id
        self.corrections.append(Correction(kind, instance_id, sandbox_id, ours, theirs))
        log.info("drift", kind=kind, instance_id=instance_id, sandbox_id=sandbox_id, theirs=theirs)


class Reconciliation:
    """Runs passes. Any number of replicas may do so at once: each finds the other's work done."""

    def __init__(
        self,
        *,
        store: Store,
        regions: Regions,
        observations: Observations,
        leaks: Leaks,
        metrics: Metrics,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._regions = regions
        self._observations = observations
        self._leaks = leaks
        self._metrics = metrics
        self._clock = clock

    async def run(self, *, dry_run: bool = False) -> list[Reconciled]:
        """One pass over every region. A region that fails does not keep another from being done.

        With `dry_run` differences are reported and nothing is written or removed.
        """
        reports: list[Reconciled] = []
        failures: list[Exception] = []
        for provider in self._regions:
            try:
                reports.append(await self._reconcile(provider, dry_run=dry_run))
            except ProviderError as error:
                log.warning("reconcile_failed", region=provider.region, error=str(error))
                failures.append(error)
        if failures:
            raise failures[0]
        return reports

    async def _reconcile(self, provider: Provider, *, dry_run: bool) -> Reconciled:
        report = Reconciled(provider.region)
        asked_at = self._clock()
        listed = await self._list(provider, report)
        known: set[str] = set()
        missing: list[Sandbox] = []
        after_id = ""
        while True:
            page = await self._store.sandboxes.list_live(
                provider=provider.name, after_id=after_id, limit=RECORDS_PAGE
            )
            here = [one for one in page if self._regions.find(one) is provider]
            known.update(one.instance_id for one in here if one.instance_id is not None)
            missing += await self._compare(here, listed, asked_at, report, dry_run=dry_run)
            if len(page) < RECORDS_PAGE:
                break
            after_id = page[-1].id
        if report.complete:
            await self._look_for(provider, missing, report, dry_run=dry_run)
        unknown = [one for instance_id, one in listed.items() if instance_id not in known]
        await self._sort_out(provider, unknown, report, dry_run=dry_run)
        for kind, count in report.counts.items():
            if kind in DRIFTS and not dry_run:
                self._metrics.drift.labels(kind).inc(count)
        return report

    async def _list(self, provider: Provider, report: Reconciled) -> dict[str, Instance]:
        listed: dict[str, Instance] = {}
        cursor: str | None = None
        for _ in range(LIST_PAGES_MAX):
            page = await provider.list_instances(cursor=cursor, foreign=True)
            listed.update((one.instance_id, one) for one in page.instances)
            cursor = page.next_cursor
            if cursor is None:
                break
        else:
            report.complete = False
            log.warning("reconcile_list_not_read_to_the_end", region=provider.region)
        report.counts["listed"] = len(listed)
        return listed

    async def _compare(
        self,
        records: list[Sandbox],
        listed: Mapping[str, Instance],
        asked_at: datetime,
        report: Reconciled,
        *,
        dry_run: bool,
    ) -> list[Sandbox]:
        """Hold one page of records against the list; gives those whose instance is not in it."""
        missing: list[Sandbox] = []
        confirmed: list[str] = []
        now = self._clock()
        for sandbox in records:
            report.counts["records"] += 1
            if sandbox.claim is not None and not sandbox.is_claimed(now):
                report.counts["stuck_claims"] += 1
            if sandbox.instance_id is None or sandbox.is_claimed(now):
                continue
            instance = listed.get(sandbox.instance_id)
            if instance is None:
                missing.append(sandbox)
                continue
            seen = _observe(sandbox, instance)
            if _agrees(sandbox, seen) or not isinstance(absorb(sandbox, seen), Change):
                report.counts["confirmed"] += 1
                if asked_at - sandbox.as_of >= CONFIRM_AFTER:
                    confirmed.append(sandbox.id)
                continue
            if seen.state is not sandbox.state:
                report.note("state", instance.instance_id, sandbox, seen.seen.value)
            if not dry_run:
                await self._observations.record(seen)
        if not dry_run:
            await self._store.sandboxes.confirm(confirmed, at=asked_at)
        return missing

    async def _look_for(
        self, provider: Provider, missing: list[Sandbox], report: Reconciled, *, dry_run: bool
    ) -> None:
        """Look at each missing instance alone, and believe only the provider's own word."""
        slots = asyncio.Semaphore(LOOKS_AT_ONCE)

        async def look(sandbox: Sandbox) -> None:
            async with slots:
                await self._look(provider, sandbox, report, dry_run=dry_run)

        await asyncio.gather(*(look(sandbox) for sandbox in missing[:LOOKS_MAX]))

    async def _look(
        self, provider: Provider, sandbox: Sandbox, report: Reconciled, *, dry_run: bool
    ) -> None:
        instance_id = sandbox.instance_id
        assert instance_id is not None
        asked_at = self._clock()
        try:
            instance = await provider.look(instance_id, port=sandbox.launch.port)
        except InstanceGoneError:
            report.note("orphaned", instance_id, sandbox, "gone")
            if not dry_run:
                await self._end(provider, sandbox, instance_id, asked_at)
        except ProviderError as error:
            report.counts["failed"] += 1
            log.warning("look_failed", instance_id=instance_id, error=str(error))
        else:
            seen = observe_instance(instance, source=Source.LOOK)
            if not dry_run:
                await self._observations.record(seen)

    async def _end(
        self, provider: Provider, sandbox: Sandbox, instance_id: str, asked_at: datetime
    ) -> None:
        """Record that an instance is gone, with the provider's reason if its log still has one."""
        since = (sandbox.run_started_at or sandbox.created_at) - NEWBORN
        try:
            events = await provider.list_events(since=since, instance_id=instance_id, pages_max=1)
        except (ProviderUnsupportedError, ProviderError):
            events = ()
        for event in events:
            if event.kind is EventKind.KILLED:
                await self._observations.record(observe_event(event, source=Source.CATCH_UP))
                return
        await self._observations.record(
            Observation(
                instance_id=instance_id,
                seen=Seen.GONE,
                at=asked_at,
                source=Source.LOOK,
                reason="not found at the provider",
            )
        )

    async def _sort_out(
        self, provider: Provider, unknown: list[Instance], report: Reconciled, *, dry_run: bool
    ) -> None:
        """What is listed and in no record: adopt it, call it a leak, or call it foreign."""
        for instance in unknown:
            tag = instance.tag
            if tag is None or tag.keeper != provider.keeper:
                report.counts["foreign"] += 1
                if report.counts["foreign"] <= FOREIGN_KEPT_MAX and not dry_run:
                    await self._leaks.sight(provider, instance, kind="foreign")
                continue
            sandbox = await self._store.sandboxes.find(tag.sandbox_id)
            if sandbox is not None:
                is_recorded = sandbox.instance_id == instance.instance_id
                if sandbox.is_claimed(self._clock()) or (is_recorded and sandbox.state.is_live):
                    continue  # Its holder knows more, or it was recorded while we were reading.
            if await self._adopt(instance, sandbox, report, dry_run=dry_run):
                continue
            await self._count_leak(provider, instance, sandbox, report, dry_run=dry_run)

    async def _adopt(
        self, instance: Instance, sandbox: Sandbox | None, report: Reconciled, *, dry_run: bool
    ) -> bool:
        """Give an instance back to its record: one whose create call was never answered, or one
        that was once not found. What somebody ended on purpose is not revived by a list.
        """
        seen = observe_instance(instance, source=Source.LIST)
        if sandbox is None or not isinstance(absorb(sandbox, seen), Change):
            return False
        if sandbox.state.is_ended and sandbox.killed_reason is not KilledReason.NOT_FOUND:
            return False
        report.note("adopted", instance.instance_id, sandbox, seen.seen.value)
        if dry_run:
            return True
        return (await self._observations.record(seen)).outcome is Outcome.CHANGED

    async def _count_leak(
        self,
        provider: Provider,
        instance: Instance,
        sandbox: Sandbox | None,
        report: Reconciled,
        *,
        dry_run: bool,
    ) -> None:
        born_at = instance.started_at
        if born_at is not None and self._clock() - born_at < NEWBORN:
            return
        report.note("leak", instance.instance_id, sandbox, instance.state.value)
        if dry_run:
            return
        leak = await self._leaks.sight(provider, instance)
        if await self._leaks.remove(provider, leak):
            report.counts["removed"] += 1


#: The counts that are corrections; the others only tell how much was looked at.
DRIFTS: Final = frozenset({"state", "orphaned", "adopted", "leak"})


def _agrees(sandbox: Sandbox, seen: Observation) -> bool:
    """The cheap answer for nearly every record: the list says what we know."""
    return (
        seen.state is sandbox.state
        and sandbox.verification_failures == 0
        and (seen.end_at is None or seen.end_at == sandbox.end_at)
    )


def _observe(sandbox: Sandbox, instance: Instance) -> Observation:
    """What the list says, without an end that differs by less than a breath."""
    seen = observe_instance(instance, source=Source.LIST)
    if seen.end_at is None or sandbox.end_at is None:
        return seen
    is_same = abs(seen.end_at - sandbox.end_at) <= END_TOLERANCE
    return replace(seen, end_at=None) if is_same else seen
