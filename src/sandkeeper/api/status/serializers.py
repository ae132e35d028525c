"""Turn records into JSON. These are plain dicts, because a status is encoded once for many readers;
a test compares them with `schemas`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final

import orjson

from sandkeeper.api.schemas.sandboxes import CompactStatus, Status
from sandkeeper.domain.decisions.adaptive_timeout import compute_idle_timeout_s
from sandkeeper.domain.decisions.idle import find_sleeps_at
from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.receipt import Receipt, WakeMethod, list_steps
from sandkeeper.domain.sandbox import GROUP_OF, Sandbox
from sandkeeper.domain.states import State
from sandkeeper.domain.texts.console import STATE_WORDS, summarize
from sandkeeper.domain.texts.explain import SILENCE, Explanation
from sandkeeper.domain.texts.presentation import (
    JOB_TEXTS,
    PRESENTATIONS,
    WAKING,
    Presentation,
    Truth,
    find_truth,
    word_truth,
)
from sandkeeper.services.gateway.urls import PreviewUrls
from sandkeeper.services.monitoring.health import Reading
from sandkeeper.settings import Settings
from sandkeeper.store.deliveries import Delivery
from sandkeeper.store.events import LoggedEvent
from sandkeeper.store.sandboxes.leaks import Leak

OPTIONS = orjson.OPT_UTC_Z
NO_PREVIEWS: Final = PreviewUrls("")
ADDRESS_MAX = 200
# No control characters, and none that are invisible or turn the direction of text.
ADDRESS_PATTERN = (
    r"^[^\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufeff\ufff0-\uffff]+$"
)
_ADDRESS = re.compile(ADDRESS_PATTERN)


def owner_slug(owner: Owner) -> str:
    """Return the owner's name in routes and streams; `Owner.parse` reads it back."""
    return owner.id if owner.kind is OwnerKind.PROJECT else str(owner)


def parse_owner_slug(text: str) -> Owner:
    """Return the owner that a URL names; refuse a name that no owner can have."""
    if len(text) > ADDRESS_MAX or not _ADDRESS.fullmatch(text):
        raise InvalidRequestError(
            f"A project's id has at most {ADDRESS_MAX} characters, and none that is invisible."
        )
    owner = Owner.parse(text)
    if not owner.id:
        raise InvalidRequestError("The id after the kind of owner is missing.")
    return owner


def dumps(value: object) -> bytes:
    return orjson.dumps(value, option=OPTIONS)


class PresentationTable:
    """The words with this installation's poll intervals and its providers' health."""

    def __init__(
        self,
        *,
        poll_running_ms: int,
        poll_starting_ms: int,
        poll_waking_ms: int,
        find_down_since: Callable[[Sandbox], datetime | None] = lambda _sandbox: None,
        previews: PreviewUrls = NO_PREVIEWS,
    ) -> None:
        self.find_down_since = find_down_since
        self.previews = previews
        self._polls = {
            PRESENTATIONS[State.RUNNING].label: poll_running_ms,
            PRESENTATIONS[State.STARTING].label: poll_starting_ms,
            WAKING.label: poll_waking_ms,
        }

    @classmethod
    def from_settings(
        cls, settings: Settings, find_down_since: Callable[[Sandbox], datetime | None]
    ) -> PresentationTable:
        """Return the table with the configured poll intervals."""
        return cls(
            find_down_since=find_down_since,
            poll_running_ms=settings.poll_running_ms,
            poll_starting_ms=settings.poll_starting_ms,
            poll_waking_ms=settings.poll_waking_ms,
            previews=PreviewUrls.from_settings(settings),
        )

    def poll_after_ms(self, words: Presentation) -> int | None:
        """Return the poll interval for these words; None (0 in a setting) means: do not poll."""
        return self._polls.get(words.label, words.poll_after_ms) or None

    def find_truth(self, sandbox: Sandbox, *, now: datetime) -> Truth:
        """Return what is true of this sandbox now."""
        down_since = self.find_down_since(sandbox)
        return find_truth(sandbox, now=now, provider_down_since=down_since)

    def render(self, words: Presentation) -> dict[str, Any]:
        return {
            "label": words.label,
            "caption": words.caption,
            "badge": words.badge.value,
            "icon": words.icon,
            "pulses": words.pulses,
            "actions": [action.value for action in words.actions],
            "pollAfterMs": self.poll_after_ms(words),
        }

    def table(self) -> dict[str, Any]:
        """Return the whole table, for pages."""
        return {
            "states": {state.value: self.render(PRESENTATIONS[state]) for state in State},
            "waking": self.render(WAKING),
            "job": {name: getattr(JOB_TEXTS, name) for name in JOB_TEXTS.__slots__},
            "words": {state.value: word for state, word in STATE_WORDS.items()},
        }


