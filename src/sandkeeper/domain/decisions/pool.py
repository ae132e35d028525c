"""The warm pool of a template: sandboxes that run before anybody asks for one."""

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
"""A member waits for its user: neither idle nor old by itself. The pool retires it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The wish, and how well it goes. `failures` counts those since the last success."""

    template: str
    target: int
    failures: int = 0
    retry_at: datetime | None = None
    error: str = ""
    hits: int = 0
    misses: int = 0

    @property
    def hit_rate(self) -> float | None:
        """The share of claims that found a member; None before the first."""
        claims = self.hits + self.misses
        return None if claims == 0 else self.hits / claims


@dataclass(frozen=True, slots=True)
class Fill:
    """Make so many."""

    count: int


@dataclass(frozen=True, slots=True)
class Backoff:
    """Make none: there are enough, or it failed not long ago (`until`), or too often (no time)."""

    reason: str
    until: datetime | None = None


def decide_fill(pool: Pool, *, members: int, failures_max: int, now: datetime) -> Fill | Backoff:
    """What the pool needs now. At the limit of failures it stops until somebody sets it anew."""
    missing = pool.target - members
    if missing <= 0:
        return Backoff("there are enough")
    if pool.failures >= failures_max:
        return Backoff(f"{pool.failures} creations failed in a row; set the pool anew to go on")
    if pool.retry_at is not None and pool.retry_at > now:
        return Backoff("the last creation failed", pool.retry_at)
    # After a failure one alone tries: a broken template must not cost a whole pool's worth.
    return Fill(1 if pool.failures else missing)


def find_retry_at(failures: int, now: datetime) -> datetime:
    """When to try again after so many failures in a row."""
    wait_s = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** min(max(failures - 1, 0), 10))
    return now + timedelta(seconds=wait_s)


def make_member(template: str) -> Owner:
    """An owner for a new member: the pool itself, under a name of its own."""
    return Owner(OwnerKind.POOL, f"{template}{_MARK}{secrets.token_hex(6)}")


def find_prefix(template: str) -> str:
    """How the owner ids of all members of this template begin."""
    return f"{template}{_MARK}"


def check_template(template: str) -> str:
    """The template, or InvalidRequestError for what no template can be called."""
    if not template.strip() or len(template) > TEMPLATE_MAX or not template.isprintable():
        raise InvalidRequestError(
            f"A template's name has 1 to {TEMPLATE_MAX} characters, all of them printable."
        )
    if _MARK in template:
        raise InvalidRequestError(f"A template's name has no {_MARK!r} in it.")
    return template
