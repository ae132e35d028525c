"""Filters, order and pages of lists."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from urllib.parse import unquote_plus

from sandkeeper.engine.control.http import ControlRequest
from sandkeeper.engine.errors import BadRequestError
from sandkeeper.engine.sandboxes.records import EngineState, SandboxRecord

T = TypeVar("T")

PAGE_MAX = 100
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which sandboxes a list is about."""

    states: frozenset[str]
    metadata: dict[str, str]
    template: str | None
    started_after: int | None

    def holds(self, record: SandboxRecord) -> bool:
        return (
            record.state in self.states
            and all(record.metadata.get(key) == value for key, value in self.metadata.items())
            and (self.template is None or self.template in (record.template_id, record.alias))
            and (self.started_after is None or _micros(record.started_at) >= self.started_after)
        )


def parse_filter(request: ControlRequest, *, running_only: bool = False) -> Filter:
    """Read a list's query."""
    states = frozenset({EngineState.RUNNING}) if running_only else _parse_states(request)
    after = request.text("startedAfter")
    return Filter(
        states=states,
        metadata=parse_metadata(request.text("metadata") or ""),
        template=request.text("template") or None,
        started_after=None if not after else _parse_instant(after),
    )


def _parse_states(request: ControlRequest) -> frozenset[str]:
    named = ",".join(request.query.get("state", []))
    if not named:
        return frozenset(EngineState)
    states = frozenset(part.strip() for part in named.split(","))
    unknown = states - set(EngineState)
    if unknown:
        raise BadRequestError(f"state '{min(unknown)}' is not one of running, paused")
    return states


def parse_metadata(text: str) -> dict[str, str]:
    """Decode a metadata filter as E2B does: the whole once more, then each key and value."""
    pairs = {}
    for pair in unquote_plus(text).split("&") if text else []:
        parts = pair.split("=")
        if len(parts) != 2:
            raise BadRequestError("'metadata' must be key=value pairs joined by &")
        pairs[unquote_plus(parts[0])] = unquote_plus(parts[1])
    return pairs


def _micros(at: float) -> int:
    """Return an instant in the precision of the API, so that values read from it compare equal."""
    return _count_micros(datetime.fromtimestamp(at, UTC))


def _count_micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def _parse_instant(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequestError("'startedAfter' must be an RFC 3339 instant") from None
    if moment.tzinfo is None:
        raise BadRequestError("'startedAfter' needs a time zone")
    return _count_micros(moment)


def paginate(
    items: Sequence[T],
    request: ControlRequest,
    key: Callable[[T], tuple[float, str]],
    *,
    default: int = PAGE_MAX,
) -> tuple[list[T], dict[str, str]]:
    """Sort by time (newest first by default), and return one page and the token of the next.

    The token holds the last item's place, not a number, so that items which come or go between two
    pages are neither shown twice nor hidden.
    """
    order = request.text("order") or "desc"
    if order not in ("asc", "desc"):
        raise BadRequestError("'order' must be asc or desc")
    limit = request.number("limit", default, 1, PAGE_MAX)
    sign = 1 if order == "asc" else -1

    def place(item: T) -> tuple[float, str]:
        at, name = key(item)
        return sign * at, name

    ordered = sorted(items, key=place)
    token = request.text("nextToken")
    if token:
        last = _parse_token(token)
        ordered = [item for item in ordered if place(item) > (sign * last[0], last[1])]
    page = ordered[:limit]
    headers = {}
    if len(ordered) > limit:
        at, name = key(page[-1])
        headers["x-next-token"] = base64.urlsafe_b64encode(f"{at!r}__{name}".encode()).decode()
    return page, headers


def _parse_token(token: str) -> tuple[float, str]:
    try:
        at, _, name = base64.urlsafe_b64decode(token).decode().partition("__")
        return float(at), name
    except (ValueError, binascii.Error):
        raise BadRequestError("'nextToken' is not valid") from None