# A field of the status that the record, or a group of it, has under the same name is copied. All
# others, and those whose value differs from the record's, are in `render_status`.
_COPIED: Final = [
    name for name in Status.model_fields if name in GROUP_OF or hasattr(Sandbox, name)
]
_COPIED_KEYS: Final = [Status.model_fields[name].alias or name for name in _COPIED]
_read_copied = attrgetter(
    *(f"{GROUP_OF[name]}.{name}" if name in GROUP_OF else name for name in _COPIED)
)


def render_status(sandbox: Sandbox, *, words: PresentationTable, now: datetime) -> dict[str, Any]:
    """Return the sandbox as every route and stream shows it, with exactly the keys of `Status`."""
    truth = words.find_truth(sandbox, now=now)
    is_running = truth.state is State.RUNNING
    launch = sandbox.launch
    status = dict(zip(_COPIED_KEYS, _read_copied(sandbox), strict=True))
    status.update(words.render(word_truth(truth)))
    status |= {
        "project": owner_slug(sandbox.owner),
        "owner": {"kind": sandbox.owner.kind.value, "id": sandbox.owner.id},
        "status": truth.state.value,
        "summary": _render_summary(sandbox, truth),
        "sandboxUrl": sandbox.run.url if is_running else None,
        "previewUrl": words.previews.find(sandbox),
        "ready": sandbox.run.ready and truth.is_ready,
        "app": truth.app.value if is_running else None,
        "cause": truth.cause.value,
        "providerDownSince": truth.provider_down_since,
        "expiresAt": sandbox.run.end,
        "stateSince": _find_since(sandbox, truth),
        "reason": _find_reason(sandbox, truth),
        "lastActiveAt": sandbox.last_used_at,
        "lastPassiveAt": sandbox.activity.passive_at,
        "idleTimeoutMs": _to_ms(compute_idle_timeout_s(sandbox)),
        "lifecycleTimeoutMs": sandbox.policy.lifetime_ms,
        "sleepsAt": find_sleeps_at(sandbox) if is_running else None,
        "waking": _render_waking(sandbox, now),
        "receipt": _render_last_receipt(sandbox),
        "lastWebhookReceivedAt": sandbox.sightings.last_webhook_at,
        "pausedByScheduler": sandbox.is_paused_by_sweep,
        "template": launch.template,
        "port": launch.port,
        "metadata": dict(launch.metadata),
    }
    return status


def _render_summary(sandbox: Sandbox, truth: Truth) -> dict[str, Any]:
    summary = summarize(sandbox, truth)
    return {
        "word": summary.word,
        "sentence": summary.sentence,
        "since": summary.since,
        "operations": [operation.value for operation in summary.operations],
    }


_COMPACT_KEYS: Final = [field.alias or name for name, field in CompactStatus.model_fields.items()]


def render_compact(status: bytes) -> bytes:
    """Return the part of an encoded status that a table shows."""
    values = orjson.loads(status)
    return dumps({key: values[key] for key in _COMPACT_KEYS})


def render_page(items: Iterable[bytes], next_cursor: str | None) -> bytes:
    """Return a page of a list of encoded items."""
    return b'{"items":[%b],"nextCursor":%b}' % (b",".join(items), dumps(next_cursor))


def _to_ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _render_waking(sandbox: Sandbox, now: datetime) -> dict[str, Any] | None:
    """Return the wake in progress; before its first step it is about to resume."""
    if not sandbox.is_waking(now):
        return None
    mark = sandbox.wake
    if mark is None or mark.step is None:
        steps = [step.value for step in list_steps(WakeMethod.RESUME)]
        return {
            "step": steps[0],
            "steps": steps,
            "startedAt": sandbox.updated_at,
            "usualMs": None,
            "position": None,
            "waitMs": None,
        }
    return {
        "step": mark.step.value,
        "steps": [step.value for step in list_steps(mark.method)],
        "startedAt": mark.started_at,
        "usualMs": mark.usual_ms,
        "position": mark.position,
        "waitMs": mark.wait_ms,
    }


def _find_since(sandbox: Sandbox, truth: Truth) -> datetime:
    since = truth.provider_down_since
    return sandbox.state_since if since is None or truth.state is sandbox.state else since


def _find_reason(sandbox: Sandbox, truth: Truth) -> str:
    """Return the reason of the state; after a failed wake, why it failed."""
    mark = sandbox.wake
    if truth.state is not sandbox.state:
        return SILENCE
    if mark is None or mark.error is None or mark.finished_at is None:
        return sandbox.reason
    is_news = sandbox.state is not State.RUNNING and mark.finished_at >= sandbox.state_since
    return mark.error if is_news else sandbox.reason


def _render_last_receipt(sandbox: Sandbox) -> dict[str, Any] | None:
    mark = sandbox.wake
    return None if mark is None or mark.receipt is None else render_receipt(mark.receipt)


