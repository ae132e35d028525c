"""What usage costs: a price table by provider, region and day, and exact sums of money.

Amounts are fractions of a dollar and exact, so that the sums of any split equal the whole. They are
rounded to a billionth of a dollar only where they are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final

from sandkeeper.domain.costs.metering import UsageAmounts

MONTH_S: Final = 30 * 86_400
"""The seconds of the month in prices of storage."""

DEFAULT_VCPUS: Final = 2
DEFAULT_MEMORY_MB: Final = 512
"""The size of E2B's default template, for sandboxes whose size was never told."""

ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class Price:
    """What one provider charges from a day on, in dollars.

    ``vcpu_s`` and ``gib_s`` are for a virtual processor and a GiB of memory while running, for one
    second; ``paused_gib_month`` for a GiB of memory of a paused sandbox and ``kept_gib_month`` for
    a GiB of saved files, for 30 days. ``provider`` and ``region`` may be ``*``.
    """

    provider: str
    since: date
    vcpu_s: Decimal = Decimal(0)
    gib_s: Decimal = Decimal(0)
    paused_gib_month: Decimal = Decimal(0)
    kept_gib_month: Decimal = Decimal(0)
    region: str = ANY


PUBLISHED: Final = (
    Price("e2b", date(2023, 1, 1), vcpu_s=Decimal("0.000014"), gib_s=Decimal("0.0000045")),
)
"""E2B's prices as published on 2026-08-06 (https://e2b.dev/docs/faq/calculate-sandbox-price): its
disk is included, and paused sandboxes are not billed. The local engine has no price.
"""
PUBLISHED_AS_OF: Final = date(2026, 8, 6)


@dataclass(frozen=True, slots=True)
class Cost:
    """Money, exact, in dollars.

    ``total`` is what is paid: ``compute``, ``paused`` and ``kept``. ``idle``, ``pool`` and
    ``unused`` are parts of ``compute``. The savings are what would have been paid in addition.
    """

    compute: Fraction = Fraction(0)
    paused: Fraction = Fraction(0)
    kept: Fraction = Fraction(0)
    idle: Fraction = Fraction(0)
    pool: Fraction = Fraction(0)
    unused: Fraction = Fraction(0)
    saved_never_paused: Fraction = Fraction(0)
    saved_timeout_only: Fraction = Fraction(0)

    @property
    def total(self) -> Fraction:
        return self.compute + self.paused + self.kept

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(Cost)))


def compute_rate(price: Price, *, vcpus: int, memory_mb: int) -> Fraction:
    """Return what a second of running costs at this size."""
    gib = Fraction(memory_mb or DEFAULT_MEMORY_MB, 1024)
    return (vcpus or DEFAULT_VCPUS) * Fraction(price.vcpu_s) + gib * Fraction(price.gib_s)


def compute_cost(
    usage: UsageAmounts, price: Price, *, vcpus: int, memory_mb: int, is_pool: bool = False
) -> Cost:
    """Return what this usage of sandboxes of one size costs."""
    rate_ms = compute_rate(price, vcpus=vcpus, memory_mb=memory_mb) / 1000
    gib = Fraction(memory_mb or DEFAULT_MEMORY_MB, 1024)
    month_ms = MONTH_S * 1000
    sleeping_ms = gib * Fraction(price.paused_gib_month) / month_ms
    compute = usage.running_ms * rate_ms
    # Asleep, the memory is paid for where it is kept; running on instead would save that.
    saved_ms = rate_ms - sleeping_ms
    return Cost(
        compute=compute,
        paused=usage.paused_ms * sleeping_ms,
        kept=Fraction(usage.kept_mib_ms, 1024) * Fraction(price.kept_gib_month) / month_ms,
        idle=usage.idle_ms * rate_ms,
        pool=compute if is_pool else Fraction(0),
        unused=usage.unused_ms * rate_ms,
        saved_never_paused=usage.paused_ms * saved_ms,
        saved_timeout_only=usage.timeout_ms * saved_ms,
    )


def find_price(prices: Sequence[Price], *, provider: str, region: str, day: date) -> Price:
    """Return the price in force: the newest of the most exact ones; nothing if there is none.

    Own prices come after the published ones, and win if they begin on the same day. A provider's
    own entry is more exact than ``*``, and a region's more than a provider's.
    """
    fitting = [
        one
        for one in prices
        if one.provider in (ANY, provider) and one.region in (ANY, region) and one.since <= day
    ]
    if not fitting:
        return Price(provider, day)
    best = max(
        enumerate(fitting),
        key=lambda item: (
            item[1].provider != ANY,
            item[1].region != ANY,
            item[1].since,
            item[0],
        ),
    )
    return best[1]


def split_by_price(prices: Sequence[Price], first: date, last: date) -> Iterator[tuple[date, date]]:
    """Yield spans of days, both included, in each of which no price changes."""
    changes = sorted({one.since for one in prices if first < one.since <= last})
    begin = first
    for change in changes:
        yield begin, change - timedelta(days=1)
        begin = change
    yield begin, last


def format_dollars(amount: Fraction) -> str:
    """Format an amount in dollars with nine decimals, rounded half to even."""
    nanos = round(amount * 10**9)
    sign = "-" if nanos < 0 else ""
    whole, rest = divmod(abs(nanos), 10**9)
    return f"{sign}{whole}.{rest:09d}"
