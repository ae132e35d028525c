"""The HTTP reply behind an error of the official SDK.

The SDK turns a reply into an exception and drops the reply: `Retry-After` is lost, and an error
page that is not JSON ends as a parser's error with no status at all. The reply is still a local
variable of the frames that raised, so it is read from there. If a later SDK hides it better,
callers use the exception's own class: less precise, still correct.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx
from e2b.api.client.types import Response

#: The longest quiet time that a reply can ask for. Longer would stop all calls on one wrong number;
#: after this time the provider is asked again, and may repeat it.
RETRY_AFTER_MAX_S = 3600.0


class UnexpectedReplyError(Exception):
    """A reply that we read ourselves and that is not a success."""

    def __init__(self, reply: HttpReply) -> None:
        super().__init__(f"{reply.status}: {reply.text[:200]}")
        self.reply = reply


@dataclass(frozen=True, slots=True)
class HttpReply:
    """The part of an HTTP reply that decides what an error means."""

    status: int
    text: str
    retry_after_s: float | None

    @property
    def has_own_words(self) -> bool:
        """Return True for the provider's own error format; a proxy's page does not have it."""
        try:
            body = json.loads(self.text)
        except ValueError:
            return False
        return isinstance(body, dict) and {"code", "message"} <= body.keys()

    @classmethod
    def of(cls, response: httpx.Response | Response[object]) -> HttpReply:
        try:
            text = bytes(response.content).decode(errors="replace")
        except httpx.StreamError:  # The connection was cut before the end of the body.
            text = ""
        return cls(
            status=int(response.status_code),
            text=text,
            retry_after_s=parse_retry_after(response.headers, now=datetime.now(UTC)),
        )


def find_reply(error: BaseException) -> HttpReply | None:
    """Return the reply that led to this error; None if there was none or it is not visible.

    Never raise: it runs while an error is handled and would hide that error.
    """
    if isinstance(error, UnexpectedReplyError):
        return error.reply
    try:
        return _find_in_frames(error)
    except Exception:  # noqa: BLE001  Any local variable of a library may fail when it is looked at.
        return None


def _find_in_frames(error: BaseException) -> HttpReply | None:
    found: httpx.Response | Response[object] | None = None
    trace = error.__traceback__
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            if isinstance(value, httpx.Response | Response):
                found = value
        trace = trace.tb_next
    return None if found is None else HttpReply.of(found)


def parse_retry_after(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """Return the seconds that `Retry-After` names, as a number or a date; None if it names none.

    A date is relative to the reply's own `Date`, and only without one to our clock.
    """
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdecimal():
        return min(float(value), RETRY_AFTER_MAX_S)
    moment = parse_http_date(value)
    if moment is None:
        return None
    sent_at = parse_http_date(headers.get("date", "")) or now
    return min(max(0.0, (moment - sent_at).total_seconds()), RETRY_AFTER_MAX_S)


def parse_http_date(value: str) -> datetime | None:
    """Return the instant that a header names; None if it is not a date."""
    try:
        moment = parsedate_to_datetime(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
