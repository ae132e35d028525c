"""Monthly budgets: which notices are due, what the month will cost, and what may be paused.

A month is a calendar month in UTC. A budget that is spent refuses new sandboxes or pauses idle
ones, if it says so. It never ends one, and never pauses one that is in use.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Final

from sandkeeper.domain.decisions.idle import Pause, decide_idle
from sandkeeper.domain.policy import IdleAction
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State

FLEET: Final = "*"
"""The budget of all tenants together."""

SHARES: Final = (50, 80, 100)
"""The shares of a budget, in percent, at which a notice is due."""

SPENT_IDLE_S: Final = 60.0
"""How long a sandbox is idle before it is paused for a spent budget. Lower pauses people who think;
higher spends more.
"""

FORECAST_AFTER: Final = timedelta(days=1)
"""How much of a month must have passed before it is a base for a forecast."""


class BudgetAction(StrEnum):
    """What happens when a budget is spent, beside the notice."""

    NOTIFY = "notify"
    """Nothing."""
    REFUSE = "refuse"
    """New sandboxes are refused; those that exist go on, sleep and wake."""
    PAUSE = "pause"
    """New sandboxes are refused, and idle ones paused after a minute."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a tenant may cost in a month."""

    tenant: str
    dollars: Decimal
    action: BudgetAction = BudgetAction.NOTIFY


@dataclass(frozen=True, slots=True)
class BudgetReading:
    """How a budget stands. ``due`` are the shares that are reached and not noted yet.

    ``forecast`` is what the month costs at its pace so far, and ``spent_on`` the day on which the
    budget is spent at that pace; None where it is not, or not known.
    """

    budget: Budget
    month: date
    spent: Fraction
    forecast: Fraction | None
    spent_on: date | None
    due: tuple[int, ...]

    @property
    def is_spent(self) -> bool:
        return self.spent >= Fraction(self.budget.dollars)


def find_month(now: datetime) -> tuple[date, date]:
    """Return the first day (UTC) of the month of an instant, and of the next one."""
    first = now.astimezone(UTC).date().replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)


def decide_budget(
    budget: Budget, *, spent: Fraction, noted: Collection[int], now: datetime
) -> BudgetReading:
    """Return how a budget stands now, and which notices are due."""
    first, following = find_month(now)
    limit = Fraction(budget.dollars)
    due = tuple(share for share in SHARES if share not in noted and spent * 100 >= limit * share)
    start = datetime.combine(first, time(), UTC)
    elapsed = now - start
    forecast: Fraction | None = None
    spent_on: date | None = None
    if elapsed >= FORECAST_AFTER:
        part = Fraction(elapsed // timedelta(seconds=1), 86_400)
        forecast = spent / part * (following - first).days
        if forecast >= limit and spent > 0:
            spent_on = (start + timedelta(days=float(part * limit / spent))).date()
    return BudgetReading(budget, first, spent, forecast, spent_on, due)


def decide_budget_pause(sandbox: Sandbox, *, now: datetime) -> Pause | None:
    """Return the pause of an idle sandbox whose tenant's budget is spent; None leaves it alone.

    It is the idle decision with a short timeout. A sandbox that ends when idle is left to its own
    policy, because nothing is ended for money.
    """
    policy = sandbox.policy
    if sandbox.state is not State.RUNNING or policy.on_idle is not IdleAction.PAUSE:
        return None
    own_s = policy.idle_timeout_s
    timeout_s = SPENT_IDLE_S if own_s is None else min(own_s, SPENT_IDLE_S)
    strict = replace(policy, idle_timeout_s=timeout_s, idle_min_s=None, idle_max_s=None)
    decision = decide_idle(sandbox.evolve(policy=strict), now=now)
    if not isinstance(decision, Pause):
        return None
    return replace(decision, reason=f"the budget of the month is spent; {decision.reason}")