def render_receipt(receipt: Receipt) -> dict[str, Any]:
    """Return what a wake kept, restored and lost."""
    return {
        "method": receipt.method.value,
        "recreated": receipt.is_recreated,
        "reason": receipt.reason,
        "kept": {"memory": receipt.memory_kept, "disk": receipt.disk_kept},
        "filesVersion": receipt.files_version,
        "filesGapMs": receipt.files_gap_ms,
        "filesNote": receipt.files_note,
        "checked": receipt.checked,
        "hashed": receipt.hashed,
        "newer": receipt.newer,
        "restored": receipt.restored,
        "restoredPaths": list(receipt.restored_paths),
        "lost": [loss.path for loss in receipt.lost],
        "lostCount": receipt.lost_count,
        "losses": [{"path": loss.path, "reason": loss.reason} for loss in receipt.lost],
        "unread": [{"path": one.path, "reason": one.reason} for one in receipt.unread],
        "notKept": list(receipt.not_kept),
        "notKeptCount": receipt.not_kept_count,
        "appStarted": receipt.app_started,
        "appKept": receipt.app_kept,
        "filesPending": receipt.files_pending,
        "tookMs": receipt.took_ms,
    }


def render_explanation(explanation: Explanation, *, owner: Owner) -> dict[str, Any]:
    return {
        "project": owner_slug(owner),
        "status": explanation.state.value,
        "label": explanation.label,
        "caption": explanation.caption,
        "since": explanation.since,
        "why": explanation.why,
        "actor": explanation.actor,
        "lastActiveAt": explanation.last_active_at,
        "lastActiveClass": explanation.last_active_class,
        "lastActiveSource": explanation.last_active_source,
        "ignoredPassiveCount": explanation.ignored_passive_count,
        "ignoredPassiveAt": explanation.ignored_passive_at,
        "ignoredPassiveSource": explanation.ignored_passive_source,
        "idleTimeoutMs": _to_ms(explanation.idle_timeout_s),
        "idleTimeoutWhy": explanation.idle_timeout_why,
        "idlePauses": explanation.idle_pauses,
        "earlyPauses": explanation.early_pauses,
        "idleTailMs": _to_ms(explanation.idle_tail_s),
        "nextRule": explanation.next_rule,
        "nextAt": explanation.next_at,
        "preventedBy": list(explanation.prevented_by),
        "work": explanation.work,
        "asOf": explanation.as_of,
        "leases": [
            {"id": one.id, "holder": one.holder, "until": one.until} for one in explanation.leases
        ],
        "lastFailure": explanation.last_failure,
        "lastFailureAt": explanation.last_failure_at,
        "files": explanation.files,
    }


def render_change(event: LoggedEvent) -> dict[str, Any]:
    """Return an entry of the log; a state change has the old and new state and its cause."""
    data = event.data
    known = {"old_state", "new_state", "source"}
    return {
        "seq": event.seq,
        "at": event.at,
        "type": event.type,
        "project": owner_slug(event.owner),
        "owner": {"kind": event.owner.kind.value, "id": event.owner.id},
        "version": event.version,
        "fromState": data.get("old_state"),
        "toState": data.get("new_state"),
        "cause": data.get("source") or event.actor,
        "reason": event.reason,
        "actor": event.actor,
        "detail": {_camel(name): value for name, value in data.items() if name not in known},
    }


def render_history(events: Sequence[LoggedEvent], *, limit: int) -> dict[str, Any]:
    """Return a page of the log, newest first; a full page may have another after it."""
    more = str(events[-1].seq) if len(events) == limit else None
    return {"items": [render_change(event) for event in events], "nextCursor": more}


def render_inbox(deliveries: Sequence[Delivery], *, limit: int) -> dict[str, Any]:
    """Return a page of the webhook inbox, newest first; a full page may have another after it."""
    more = str(deliveries[-1].number) if len(deliveries) == limit else None
    return {"items": [render_delivery(one) for one in deliveries], "nextCursor": more}


def render_delivery(delivery: Delivery) -> dict[str, Any]:
    lag = None
    if delivery.event_at is not None:
        lag = round((delivery.received_at - delivery.event_at).total_seconds() * 1000)
    return {
        "deliveryId": delivery.delivery_id,
        "eventId": delivery.event_id,
        "type": delivery.type,
        "instanceId": delivery.instance_id,
        "receivedAt": delivery.received_at,
        "outcome": delivery.outcome,
        "lagMs": lag,
        "detail": delivery.detail or None,
    }


def render_leak(leak: Leak) -> dict[str, Any]:
    return {
        "instanceId": leak.instance_id,
        "provider": leak.provider,
        "region": leak.region,
        "kind": leak.kind,
        "owner": leak.owner,
        "firstSeenAt": leak.first_seen_at,
        "lastSeenAt": leak.last_seen_at,
        "sightings": leak.sightings,
        "reason": leak.reason,
        "pausedAt": leak.paused_at,
        "removedAt": leak.removed_at,
        "removedBy": leak.removed_by,
    }


def render_reading(reading: Reading, *, last_ok_at: datetime | None) -> dict[str, Any]:
    return {
        "name": reading.name,
        "sentence": reading.sentence,
        "unit": reading.unit,
        "value": reading.value,
        "limit": reading.limit,
        "ok": not reading.red,
        "lastOkAt": last_ok_at,
    }


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def from_epoch(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
