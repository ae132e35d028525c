"""Schemas of the process itself: switches, tasks, readiness and the state texts."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from sandkeeper.api.schemas.base import ApiModel, RequestModel, StateName
from sandkeeper.api.schemas.sandboxes import StateTexts

SwitchName = Literal["enforcer", "reconciler", "catch_up", "webhooks", "sse", "legacy_verify"]


class SwitchesRequest(RequestModel):
    """Switches to turn, by the names they are shown under; those not named stay."""

    enforcer: bool | None = None
    reconciler: bool | None = None
    catch_up: bool | None = Field(default=None, alias="catch_up")
    webhooks: bool | None = None
    sse: bool | None = None
    legacy_verify: bool | None = Field(default=None, alias="legacy_verify")


class TaskState(ApiModel):
    """A background task, as the scheduler sees it."""

    name: str
    enabled: bool
    period_s: float
    running_since: datetime | None
    runs: int
    failures: int
    last_run_at: datetime | None
    last_duration_s: float | None
    last_error: str | None
    last_success_at: datetime | None
    last_detail: dict[str, object]


class Readiness(ApiModel):
    """Whether this process can do its work; a provider that is down makes it degraded, not down.

    Without a key there is only the status, unless the server listens on loopback and is addressed
    by a name of this machine or by `public_url`, or `public_metrics` is set.
    """

    status: Literal["ready", "degraded", "unready"]
    version: str | None = None
    database: str | None = None
    provider: str | None = None
    clock: str | None = None
    switches: dict[SwitchName, bool] | None = None
    tasks: list[TaskState] | None = None
    reasons: list[str] | None = None


class SwitchesOut(ApiModel):
    switches: dict[SwitchName, bool]


class RunReport(ApiModel):
    """One run of a background task that an operator asked for."""

    task: str
    ok: bool
    duration_s: float
    error: str | None
    detail: dict[str, object]


class Alive(ApiModel):
    status: Literal["ok"]


class PresentationOut(ApiModel):
    """The words of every state, and those shown while a wake is under way.

    `words` has one word for each state, for those who run sandboxes.
    """

    states: dict[StateName, StateTexts]
    waking: StateTexts
    job: dict[str, str]
    words: dict[StateName, str]
