"""What a tenant may have, and when a used-up quota is full again."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sandkeeper.domain.decisions.quotas import (
    QuotaLimits,
    QuotaUsage,
    check_quota,
    find_reset,
    list_warnings,
)
from sandkeeper.domain.errors import QuotaExceededError

NOW = datetime(2027, 12, 31, 23, 59, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "resets_at"),
    [
        ("creations_hour", datetime(2028, 1, 1, tzinfo=UTC)),
        ("creations_day", datetime(2028, 1, 1, tzinfo=UTC)),
        ("running_hours_month", datetime(2028, 1, 1, tzinfo=UTC)),
        ("running", None),
        ("kept_bytes", None),
    ],
)
def test_a_quota_is_reset_at_the_end_of_its_hour_day_or_month(
    name: str, resets_at: datetime | None
) -> None:
    assert find_reset(name, NOW) == resets_at


def test_a_used_up_quota_says_what_is_left_and_when_it_is_reset() -> None:
    limits, usage = QuotaLimits(creations_day=5), QuotaUsage(creations_day=5)
    with pytest.raises(QuotaExceededError, match=r"0 are left.*2028-01-01") as refused:
        check_quota("acme", limits, usage, now=NOW)
    assert refused.value.retry_after_s == 30
    check_quota("acme", limits, usage, names=("running",), now=NOW)


def test_a_quota_of_none_allows_none_and_no_quota_allows_all() -> None:
    with pytest.raises(QuotaExceededError):
        check_quota("acme", QuotaLimits(kept=0), QuotaUsage(), now=NOW)
    check_quota("acme", QuotaLimits(), QuotaUsage(kept=10**9), now=NOW)


def test_what_is_nearly_used_up_is_announced() -> None:
    limits = QuotaLimits(running=10, kept=10)
    assert list_warnings(limits, QuotaUsage(running=8, kept=7)) == ["running 8/10"]
