"""Schemas of the fleet: summary, health, charts, bulk actions, leaks and comparison."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field, StrictBool

from sandkeeper.api.schemas.base import ApiModel, Name, RequestModel, StateName


class BulkRequest(RequestModel):
    """One action for many projects. With `dryRun` only the count and the states are returned."""

    action: Literal["pause", "wake", "kill", "verify", "extend"]
    projects: list[Name] = Field(min_length=1, max_length=500)
    dry_run: StrictBool = False


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
    action: str
    dry_run: bool
    count: int
    items: list[BulkItem]


class Threshold(ApiModel):
    """One of the health header's lights."""

    name: str
    sentence: str
    unit: Literal["ratio", "s"]
    value: float | None
    limit: float
    ok: bool
    last_ok_at: datetime | None


class HealthOut(ApiModel):
    ok: bool
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
