"""Limits per caller."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from sandkeeper.api import limits as limits_module
from sandkeeper.api.auth import Caller, Role
from sandkeeper.api.limits import CallerLimits, RateLimit
from sandkeeper.api.wire_errors import TooManyRequestsError
from sandkeeper.settings import Settings

BROWSER = Caller(Role.CLIENT, "project", "shop", token_id="t1")
OTHER = Caller(Role.CLIENT, "project", "shop", token_id="t2")


class SteppedClock:
    """A clock that moves when told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def limits(clock: SteppedClock) -> CallerLimits:
    settings = Settings(
        _env_file=None, client_requests_per_s=5, client_streams_max=2, failed_logins_max=3
    )
    return CallerLimits(settings, clock=clock)


def test_a_token_above_its_rate_is_told_when_to_come_back(
    limits: CallerLimits, clock: SteppedClock
) -> None:
    for _ in range(10):
        limits.count_request(BROWSER)
    with pytest.raises(TooManyRequestsError, match="5 requests a second") as refused:
        limits.count_request(BROWSER)
    assert refused.value.retry_after_s == 1
    limits.count_request(OTHER)
    clock.now += 1
    for _ in range(5):
        limits.count_request(BROWSER)
    with pytest.raises(TooManyRequestsError):
        limits.count_request(BROWSER)


def test_wrong_keys_of_one_address_are_refused_after_a_while(limits: CallerLimits) -> None:
    for _ in range(3):
        limits.count_failure("10.0.0.1")
    with pytest.raises(TooManyRequestsError, match="wrong key"):
        limits.count_failure("10.0.0.1")
    limits.count_failure("10.0.0.2")


def test_a_token_holds_no_more_streams_than_it_may(limits: CallerLimits) -> None:
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(limits.stream(BROWSER))
        with pytest.raises(TooManyRequestsError), limits.stream(BROWSER):
            pass
        with limits.stream(OTHER):
            pass
    with limits.stream(BROWSER):
        pass


def test_what_is_remembered_is_bounded(
    clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits_module, "ENTRIES_MAX", 10)
    rate = RateLimit(clock=clock)
    for number in range(1000):
        rate.spend(str(number), rate=1, burst=1)
        assert len(rate._free_at) <= 10
