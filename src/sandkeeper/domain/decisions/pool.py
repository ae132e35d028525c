"""The warm pool of a template: sandboxes that run before they are requested."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.policy import Policy

BACKOFF_S: Final = 5.0
BACKOFF_MAX_S: Final = 300.0
TARGET_MAX: Final = 1000
TEMPLATE_MAX: Final = 120
_MARK: Final = "#"

MEMBER_POLICY: Final = Policy(
    idle_timeout_s=None, lifetime_s=None, newborn_grace_s=0.0, woken_grace_s=0.0
)
"""The policy of a member. It waits for its user: it is neither idle nor too old by itself. The pool
retires it.
"""


@dataclass(frozen=True, slots=True)
class Pool:
    """The wanted size and the results. `failures` counts failures since the last success."""

    template: str
    target: int
    failures: int = 0
    retry_at: datetime | None = None
    error: str = ""
    hits: int = 0
    misses: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Return the share of claims that found a member; None before the first claim."""
        claims = self.hits + self.misses
        return None if claims == 0 else self.hits / claims


@dataclass(frozen=True, slots=True)
class Fill:
    """Create this many members."""

    count: int


@dataclass(frozen=True, slots=True)
class Backoff:
    """Create none: enough exist, a creation just failed (`until`), or too many failed (no time)."""

    reason: str
    until: datetime | None = None


def decide_fill(pool: Pool, *, members: int, failures_max: int, now: datetime) -> Fill | Backoff:
    """Return what the pool needs now. At the failure limit it stops until the pool is set again."""
    missing = pool.target - members
    if missing <= 0:
        return Backoff("there are enough")
    if pool.failures >= failures_max:
        return Backoff(
            f"{pool.failures} creations failed in a row; set the pool size again to go on"
        )
    if pool.retry_at is not None and pool.retry_at > now:
        return Backoff("the last creation failed", pool.retry_at)
    # After a failure only one creation is tried: a broken template must not cost a whole pool.
    return Fill(1 if pool.failures else missing)


def find_retry_at(failures: int, now: datetime) -> datetime:
    """Return when to try again after this many failures in a row."""
    wait_s = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** min(max(failures - 1, 0), 10))
    return now + timedelta(seconds=wait_s)


def make_member(template: str) -> Owner:
    """Return an owner for a new member: the pool itself, with a unique name."""
    return Owner(OwnerKind.POOL, f"{template}{_MARK}{secrets.token_hex(6)}")


def find_prefix(template: str) -> str:
    """Return the common prefix of the owner ids of this template's members."""
    return f"{template}{_MARK}"


def check_template(template: str) -> str:
    """Return the template; raise InvalidRequestError for a name that no template can have."""
    if not template.strip() or len(template) > TEMPLATE_MAX or not template.isprintable():
        raise InvalidRequestError(
            f"A template's name has 1 to {TEMPLATE_MAX} characters, all of them printable."
        )
    if _MARK in template:
        raise InvalidRequestError(f"A template's name has no {_MARK!r} in it.")
    return template
