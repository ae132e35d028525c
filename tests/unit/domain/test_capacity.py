"""Who gets a slot, in which order, and what may make room."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from sandkeeper.domain.decisions.capacity import (
    Limits,
    Place,
    SlotUsage,
    Waiter,
    average_grant_ms,
    choose_victims,
    decide_admission,
    estimate_wait_s,
    find_use,
    order_fairly,
)
from sandkeeper.domain.decisions.priority import Overflow, Priority
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.domain.work import Work
from support.records import T0, at, record

NOW = at(1000)


def waiter(
    key: str,
    *,
    tenant: str = "a",
    priority: Priority = Priority.PERSON,
    template: str = "base",
    since: datetime = T0,
) -> Waiter:
    place = Place("e2b", "")
    return Waiter(key, key, 1, place, template, tenant, priority, Overflow.WAIT, since)


def usage(**of_tenant: int) -> SlotUsage:
    found = SlotUsage()
    for tenant, count in of_tenant.items():
        found.add("base", tenant, count)
    return found


def keys(waiters: list[Waiter]) -> str:
    return " ".join(one.key for one in waiters)


def test_the_most_urgent_is_first_whenever_it_came() -> None:
    line = [
        waiter(priority.value, priority=priority, since=at(-rank))
        for rank, priority in enumerate(Priority)
    ]
    assert keys(order_fairly(line, usage())) == "person session job pool warm_up"


def test_tenants_take_turns_and_the_one_with_fewer_slots_begins() -> None:
    line = [waiter(f"a{n}", tenant="a", since=at(n)) for n in range(3)]
    line += [waiter(f"b{n}", tenant="b", since=at(9 + n)) for n in range(3)]
    assert keys(order_fairly(line, usage())) == "a0 b0 a1 b1 a2 b2"
    assert keys(order_fairly(line, usage(a=2))) == "b0 b1 a0 b2 a1 a2"


def test_one_whose_template_is_full_lets_those_behind_it_pass() -> None:
    line = [waiter("big", template="desktop"), waiter("small", since=at(1))]
    decided = decide_admission(line, usage(a=3), Limits(5, {"desktop": 0}))
    assert [one.key for one in decided.granted] == ["small"]
    assert [one.key for one in decided.waiting] == ["big"]


@pytest.mark.parametrize("limit", [0, 1, 49, 50])
def test_never_more_than_the_limit_and_no_tenant_starves(limit: int) -> None:
    line = [waiter(f"{n}", tenant=f"t{n % 7}", since=at(n)) for n in range(500)]
    taken = usage(t0=20, t1=5)
    before = taken.total
    decided = decide_admission(line, taken, Limits(limit))
    assert before + len(decided.granted) == max(before, limit)
    assert len(decided.granted) + len(decided.waiting) == 500
    if limit == 50:
        assert {one.tenant for one in decided.granted} == {f"t{n}" for n in range(2, 7)}


def running(**fields: object) -> Sandbox:
    return record(State.RUNNING, **fields)


@pytest.mark.parametrize(
    ("sandbox", "why"),
    [
        (running(), None),
        (running(last_active_at=at(995)), "it was used a moment ago"),
        (running(run_started_at=at(995)), "it was used a moment ago"),
        (running(passive_at=at(995)), "a person looks at it"),
        (running(leased_until=at(1001)), "it is leased"),
        (running(work=Work(at(990), busy_at=at(990))), "a command runs in it"),
        (record(State.PAUSED), "it is PAUSED"),
        (running(warmed_at=at(999), run_started_at=at(999)), None),
    ],
)
def test_what_is_in_use_never_makes_room(sandbox: Sandbox, why: str | None) -> None:
    assert find_use(sandbox, now=NOW) == why


def test_spare_ones_make_room_first_and_then_the_longest_unused() -> None:
    pooled = running(id="pool", owner=Owner.parse("pool:base:1"), run_started_at=at(999))
    old, older = (running(id=str(n), run_started_at=at(n)) for n in (9, 5))
    chosen = choose_victims([old, older, pooled], count=2, now=NOW)
    assert [one.id for one in chosen] == ["pool", "5"]


def test_the_wait_is_estimated_from_what_was_measured() -> None:
    assert estimate_wait_s(3, None) is None
    first = average_grant_ms(None, timedelta(seconds=20), 2)
    assert first == 10_000
    assert estimate_wait_s(3, average_grant_ms(first, timedelta(seconds=2), 1)) == 22.8
