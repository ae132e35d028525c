"""Schemas of costs. Amounts of money are decimal dollars in text, so that none is rounded twice."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sandkeeper.api.schemas.base import ApiModel, RequestModel

CostGroup = Literal["tenant", "template", "owner", "sandbox", "day"]
BudgetActionName = Literal["notify", "refuse", "pause"]


class CostAmounts(ApiModel):
    """What is paid (`cost`), its parts, and what would have been paid in addition.

    `cost` is `compute`, `pausedStorage` and `keptStorage`. `idle` (between the last use and the end
    of a run), `pools` and `unusedWarmups` are parts of `compute`. Money is in dollars, rounded to
    nine decimals.
    """

    cost: str
    compute: str
    paused_storage: str
    kept_storage: str
    idle: str
    pools: str
    unused_warmups: str
    saved_never_paused: str
    saved_timeout_only: str
    running_s: float
    paused_s: float
    idle_s: float


class CostItem(CostAmounts):
    """The costs of one tenant, template, owner, sandbox or day."""

    key: str


class PriceOut(ApiModel):
    """A price in dollars, from a day (UTC) on."""

    provider: str
    region: str
    since: date
    vcpu_second: str
    gib_second: str
    paused_gib_month: str
    kept_gib_month: str
    published_as_of: date | None


class CostReportOut(ApiModel):
    """The costs of some days in UTC, both included, the dearest first.

    `total` is the sum of all, also of those that `hasMore` says are left out. Everything that runs
    is counted up to `countedTo`, which is null while nothing runs.
    """

    by: CostGroup
    first: date
    last: date
    items: list[CostItem]
    total: CostAmounts
    has_more: bool
    counted_to: datetime | None
    prices: list[PriceOut]


class BudgetRequest(RequestModel):
    """What a tenant may cost in a calendar month (UTC). The tenant `*` is the fleet."""

    tenant: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    dollars: Annotated[Decimal, Field(ge=0, le=1_000_000_000, decimal_places=9)]
    action: BudgetActionName = "notify"


class BudgetNoticeOut(ApiModel):
    """When a share of the budget, in percent, was reached."""

    share: int
    at: datetime
    spent: str
    budget: str


class BudgetOut(ApiModel):
    """How a budget stands. `share` is a ratio; null for a budget of 0.

    `forecast` is what the month costs at its pace so far, and `spentOn` the day on which the budget
    is spent at that pace; both are null in the first day of a month.
    """

    tenant: str
    dollars: str
    action: BudgetActionName
    month: date
    spent: str
    share: float | None
    forecast: str | None
    spent_on: date | None
    notices: list[BudgetNoticeOut]


class BudgetList(ApiModel):
    items: list[BudgetOut]


class SimulatedOut(ApiModel):
    """What one idle timeout would have led to.

    `best` says that no other runs for less time and lets people wait for less. `setting` is what
    sets it for new sandboxes; empty for the policies in force and for `never`.
    """

    idle: str
    running_s: float
    cost: str
    pauses: int
    early_pauses: int
    wakes: int
    waiting_s: float
    best: bool
    setting: str


class SimulationGroup(ApiModel):
    """The outcomes for all sandboxes, or those of one tenant or template."""

    key: str
    sandboxes: int
    items: list[SimulatedOut]


class SimulationOut(ApiModel):
    """Recorded use of some days in UTC, replayed under several idle timeouts.

    `current` replays each sandbox's own policy; `realRunningS` is what the same sandboxes really
    ran. `isSample` says that there were more than 2,000 sandboxes, of which so many were replayed.
    """

    first: date
    last: date
    groups: list[SimulationGroup]
    real_running_s: float
    is_sample: bool
