"""The shapes on the wire: camelCase JSON, instants as ISO 8601 in UTC, durations in milliseconds.

`Status` is the one picture of a sandbox: the status route, the list, the streams and the answers to
every action carry it, so a client needs one reducer. A client keeps the answer with the greatest
`version` and drops the others.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from sandkeeper.api.schemas.base import ApiModel, ReceiptOut, RequestModel

StateName = Literal["STARTING", "RUNNING", "PAUSED", "KILLED", "EXPIRED", "TERMINATED", "UNKNOWN"]
BadgeName = Literal["green", "blue", "amber", "red", "orange", "gray", "yellow"]
ActivityName = Literal["intent", "work", "passive"]
RoleName = Literal["operator", "viewer", "client"]
SwitchName = Literal["enforcer", "reconciler", "catch_up", "webhooks", "sse", "legacy_verify"]
Text = Annotated[str, StringConstraints(max_length=4096)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
RegionNames = Annotated[str, StringConstraints(max_length=500, pattern=r"^[\w.-]+(,[\w.-]+)*$")]
"""One region, or several with commas, the nearest first."""


# What callers send.


class PolicyRequest(RequestModel):
    """A sandbox's own policy; what is not given keeps the setting's default.

    With `idle` "adaptive" the idle timeout is learned between the two bounds.
    """

    idle: Literal["fixed", "adaptive"] | None = None
    idle_timeout_ms: int | None = Field(default=None, ge=1000, le=30 * 86_400_000)
    idle_timeout_min_ms: int | None = Field(default=None, ge=1000, le=30 * 86_400_000)
    idle_timeout_max_ms: int | None = Field(default=None, ge=1000, le=30 * 86_400_000)
    lifecycle_timeout_ms: int | None = Field(default=None, ge=1000, le=86_400_000)
    extend_while_in_use: bool | None = None


class CreateSandboxRequest(RequestModel):
    """What a project's sandbox should be, used when it is created.

    `region` may name several with commas, the nearest first: the first one that is not out of order
    is taken.
    """

    template: Annotated[str, StringConstraints(min_length=1, max_length=200)] = "base"
    env: dict[Name, Text] = Field(default_factory=dict, max_length=200)
    metadata: dict[Name, Text] = Field(default_factory=dict, max_length=50)
    port: int | None = Field(default=None, ge=1, le=65535)
    start_command: Annotated[str, StringConstraints(min_length=1, max_length=8192)] | None = None
    workdir: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = None
    region: RegionNames | None = None
    policy: PolicyRequest = PolicyRequest()


class ActivityRequest(RequestModel):
    """Somebody did something (intent), a command still runs (work), or somebody looks (passive)."""

    kind: ActivityName = "intent"
    source: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]{1,64}$")] = "api"
    page_view: bool = False


class ExtendRequest(RequestModel):
    """How much longer the sandbox may run, counted from now."""

    by_ms: int = Field(default=3_600_000, ge=1000, le=86_400_000)


class MismatchRequest(RequestModel):
    """What a page had shown, and what proved it wrong."""

    shown: StateName
    actual: StateName | None = None
    evidence: Annotated[str, StringConstraints(pattern=r"^[^\x00]{0,500}$")] = ""


class BulkRequest(RequestModel):
    """One action for many projects. With `dryRun` only the count and the states are told."""

    action: Literal["pause", "wake", "kill", "verify", "extend"]
    projects: list[Name] = Field(min_length=1, max_length=500)
    dry_run: bool = False


class ReconcileRequest(RequestModel):
    """With `dryRun` differences are reported, and nothing is written or removed."""

    dry_run: bool = False


class ClientTokenRequest(RequestModel):
    """A short-lived token for a browser, good for one owner only."""

    project: Name
    kind: Literal["project", "job", "session"] = "project"
    ttl_s: int | None = Field(default=None, ge=1)


class LoginRequest(RequestModel):
    """A key or a login code in exchange for a cookie that scripts cannot read: one of the two."""

    key: Annotated[str, StringConstraints(max_length=512)] = ""
    code: Annotated[str, StringConstraints(max_length=1024)] = ""

    @model_validator(mode="after")
    def _is_one_of_two(self) -> LoginRequest:
        if bool(self.key) == bool(self.code):
            raise ValueError("give either a key or a login code")
        return self


class SwitchesRequest(RequestModel):
    """Switches to turn, by the names they are shown under; those not named stay."""

    enforcer: bool | None = None
    reconciler: bool | None = None
    catch_up: bool | None = Field(default=None, alias="catch_up")
    webhooks: bool | None = None
    sse: bool | None = None
    legacy_verify: bool | None = Field(default=None, alias="legacy_verify")


class WebhookRequest(RequestModel):
    """Where the provider should send its events; empty means the configured public URL."""

    url: Annotated[str, StringConstraints(max_length=2048)] = ""


# What we answer.


class OwnerOut(ApiModel):
    kind: Literal["project", "job", "session", "pool"]
    id: str


class Waking(ApiModel):
    """A wake under way: which step, since when, and how long it usually takes in all."""

    step: str
    steps: list[str]
    started_at: datetime
    usual_ms: int | None


class Status(ApiModel):
    """One sandbox as it was at `asOf`. The words come from the server: show them as they are.

    `project` is the sandbox's address in every route: a project's id, or `job:…`, `session:…`.
    """

    id: str
    project: str
    owner: OwnerOut
    status: StateName
    version: int
    ready: bool
    label: str
    caption: str
    badge: BadgeName
    icon: str
    pulses: bool
    actions: list[str]
    poll_after_ms: int | None
    sandbox_url: str | None
    reason: str
    actor: str
    state_since: datetime
    as_of: datetime
    last_active_at: datetime
    last_active_class: ActivityName | None
    last_active_source: str | None
    passive_count: int
    last_passive_at: datetime | None
    idle_timeout_ms: int | None
    lifecycle_timeout_ms: int | None
    sleeps_at: datetime | None
    expires_at: datetime | None
    recreated: bool
    recreation_reason: str | None
    waking: Waking | None
    receipt: ReceiptOut | None
    paused_by_scheduler: bool
    last_verified_at: datetime | None
    verification_failures: int
    killed_at: datetime | None
    killed_reason: str | None
    generation: int
    instance_id: str | None
    provider: str
    region: str | None
    template: str | None
    port: int | None
    metadata: dict[str, str]
    created_at: datetime
    updated_at: datetime


class SandboxPage(ApiModel):
    items: list[Status]
    next_cursor: str | None


class ChangeOut(ApiModel):
    """One entry of the event log: what happened, why, and by whom."""

    seq: int
    at: datetime
    type: str
    project: str
    owner: OwnerOut
    version: int
    from_state: StateName | None
    to_state: StateName | None
    cause: str
    reason: str
    actor: str
    detail: dict[str, object]


class History(ApiModel):
    items: list[ChangeOut]
    next_cursor: str | None


class ExplanationOut(ApiModel):
    """Why the sandbox is as it is, what acts next, when, and what would prevent it."""

    project: str
    status: StateName
    since: datetime
    why: str
    actor: str
    last_active_at: datetime | None
    last_active_class: ActivityName | None
    last_active_source: str | None
    ignored_passive_count: int
    ignored_passive_at: datetime | None
    ignored_passive_source: str | None
    idle_timeout_ms: int | None
    idle_timeout_why: str
    idle_pauses: int
    early_pauses: int
    idle_tail_ms: int
    next_rule: str
    next_at: datetime | None
    prevented_by: list[str]
    as_of: datetime


class ActivityOut(ApiModel):
    """The activity was taken; it is written within a second."""

    accepted: bool
    kind: ActivityName


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


class DeliveryOut(ApiModel):
    """One webhook delivery as it came in."""

    delivery_id: str | None
    event_id: str | None
    type: str | None
    instance_id: str | None
    received_at: datetime
    outcome: str
    lag_ms: int | None
    detail: str | None


class DeliveryPage(ApiModel):
    items: list[DeliveryOut]
    next_cursor: str | None


class LeakOut(ApiModel):
    """An instance that is no record's present one: a `leak` is removed, the others are shown."""

    instance_id: str
    provider: str
    region: str | None
    kind: Literal["leak", "unowned", "foreign"]
    owner: str | None
    first_seen_at: datetime
    last_seen_at: datetime
    sightings: int
    reason: str
    removed_at: datetime | None
    removed_by: str | None


