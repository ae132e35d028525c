"""E2B's lifecycle events, from its webhooks and its events API.

A webhook's body is snake_case (camelCase in version 1), the events API is always camelCase.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from sandkeeper.providers.base import EventKind, LifecycleEvent
from sandkeeper.providers.e2b.metadata import parse_metadata


class MalformedEventError(ValueError):
    """The event cannot be understood; the message says why."""


class UnknownEventTypeError(MalformedEventError):
    """The event is well formed and of a type that this version does not know."""


_KINDS = {kind.value: kind for kind in EventKind}


def parse_event(payload: object) -> LifecycleEvent:
    """Return the event in one JSON object. Raise `MalformedEventError` for anything else.

    Fields that are not needed are not read, so a later version of E2B's payload still fits.
    """
    if not isinstance(payload, dict):
        raise MalformedEventError("the event is not a JSON object")
    name = _text(payload, "type")
    kind = _KINDS.get(name)
    if kind is None:
        raise UnknownEventTypeError(f"the event type {name!r} is not known")
    data = _find(payload, "eventData")
    data = data if isinstance(data, dict) else {}
    end_at = _find(data, "setTimeout")
    metadata = _find(data, "sandboxMetadata")
    reason = _find(data, "killReason")
    run_id = _find(payload, "sandboxExecutionId")
    return LifecycleEvent(
        event_id=_text(payload, "id"),
        kind=kind,
        instance_id=_text(payload, "sandboxId"),
        run_id=run_id if isinstance(run_id, str) and run_id else None,
        at=parse_time(_text(payload, "timestamp")),
        kill_reason=reason if isinstance(reason, str) and reason else None,
        end_at=parse_time(end_at) if isinstance(end_at, str) and end_at else None,
        tag=parse_metadata(metadata) if isinstance(metadata, dict) else None,
    )


def parse_time(text: str) -> datetime:
    """Parse an RFC 3339 instant as aware UTC, with any number of fractional digits, as in Go."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise MalformedEventError(f"{text!r} is not a time") from error
    if moment.tzinfo is None:
        raise MalformedEventError(f"the time {text!r} names no zone")
    return moment.astimezone(UTC)


def _find(payload: Mapping[str, object], camel: str) -> object:
    """Return the field in either spelling; E2B has used both for the same body."""
    if camel in payload:
        return payload[camel]
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in camel)
    return payload.get(snake)


def _text(payload: Mapping[str, object], camel: str) -> str:
    value = _find(payload, camel)
    if not isinstance(value, str) or not value:
        raise MalformedEventError(f"the event has no {camel}")
    return value
