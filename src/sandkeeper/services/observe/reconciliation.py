"""Compare everything at the provider with everything that we recorded, and correct the records.

The provider is the truth and the database a cache. One pass lists the provider's instances, then
reads the live records page by page. A record whose instance is in the list takes the listed state.
A record whose instance is missing there is checked alone, because only the provider's own "there is
no such sandbox" ends a record. A record that an event ended while its instance is still listed is
checked too, and comes back if the provider has it. `unrecorded` handles the listed instances that
are not the current one of any record. Claimed rows are left alone: the holder knows more. Every
correction goes through `observations.record`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, TypeVar

import structlog

from sandkeeper.domain.decisions.capacity import Place
from sandkeeper.domain.errors import (
    InstanceGoneError,
    ProviderError,
    ProviderUnsupportedError,
    RegionBusyError,
    SandkeeperError,
)
from sandkeeper.domain.observe.clock_bounds import has_future_time
from sandkeeper.domain.observe.observation import Observation, ObservedStatus, Source
from sandkeeper.domain.observe.transitions import StateChange, absorb
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.base import EventKind, Instance, InstanceState, Provider
from sandkeeper.providers.observations import observe_instance
from sandkeeper.services.deps import Deps
from sandkeeper.services.observe.adoption import Adoption
from sandkeeper.services.observe.leaks import LeakHandler
from sandkeeper.services.observe.observations import Observations, RecordOutcome
from sandkeeper.services.observe.region_leases import RegionLease, RegionLeases, name_region
from sandkeeper.services.observe.unrecorded import NEWBORN, ReconcileReport, Unrecorded
from sandkeeper.store.replicas.region_leases import RegionPass

log = structlog.get_logger(__name__)

LIST_PAGES_MAX: Final = 2000
"""Maximum number of listed pages of a hundred. A larger fleet is not compared completely, and the
report says so; then nothing is concluded from the absence of an instance."""

RECORDS_PAGE: Final = 200
"""Records per read. Higher delays requests while the records are compared; lower needs more
database queries."""

CONFIRM_AFTER: Final = timedelta(seconds=120)
"""A matching record is marked as verified when its last check is this old. Shorter writes the whole
fleet on each pass; longer than the age that counts as stale would make the record look stale."""

GETS_MAX: Final = 500
"""Missing instances to check in one pass. Higher would use up the provider's rate limit; lower
would detect a large loss late. The next pass checks the rest."""

GETS_AT_ONCE: Final = 8
_Result = TypeVar("_Result")
END_TOLERANCE: Final = timedelta(seconds=2)
"""Two ends closer than this are equal: ours is computed from the request, theirs is exact."""


@dataclass(frozen=True, slots=True)
class DuePasses:
    """What came of the passes that were due: our reports, and the passes of other replicas."""

    reports: list[ReconcileReport]
    others: dict[str, RegionPass]
    """By region."""


class Reconciliation:
    """Run passes: of all replicas, one at a time compares a region."""

    def __init__(
        self,
        deps: Deps,
        observations: Observations,
        adoption: Adoption,
        leaks: LeakHandler,
        leases: RegionLeases,
    ) -> None:
        self._store = deps.store
        self._providers = deps.providers
        self._observations = observations
        self._unrecorded = Unrecorded(deps, observations, adoption, leaks)
        self._leases = leases
        self._metrics = deps.metrics
        self._clock = deps.clock

    async def run(
        self, *, dry_run: bool = False, actor: str | None = None
    ) -> list[ReconcileReport]:
        """Run one pass over every region. A region that fails does not stop the others.

        With `dry_run` differences are reported and nothing is written or removed. `actor` is the
        person who asked for this pass; without one it is this replica's own.
        """

        async def run(provider: Provider) -> ReconcileReport:
            if dry_run:
                return await self._run_region(provider, None, actor=actor)
            async with self._leases.wait_for_turn(provider) as turn:
                return await self._run_region(provider, turn.lease, actor=actor)

        return await self._run_each(run)

    async def run_due(self, *, period_s: float) -> DuePasses:
        """Run one pass over every region of which no other replica began one in this period."""
        others: dict[str, RegionPass] = {}

        async def run(provider: Provider) -> ReconcileReport | None:
            async with self._leases.take_turn(provider, period_s=period_s) as turn:
                if turn.lease is not None:
                    return await self._run_region(provider, turn.lease)
                if turn.other is not None:
                    others[name_region(provider)] = turn.other
                return None

        found = await self._run_each(run)
        return DuePasses([report for report in found if report is not None], others)

    async def compare_since(self, provider: Provider, since: datetime) -> None:
        """Return when a pass over this region that began after `since` has succeeded."""
        async with self._leases.wait_for_turn(provider, unless_after=since) as turn:
            if turn.lease is not None:
                await self._run_region(provider, turn.lease)

    async def _run_each(self, run: Callable[[Provider], Awaitable[_Result]]) -> list[_Result]:
        results: list[_Result] = []
        failures: list[SandkeeperError] = []
        for provider in self._providers:
            try:
                results.append(await run(provider))
            except (ProviderError, RegionBusyError) as error:
                log.warning("reconcile_failed", region=provider.region, error=str(error))
                failures.append(error)
        if failures:
            raise failures[0]
        return results

    async def _run_region(
        self, provider: Provider, lease: RegionLease | None, *, actor: str | None = None
    ) -> ReconcileReport:
        """Run one pass over one region; without a lease only report."""
        dry_run = lease is None
        check = _check_nothing if lease is None else lease.check
        report = ReconcileReport(provider.region)
        asked_at = self._clock()
        listed = await self._list(provider, report)
        known: set[str] = set()
        missing: list[Sandbox] = []
        after_id = ""
        while True:
            page = await self._store.sandboxes.list_live(
                provider=provider.name, after_id=after_id, limit=RECORDS_PAGE
            )
            here = [one for one in page if self._providers.find(one) is provider]
            known.update(one.instance_id for one in here if one.instance_id in listed)
            await check()
            missing += await self._compare(here, listed, asked_at, report, dry_run=dry_run)
            if len(page) < RECORDS_PAGE:
                break
            after_id = page[-1].id
        await check()
        if report.complete:
            await self._get_missing(provider, missing, listed, report, dry_run=dry_run)
        unknown = [one for instance_id, one in listed.items() if instance_id not in known]
        ended = await self._unrecorded.sort_out(
            provider, unknown, listed, report, check, dry_run=dry_run, actor=actor
        )
        await check()
        await self._get_missing(provider, ended, listed, report, dry_run=dry_run)
        if report.complete and not dry_run:
            await self._count_unrecorded(provider, unknown)
        for kind, count in report.counts.items():
            if kind in DRIFTS and not dry_run:
                self._metrics.drift.labels(kind).inc(count)
        return report

    async def _count_unrecorded(self, provider: Provider, unknown: Sequence[Instance]) -> None:
        """Note how many run in this account without being a record's: they take room too."""
        tags = [one.tag for one in unknown if one.state is InstanceState.RUNNING]
        own = [tag for tag in tags if tag is not None and tag.keeper == provider.keeper]
        await self._store.slots.note_unrecorded(
            Place(provider.name, provider.region),
            unknown=len(tags) - len(own),
            tagged=[(tag.sandbox_id, tag.generation) for tag in own],
        )

    async def _list(self, provider: Provider, report: ReconcileReport) -> dict[str, Instance]:
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
        report: ReconcileReport,
        *,
        dry_run: bool,
    ) -> list[Sandbox]:
        """Compare one page of records with the list; return those that must be checked alone.

        Their instance is not listed, or the list differs and is not enough to decide.
        """
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
            seen = None if instance is None else _observe(sandbox, instance)
            verdict = _judge(sandbox, seen, now)
            if seen is None or verdict is RecordVerdict.UNSETTLED:
                missing.append(sandbox)
            elif verdict is RecordVerdict.CONFIRMED:
                report.counts["confirmed"] += 1
                if asked_at - sandbox.as_of >= CONFIRM_AFTER:
                    confirmed.append(sandbox.id)
            else:
                await self._correct(sandbox, seen, report, dry_run=dry_run)
        if not dry_run:
            await self._store.sandboxes.confirm(confirmed, at=asked_at)
        return missing

    async def _correct(
        self, sandbox: Sandbox, seen: Observation, report: ReconcileReport, *, dry_run: bool
    ) -> None:
        if seen.state is not sandbox.state:
            report.add("state", seen.instance_id, sandbox, seen.seen.value)
        if not dry_run:
            await self._observations.record(seen)

    async def _get_missing(
        self,
        provider: Provider,
        missing: list[Sandbox],
        listed: Mapping[str, Instance],
        report: ReconcileReport,
        *,
        dry_run: bool,
    ) -> None:
        """Check each instance alone. Only if list and answer agree is an instance gone."""
        slots = asyncio.Semaphore(GETS_AT_ONCE)

        async def check(sandbox: Sandbox) -> None:
            async with slots:
                is_listed = sandbox.instance_id in listed
                await self._get_instance(
                    provider, sandbox, report, is_listed=is_listed, dry_run=dry_run
                )

        await asyncio.gather(*(check(sandbox) for sandbox in missing[:GETS_MAX]))

    async def _get_instance(
        self,
        provider: Provider,
        sandbox: Sandbox,
        report: ReconcileReport,
        *,
        is_listed: bool,
        dry_run: bool,
    ) -> None:
        instance_id = sandbox.instance_id
        assert instance_id is not None
        asked_at = self._clock()
        try:
            instance = await provider.get(instance_id, port=sandbox.launch.port)
        except InstanceGoneError:
            if is_listed:
                return  # The list is behind, or the answer is wrong: the next pass looks again.
            report.add("orphaned", instance_id, sandbox, "gone")
            if not dry_run:
                await self._end(provider, sandbox, instance_id, asked_at)
        except ProviderError as error:
            report.counts["failed"] += 1
            log.warning("look_failed", instance_id=instance_id, error=str(error))
        else:
            seen = observe_instance(instance, source=Source.GET)
            seen = replace(seen, asked_version=sandbox.version)
            if _judge(sandbox, seen, self._clock()) is not RecordVerdict.UNSETTLED:
                await self._correct(sandbox, seen, report, dry_run=dry_run)

    async def _end(
        self, provider: Provider, sandbox: Sandbox, instance_id: str, asked_at: datetime
    ) -> None:
        """Record that an instance is gone, with the provider's reason if its log still has one."""
        since = (sandbox.run.run_started_at or sandbox.created_at) - NEWBORN
        try:
            events = await provider.list_events(since=since, instance_id=instance_id, pages_max=1)
        except (ProviderUnsupportedError, ProviderError):
            events = ()
        for event in events:
            if event.kind is not EventKind.KILLED:
                continue
            seen = self._observations.observe(event, source=Source.CATCH_UP)
            if (await self._observations.record(seen)).outcome is not RecordOutcome.DUPLICATE:
                return
        await self._observations.record(
            Observation(
                instance_id=instance_id,
                seen=ObservedStatus.GONE,
                at=asked_at,
                source=Source.GET,
                reason="not found at the provider",
            )
        )