class LeakPage(ApiModel):
    items: list[LeakOut]


class TaskState(ApiModel):
    """A background task, as its driver knows it."""

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
    """Whether this process can do its work; a provider that is down makes it degraded, not down."""

    status: Literal["ready", "degraded", "unready"]
    version: str
    database: str
    provider: str
    switches: dict[SwitchName, bool]
    tasks: list[TaskState]
    reasons: list[str]


class SwitchesOut(ApiModel):
    switches: dict[SwitchName, bool]


class Token(ApiModel):
    token: str
    expires_at: datetime


class Me(ApiModel):
    """Who the caller is, and what may be done with the key that was sent."""

    role: RoleName
    owner: OwnerOut | None


class RunReport(ApiModel):
    """One pass of a background task that was asked for by hand."""

    task: str
    ok: bool
    duration_s: float
    error: str | None
    detail: dict[str, object]


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


class WebhookReceipt(ApiModel):
    """What became of a delivery."""

    outcome: str
    event_id: str | None
    sandbox_id: str | None


class Alive(ApiModel):
    status: Literal["ok"]


class RegistrationOut(ApiModel):
    """A webhook at the provider."""

    id: str
    name: str
    url: str
    enabled: bool
    events: list[str]


class Registrations(ApiModel):
    items: list[RegistrationOut]


class StateTexts(ApiModel):
    """The state table, as the page must show it."""

    label: str
    caption: str
    badge: BadgeName
    icon: str
    pulses: bool
    actions: list[str]
    poll_after_ms: int | None


class PresentationOut(ApiModel):
    """The words of every state, and those shown while a wake is under way."""

    states: dict[StateName, StateTexts]
    waking: StateTexts
    job: dict[str, str]


class Problem(ApiModel):
    """Every error, on every route (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    hint: str
    request_id: str
