"""Listed instances without a live record: return them for a check, show them, or remove leaks.

An instance that is the current one of *any* record is never a leak: one whose record we ended is
paused and shown, and one whose record was ended by an event is returned to be checked. One whose
creation was never acknowledged is adopted, and so is one whose record is missing or older than it:
the database was restored from a backup. A second instance beside the live, listed one of the same
owner is a leak, and `leaks` pauses and removes it. Every other instance with our metadata is
*unowned*: it is paused and shown, and an operator decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import structlog

from sandkeeper.domain.observe.observation import Source
from sandkeeper.domain.observe.transitions import StateChange, absorb
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import KilledReason
from sandkeeper.providers.base import Instance, Provider
from sandkeeper.providers.observations import observe_instance
from sandkeeper.services.deps import Deps
from sandkeeper.services.observe.adoption import Adoption
from sandkeeper.services.observe.leaks import LeakHandler
from sandkeeper.services.observe.observations import Observations, RecordOutcome

log = structlog.get_logger(__name__)

FOREIGN_KEPT_MAX: Final = 100
"""Foreign instances to record in one pass; all of them are counted."""

NEWBORN: Final = timedelta(seconds=60)
"""A more recent unknown instance is not judged yet: its record may be about to be written. The same
applies to one that ended more recently than this: the list may be behind."""

INSTANCES_PAGE: Final = 500
"""Instance ids per database query."""


@dataclass(frozen=True, slots=True)
class RecordCorrection:
    """One difference: our state and the provider's."""

    kind: str
    instance_id: str
    sandbox_id: str | None
    ours: str
    theirs: str


@dataclass(slots=True)
class ReconcileReport:
    """The findings and acts of one pass over one region."""

    region: str
    complete: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    corrections: list[RecordCorrection] = field(default_factory=list)

    def add(self, kind: str, instance_id: str, sandbox: Sandbox | None, theirs: str) -> None:
        """Count a difference and save its description."""
        self.counts[kind] += 1
        ours = "no record" if sandbox is None else sandbox.state.value
        sandbox_id = None if sandbox is None else sandbox.id
        self.corrections.append(RecordCorrection(kind, instance_id, sandbox_id, ours, theirs))
        log.info("drift", kind=kind, instance_id=instance_id, sandbox_id=sandbox_id, theirs=theirs)


Check = Callable[[], Awaitable[None]]


