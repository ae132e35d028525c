"""Schemas of the fleet: summary, health, charts, bulk actions, leaks and comparison."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, StringConstraints, model_validator

from sandkeeper.api.schemas.base import ApiModel, Name, RequestModel, StateName


class FleetFilter(RequestModel):
    """The filters of `GET /api/sandboxes`."""

    state: Annotated[str, StringConstraints(max_length=100)] = ""
    owner: Annotated[str, StringConstraints(max_length=300)] = ""
    search: Annotated[str, StringConstraints(max_length=200)] = ""
    region: Annotated[str, StringConstraints(max_length=64)] = ""
    tenant: Annotated[str, StringConstraints(max_length=64)] = ""
    overdue: StrictBool = False


class BulkRequest(RequestModel):
    """One action for many projects, named, or found by a filter, at most 100 of those at a time.

    What a filter finds comes in pages: repeat the request with the answer's `nextCursor`. With
    `dryRun` only the count and the states are returned.
    """

    action: Literal["pause", "wake", "kill", "verify", "extend"]
    projects: list[Name] = Field(default_factory=list, max_length=500)
    filter: FleetFilter | None = None
    cursor: Annotated[str, StringConstraints(max_length=500)] | None = None
    dry_run: StrictBool = False

    @model_validator(mode="after")
    def _check_targets(self) -> Self:
        if bool(self.projects) is (self.filter is not None):
            raise ValueError("name the projects, or give a filter")
        return self


class ReconcileRequest(RequestModel):
    """With `dryRun` differences are reported, and nothing is written or removed."""

    dry_run: StrictBool = False


class BulkItem(ApiModel):
    project: str
    ok: bool
    status: StateName | None
    code: str | None
    detail: str | None


class BulkResult(ApiModel):
    """`count` is the number of items here, `matched` what was named or found, at most 10,000."""

    action: str
    dry_run: bool
    count: int
    matched: int
    items: list[BulkItem]
    next_cursor: str | None


class Threshold(ApiModel):
    """One of the health header's lights."""

    name: str
    sentence: str
    unit: Literal["ratio", "s"]
    value: float | None
    limit: float
    ok: bool
    last_ok_at: datetime | None


class HealthPart(ApiModel):
    """One part of the keeper: how it does, what it is for, and what to do when it is bad.

    `off` is one that was switched off or is not used. `since` is when a fault began, if known.
    """

    name: str
    title: str
    state: Literal["ok", "bad", "off"]
    finding: str
    meaning: str
    action: str
    since: datetime | None


class HealthOut(ApiModel):
    """`items` are the readings with a limit, `parts` everything that the health page shows."""

    ok: bool
    parts: list[HealthPart]
    items: list[Threshold]


class FleetSummary(ApiModel):
    """The fleet in numbers."""

    total: int
    states: dict[StateName, int]
    stale: int
    overdue: int
    health: HealthOut
    as_of: datetime


class Series(ApiModel):
    """One line of a chart: `points` are [instant, value] pairs in order."""

    name: str
    points: list[tuple[datetime, float]]


class Trend(ApiModel):
    """One chart with its title and the sentence that reads it aloud."""

    name: str
    title: str
    sentence: str
    unit: str
    series: list[Series]


class TrendsOut(ApiModel):
    since: datetime
    step_s: int
    charts: list[Trend]


class LeakOut(ApiModel):
    """An instance that is no record's present one: a `leak` is paused and removed a day later.

    An `unowned` one is paused and waits for a decision; a `foreign` one is left alone.
    """

    instance_id: str
    provider: str
    region: str | None
    kind: Literal["leak", "unowned", "foreign"]
    owner: str | None
    first_seen_at: datetime
    last_seen_at: datetime
    sightings: int
    reason: str
    paused_at: datetime | None
    removed_at: datetime | None
    removed_by: str | None


class LeakPage(ApiModel):
    items: list[LeakOut]


class CorrectionOut(ApiModel):
    """One difference between a record and the provider."""

    kind: str
    instance_id: str
    sandbox_id: str | None
    ours: str
    theirs: str


class ReconcileResult(ApiModel):
    """What a comparison found, and, unless it was dry, corrected."""

    dry_run: bool
    complete: bool
    counts: dict[str, int]
    corrections: list[CorrectionOut]
