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
        return cls(
            status=int(response.status_code),
            text=bytes(response.content).decode(errors="replace"),
            retry_after_s=parse_retry_after(response.headers, now=datetime.now(UTC)),
        )


def find_reply(error: BaseException) -> HttpReply | None:
    """Return the reply that led to this error; None if there was none or it is not visible."""
    if isinstance(error, UnexpectedReplyError):
        return error.reply
    found: httpx.Response | Response[object] | None = None
    trace = error.__traceback__
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            if isinstance(value, httpx.Response | Response):
                found = value
        trace = trace.tb_next
    return None if found is None else HttpReply.of(found)


def parse_retry_after(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """Return the seconds that `Retry-After` names, as a number or a date; None if it names none."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdecimal():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())