class Unrecorded:
    """Decide what happens to an instance that no live record has."""

    def __init__(
        self, deps: Deps, observations: Observations, adoption: Adoption, leaks: LeakHandler
    ) -> None:
        self._store = deps.store
        self._adoption = adoption
        self._observations = observations
        self._leaks = leaks
        self._clock = deps.clock

    async def sort_out(
        self,
        provider: Provider,
        unknown: Sequence[Instance],
        listed: Mapping[str, Instance],
        report: ReconcileReport,
        check: Check,
        *,
        dry_run: bool,
        actor: str | None,
    ) -> list[Sandbox]:
        """Handle each instance; return the ended records whose instance exists, to be checked.

        `check` raises an error when this pass may do nothing more.
        """
        recorded = await self._find_records(unknown)
        doubtful: list[Sandbox] = []
        for instance in unknown:
            await check()
            sandbox = recorded.get(instance.instance_id)
            tag = instance.tag
            if sandbox is not None and sandbox.may_be_alive:
                if not sandbox.is_claimed(self._clock()):
                    doubtful.append(sandbox)
            elif sandbox is not None:
                await self._show_ended(provider, instance, sandbox, report, dry_run=dry_run)
            elif tag is None or tag.keeper != provider.keeper:
                if not dry_run and await self._adoption.adopt_by_metadata(provider, instance):
                    report.counts["adopted"] += 1
                    continue
                report.counts["foreign"] += 1
                if report.counts["foreign"] <= FOREIGN_KEPT_MAX and not dry_run:
                    await self._leaks.record(provider, instance, kind="foreign", reason="not ours")
            else:
                await self._judge(provider, instance, listed, report, dry_run=dry_run, actor=actor)
        return doubtful

    async def _find_records(self, unknown: Sequence[Instance]) -> dict[str | None, Sandbox]:
        """Return the records, in any state, whose current instance is one of these."""
        found: dict[str | None, Sandbox] = {}
        for start in range(0, len(unknown), INSTANCES_PAGE):
            page = [one.instance_id for one in unknown[start : start + INSTANCES_PAGE]]
            records = await self._store.bulk.list_by_instance(page)
            found |= {one.instance_id: one for one in records}
        return found

    async def _show_ended(
        self,
        provider: Provider,
        instance: Instance,
        sandbox: Sandbox,
        report: ReconcileReport,
        *,
        dry_run: bool,
    ) -> None:
        """Show and pause an instance that we ended and the provider still has."""
        if sandbox.state.is_live or self._clock() - sandbox.state_since < NEWBORN:
            return  # It was recorded while we were reading, or the list is behind.
        why = f"its record {sandbox.id} was ended by {sandbox.actor}, and the provider has it"
        await self._show(provider, instance, sandbox, why, report, dry_run=dry_run)

    async def _show(
        self,
        provider: Provider,
        instance: Instance,
        sandbox: Sandbox | None,
        why: str,
        report: ReconcileReport,
        *,
        dry_run: bool,
    ) -> None:
        """Show an instance of ours that has no record, and pause it until an operator decides."""
        report.add("unowned", instance.instance_id, sandbox, instance.state.value)
        if dry_run:
            return
        leak = await self._leaks.record(provider, instance, kind="unowned", reason=why)
        if await self._leaks.pause(provider, leak, instance):
            report.counts["paused"] += 1

    async def _judge(
        self,
        provider: Provider,
        instance: Instance,
        listed: Mapping[str, Instance],
        report: ReconcileReport,
        *,
        dry_run: bool,
        actor: str | None,
    ) -> None:
        """Adopt an instance with our metadata, treat it as a leak, or show it as unowned."""
        assert instance.tag is not None
        sandbox = await self._store.sandboxes.find(instance.tag.sandbox_id)
        if sandbox is not None:
            is_recorded = sandbox.instance_id == instance.instance_id
            if is_recorded or sandbox.is_claimed(self._clock()):
                return  # It was recorded while we were reading, or its holder knows more.
            if await self._adopt(instance, sandbox, report, dry_run=dry_run):
                return
        born_at = instance.started_at
        if born_at is not None and self._clock() - born_at < NEWBORN:
            return
        sandbox = sandbox or await self._find_by_owner(instance)
        if await self._try_to_adopt(provider, instance, sandbox, report, dry_run=dry_run):
            return
        if sandbox is None or not _is_second(instance, sandbox, listed):
            why = _explain_unowned(instance, sandbox)
            await self._show(provider, instance, sandbox, why, report, dry_run=dry_run)
            return
        report.add("leak", instance.instance_id, sandbox, instance.state.value)
        if dry_run:
            return
        why = f"a second instance beside {sandbox.instance_id} of record {sandbox.id}"
        leak = await self._leaks.record(provider, instance, kind="leak", reason=why)
        if await self._leaks.remove(provider, leak, instance, beside=sandbox, actor=actor):
            report.counts["removed"] += 1
        elif await self._leaks.pause(provider, leak, instance, beside=sandbox):
            report.counts["paused"] += 1

    async def _find_by_owner(self, instance: Instance) -> Sandbox | None:
        assert instance.tag is not None
        if instance.tag.owner_kind not in set(OwnerKind):
            return None
        owner = Owner(OwnerKind(instance.tag.owner_kind), instance.tag.owner_id)
        return await self._store.sandboxes.find_by_owner(owner)

    async def _try_to_adopt(
        self,
        provider: Provider,
        instance: Instance,
        sandbox: Sandbox | None,
        report: ReconcileReport,
        *,
        dry_run: bool,
    ) -> bool:
        """Adopt an instance whose record is missing, or ended and older; return whether it was."""
        if dry_run:
            return False
        if sandbox is None:
            made = await self._adoption.adopt_marked(provider, instance)
        elif _is_of_older_record(instance, sandbox):
            made = sandbox if await self._adoption.revive(sandbox, instance) else None
        else:
            return False
        if made is not None:
            report.add("adopted", instance.instance_id, made, instance.state.value)
        return made is not None

    async def _adopt(
        self, instance: Instance, sandbox: Sandbox, report: ReconcileReport, *, dry_run: bool
    ) -> bool:
        """Assign an instance whose create call was never answered to its record."""
        seen = observe_instance(instance, source=Source.LIST)
        if not isinstance(absorb(sandbox, seen), StateChange):
            return False
        report.add("adopted", instance.instance_id, sandbox, seen.seen.value)
        if dry_run:
            return True
        return (await self._observations.record(seen)).outcome is RecordOutcome.CHANGED


def _is_second(instance: Instance, sandbox: Sandbox, listed: Mapping[str, Instance]) -> bool:
    """Return whether the record has another instance, live, listed and not older than this."""
    assert instance.tag is not None
    is_there = sandbox.instance_id is not None and sandbox.instance_id in listed
    is_newer = (
        instance.tag.sandbox_id == sandbox.id and instance.tag.generation > sandbox.generation
    )
    return sandbox.state.is_live and is_there and not is_newer


def _is_of_older_record(instance: Instance, sandbox: Sandbox) -> bool:
    """Return whether the ended record does not know of this instance of its own.

    The instance is of a later generation, or of one whose creation was given up too early.
    """
    assert instance.tag is not None
    if not sandbox.state.is_ended or instance.tag.sandbox_id != sandbox.id:
        return False
    was_given_up = (
        sandbox.last_end.killed_reason is KilledReason.CREATION_FAILED
        and instance.tag.generation == sandbox.generation
    )
    return was_given_up or instance.tag.generation > sandbox.generation


def _explain_unowned(instance: Instance, sandbox: Sandbox | None) -> str:
    assert instance.tag is not None
    if sandbox is None:
        return f"no record {instance.tag.sandbox_id}; adopt it, or end it at the provider"
    return (
        f"record {sandbox.id} is {sandbox.state.value} with another instance or none; "
        "adopt it, or end it at the provider"
    )