async def _check_nothing() -> None:
    return None


#: The counts that are corrections; the others only show how much was checked.
DRIFTS: Final = frozenset({"state", "orphaned", "adopted", "leak", "unowned"})


class RecordVerdict(StrEnum):
    """The meaning of the provider's answer for a record."""

    CONFIRMED = "confirmed"
    CORRECTED = "corrected"
    #: It is not listed, or the list differs and is older than the record.
    UNSETTLED = "unsettled"


def _judge(sandbox: Sandbox, seen: Observation | None, now: datetime) -> RecordVerdict:
    """Compare a record with what was seen, without writing anything."""
    if seen is None:
        return RecordVerdict.UNSETTLED
    if _agrees(sandbox, seen):
        return RecordVerdict.CONFIRMED
    result = absorb(sandbox, seen, now=now)
    after = result.sandbox if isinstance(result, StateChange) else sandbox
    if after.state is not seen.state:
        return RecordVerdict.UNSETTLED
    return RecordVerdict.CORRECTED if isinstance(result, StateChange) else RecordVerdict.CONFIRMED


def _agrees(sandbox: Sandbox, seen: Observation) -> bool:
    """Return whether the list matches the record: the cheap answer for nearly every record."""
    return (
        seen.state is sandbox.state
        and sandbox.sightings.verification_failures == 0
        and not has_future_time(sandbox, seen.at)
        and (seen.end_at is None or seen.end_at == sandbox.run.end_at)
    )


def _observe(sandbox: Sandbox, instance: Instance) -> Observation:
    """Return what the list says, without an end within the tolerance of ours."""
    seen = observe_instance(instance, source=Source.LIST)
    if seen.end_at is None or sandbox.run.end_at is None:
        return seen
    is_same = abs(seen.end_at - sandbox.run.end_at) <= END_TOLERANCE
    return replace(seen, end_at=None) if is_same else seen
