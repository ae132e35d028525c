"""What a tenant may have: how much, what is used of it, and when a used-up part is free again.

Hours, days and months are those of UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Final

from sandkeeper.domain.errors import QuotaExceededError

EVERY_TENANT: Final = "*"
"""Names the quota of each tenant that has none of its own."""

WARN_AT: Final = 0.8
"""From which part of a quota on its use is announced."""


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """The limits of one tenant; None is no limit. 0 lets it have none."""

    running: int | None = None
    """Sandboxes that run at a time."""
    kept: int | None = None
    """Sandboxes in all, running or asleep."""
    creations_hour: int | None = None
    creations_day: int | None = None
    running_hours_month: int | None = None
    kept_bytes: int | None = None
    """Bytes of the newest saved files."""

    @property
    def is_none(self) -> bool:
        """Return True when nothing is limited."""
        return all(getattr(self, item.name) is None for item in fields(self))


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """How much of each a tenant uses."""

    running: int = 0
    kept: int = 0
    creations_hour: int = 0
    creations_day: int = 0
    running_hours_month: float = 0.0
    kept_bytes: int = 0


QUOTA_NAMES: Final = tuple(item.name for item in fields(QuotaLimits))

ON_START: Final = ("running", "running_hours_month")
"""What a start needs; a creation needs all."""

_WORDS: Final = {
    "running": "sandboxes running",
    "kept": "sandboxes kept",
    "creations_hour": "creations this hour",
    "creations_day": "creations today (UTC)",
    "running_hours_month": "running hours this month (UTC)",
    "kept_bytes": "bytes of saved files",
}


def check_quota(
    tenant: str,
    limits: QuotaLimits,
    usage: QuotaUsage,
    *,
    names: Sequence[str] = QUOTA_NAMES,
    now: datetime,
) -> None:
    """Raise QuotaExceededError if one of these is used up."""
    for name in names:
        limit, used = getattr(limits, name), getattr(usage, name)
        if limit is None or used < limit:
            continue
        resets_at = find_reset(name, now)
        after = "" if resets_at is None else f" It is reset at {resets_at:%Y-%m-%d %H:%M} UTC."
        raise QuotaExceededError(
            f"The tenant {tenant!r} has {used:g} of {limit} {_WORDS[name]}; 0 are left.{after}",
            quota=name,
            limit=limit,
            used=used,
            resets_at=resets_at,
            retry_after_s=60 if resets_at is None else (resets_at - now).total_seconds(),
        )


def list_warnings(limits: QuotaLimits, usage: QuotaUsage) -> list[str]:
    """Return what is nearly used up, as ``name used/limit``."""
    found: list[str] = []
    for name in QUOTA_NAMES:
        limit, used = getattr(limits, name), getattr(usage, name)
        if limit is not None and used >= WARN_AT * limit:
            found.append(f"{name} {used:g}/{limit}")
    return found


def find_reset(name: str, now: datetime) -> datetime | None:
    """Return when a used-up quota is full again; None if something has to stop or be removed."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    match name:
        case "creations_hour":
            return now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        case "creations_day":
            return midnight + timedelta(days=1)
        case "running_hours_month":
            return (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
        case _:
            return None
