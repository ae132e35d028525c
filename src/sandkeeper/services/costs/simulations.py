"""What another idle timeout would have cost: recorded use, replayed under several policies."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Final, Literal

from sandkeeper.domain.costs.activity_spans import list_instants
from sandkeeper.domain.costs.metering import make_account
from sandkeeper.domain.costs.prices import compute_rate, find_price
from sandkeeper.domain.decisions.simulation import Replayed, replay
from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.costs.reports import CostReports
from sandkeeper.services.default_policy import make_default_policy
from sandkeeper.services.deps import Deps
from sandkeeper.services.monitoring.retention import DETAILS_KEPT
from sandkeeper.settings import Settings
from sandkeeper.store.costs.history import RecordedUse
from sandkeeper.store.costs.usage import UsageFilter

CURRENT: Final = "current"
ADAPTIVE: Final = "adaptive"
NEVER: Final = "never"
OPTIONS_MAX: Final = 12
SANDBOXES_MAX: Final = 2000
"""Sandboxes that are replayed. More take minutes of a processor; their ids are random, so that
fewer are a fair sample.
"""
SHORTEST_S: Final = 30.0
"""The shortest timeout that can be replayed: shorter gaps in the use are not recorded."""
USUAL_WAKE_S: Final = 1.0
"""How long a wake takes where none was measured."""

SplitBy = Literal["", "tenant", "template"]


@dataclass(frozen=True, slots=True)
class Option:
    """One policy: its name, what sets it, and the policy of a sandbox under it."""

    name: str
    command: str
    change: Mapping[str, float | None] | None

    def apply(self, policy: Policy) -> Policy:
        return policy if self.change is None else replace(policy, **self.change)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one policy would have led to. ``is_best``: no other is better in cost and waiting."""

    option: Option
    replayed: Replayed
    dollars: Fraction
    waiting_s: float
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class Simulation:
    """The outcomes of all options, of all sandboxes or of one tenant or template."""

    key: str
    sandboxes: int
    outcomes: list[Outcome] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The simulations; ``real_running_s`` is what the same sandboxes really ran in these days."""

    first: date
    last: date
    simulations: list[Simulation]
    real_running_s: float
    is_sample: bool


class Simulations:
    """Replay recorded use."""

    def __init__(self, deps: Deps, reports: CostReports) -> None:
        self._store = deps.store
        self._clock = deps.clock
        self._settings = deps.settings
        self._reports = reports

    async def run(self, idle: Sequence[str], *, days: int, by: SplitBy = "") -> SimulationReport:
        """Return what each idle timeout would have led to in the last days."""
        if not 1 <= days <= DETAILS_KEPT.days:
            raise InvalidRequestError(f"Use is recorded for 1 to {DETAILS_KEPT.days} days.")
        options = [Option(CURRENT, "", None)]
        options += [parse_option(one, self._settings) for one in dict.fromkeys(idle)]
        if len(options) > OPTIONS_MAX:
            raise InvalidRequestError(f"At most {OPTIONS_MAX - 1} timeouts can be compared.")
        now = self._clock()
        last = now.astimezone(UTC).date()
        first = last - timedelta(days=days - 1)
        history = self._store.activity_history
        used = await history.list_use(first, last, limit=SANDBOXES_MAX + 1)
        is_sample, used = len(used) > SANDBOXES_MAX, used[:SANDBOXES_MAX]
        ids = [one.sandbox_id for one in used]
        known = await history.find_sandboxes(ids)
        wake_s = await history.measure_wake_s(now - timedelta(days=days)) or USUAL_WAKE_S
        rates = {one.sandbox_id: self._find_rate(known.get(one.sandbox_id), last) for one in used}
        default = make_default_policy(self._settings)
        policies = {one: known[one].policy if one in known else default for one in ids}
        replayed = await asyncio.to_thread(_replay_all, used, options, policies, now)
        real = await self._store.costs.sum_usage("sandbox", UsageFilter(first, last), only=ids)
        groups: dict[str, list[RecordedUse]] = defaultdict(list)
        for one in used:
            groups[getattr(one, by) if by else ""].append(one)
        return SimulationReport(
            first=first,
            last=last,
            simulations=[
                _judge(key, members, options, replayed, rates, wake_s)
                for key, members in sorted(groups.items())
            ],
            real_running_s=sum(one.usage.running_ms for one in real) / 1000,
            is_sample=is_sample,
        )

    def _find_rate(self, sandbox: Sandbox | None, day: date) -> Fraction:
        if sandbox is None:
            price = find_price(self._reports.prices, provider="e2b", region="", day=day)
            return compute_rate(price, vcpus=0, memory_mb=0)
        account = make_account(sandbox)
        price = find_price(
            self._reports.prices, provider=account.provider, region=account.region, day=day
        )
        return compute_rate(price, vcpus=account.vcpus, memory_mb=account.memory_mb)


def parse_option(text: str, settings: Settings) -> Option:
    """Return the policy that a word names: seconds, `adaptive` or `never`."""
    if text == ADAPTIVE:
        bounds = {
            "idle_min_s": settings.idle_timeout_min_s,
            "idle_max_s": settings.idle_timeout_max_s,
        }
        return Option(text, "SANDKEEPER_IDLE=adaptive", bounds)
    fixed: dict[str, float | None] = {"idle_min_s": None, "idle_max_s": None}
    if text == NEVER:
        return Option(text, "", {**fixed, "idle_timeout_s": None})
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_S <= seconds <= 86_400:
        raise InvalidRequestError(
            f"{text[:40]!r} is no idle timeout: give seconds from {SHORTEST_S:.0f} to 86400, "
            "'adaptive' or 'never'."
        )
    command = f"SANDKEEPER_IDLE_TIMEOUT_S={seconds:g}"
    return Option(f"{seconds:g}", command, {**fixed, "idle_timeout_s": seconds})


def _replay_all(
    used: Sequence[RecordedUse],
    options: Sequence[Option],
    policies: Mapping[str, Policy],
    until: datetime,
) -> dict[tuple[str, str], Replayed]:
    found: dict[tuple[str, str], Replayed] = {}
    for one in used:
        uses = list_instants(one.days)
        for option in options:
            policy = option.apply(policies[one.sandbox_id])
            found[one.sandbox_id, option.name] = replay(uses, policy, until=until)
    return found


def _judge(
    key: str,
    members: Sequence[RecordedUse],
    options: Sequence[Option],
    replayed: Mapping[tuple[str, str], Replayed],
    rates: Mapping[str, Fraction],
    wake_s: float,
) -> Simulation:
    outcomes = []
    for option in options:
        parts = {one.sandbox_id: replayed[one.sandbox_id, option.name] for one in members}
        total = sum(parts.values(), Replayed())
        dollars = sum(
            (rates[one] * Fraction(part.running_s) for one, part in parts.items()), Fraction(0)
        )
        outcomes.append(Outcome(option, total, dollars, total.wakes * wake_s))
    return Simulation(
        key,
        len(members),
        [
            replace(one, is_best=not any(_beats(other, one) for other in outcomes))
            for one in outcomes
        ],
    )


def _beats(other: Outcome, one: Outcome) -> bool:
    """Return True if the other costs and keeps waiting no more, and one of the two less.

    The running time stands for the cost, which may be nothing.
    """
    theirs = (other.replayed.running_s, other.waiting_s)
    ours = (one.replayed.running_s, one.waiting_s)
    return theirs != ours and all(a <= b for a, b in zip(theirs, ours, strict=True))
