"""Translate what a provider reports into neutral observations.

This is the only place that knows what E2B's event types and kill reasons mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from sandkeeper.domain.observe.observation import Observation, ObservedStatus, Source
from sandkeeper.providers.base import EventKind, Instance, InstanceState, LifecycleEvent

STATUS_OF_EVENT: Final[Mapping[EventKind, ObservedStatus]] = {
    EventKind.CREATED: ObservedStatus.CREATED,
    EventKind.RESUMED: ObservedStatus.RUNNING,
    EventKind.UPDATED: ObservedStatus.UPDATED,
    EventKind.PAUSED: ObservedStatus.PAUSED,
    EventKind.KILLED: ObservedStatus.KILLED,
    EventKind.CHECKPOINTED: ObservedStatus.CHECKPOINTED,
}
"""The status that each event reports; the reason of a killed event refines it."""

STATUS_OF_KILL_REASON: Final[Mapping[str, ObservedStatus]] = {
    "request": ObservedStatus.KILLED,
    "unknown": ObservedStatus.KILLED,
    "timeout": ObservedStatus.EXPIRED,
    "admin": ObservedStatus.TERMINATED,
    "orphaned": ObservedStatus.TERMINATED,
    "shutdown": ObservedStatus.TERMINATED,
    "evicted": ObservedStatus.TERMINATED,
    "base_template_missing": ObservedStatus.TERMINATED,
    "seal_failed": ObservedStatus.TERMINATED,
    "resume_failed": ObservedStatus.TERMINATED,
}
"""E2B's kill reasons: KILLED on request, EXPIRED at the end of the lifetime, TERMINATED by the
system. Any other reason is KILLED.
"""


def observe_event(event: LifecycleEvent, *, source: Source, received_at: datetime) -> Observation:
    """Return what a lifecycle event reports, pushed or polled, and when it reached us."""
    seen = STATUS_OF_EVENT[event.kind]
    reason = None
    if event.kind is EventKind.KILLED:
        seen = STATUS_OF_KILL_REASON.get(event.kill_reason or "", ObservedStatus.KILLED)
        reason = f"killed at the provider: {event.kill_reason or 'no reason given'}"
    return Observation(
        instance_id=event.instance_id,
        seen=seen,
        at=event.at,
        source=source,
        run_id=event.run_id,
        event_id=event.event_id,
        sandbox_id=None if event.tag is None else event.tag.sandbox_id,
        generation=None if event.tag is None else event.tag.generation,
        end_at=event.end_at,
        reason=reason,
        received_at=received_at,
    )


def observe_instance(instance: Instance, *, source: Source) -> Observation:
    """Return what a get, a list or a reply reports about an instance that exists."""
    is_running = instance.state is InstanceState.RUNNING
    return Observation(
        instance_id=instance.instance_id,
        seen=ObservedStatus.RUNNING if is_running else ObservedStatus.PAUSED,
        at=instance.seen_at,
        source=source,
        run_id=instance.run_id,
        sandbox_id=None if instance.tag is None else instance.tag.sandbox_id,
        generation=None if instance.tag is None else instance.tag.generation,
        end_at=instance.end_at if is_running else None,
        url=instance.url,
        isolation=instance.isolation,
        vcpus=instance.vcpus,
        memory_mb=instance.memory_mb,
    )
