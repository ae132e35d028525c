"""The shapes on the wire: camelCase JSON, instants as ISO 8601 in UTC, durations in milliseconds.

`Status` is the one shape of a sandbox: the status route, the list, the streams and the answers to
every action carry it, so a client needs one reducer. A client keeps the answer with the greatest
`version` and drops the others.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sandkeeper.api.schemas.base import (
    ApiModel,
    Folder,
    Name,
    OwnerOut,
    ReceiptOut,
    RequestModel,
    StartCommand,
    StateName,
    Text,
    VariableName,
)
from sandkeeper.domain.tenant import TENANT_PATTERN

ActivityName = Literal["intent", "work", "passive"]
AppName = Literal["none", "starting", "answers", "silent", "crashed", "ended"]
CauseName = Literal["automatic", "on_request", "outside", "not_found", "not_created"]
IsolationName = Literal["bubblewrap", "gvisor", "provider"]
PriorityName = Literal["person", "session", "job", "pool", "warm_up"]
OverflowName = Literal["evict", "wait", "reject"]
BadgeName = Literal["green", "blue", "amber", "red", "orange", "gray", "yellow"]
RegionNames = Annotated[str, StringConstraints(max_length=500, pattern=r"^[\w.-]+(,[\w.-]+)*$")]
"""One region, or several separated by commas, the nearest first."""
TenantName = Annotated[str, StringConstraints(pattern=TENANT_PATTERN)]
"""Whom a sandbox is counted for."""


class PolicyRequest(RequestModel):
    """A sandbox's own policy; what is not given keeps the setting's default.

    With `idle` "adaptive" the idle timeout is learned between the two bounds. `appOnResume` "keep"
    leaves an app alone that still answers after a resume, "restart" always restarts it; the default
    is "keep", for jobs "restart". `filesOnResume` "after" compares the files of a resumed sandbox
    beside its use, "before" makes the wake wait for it; the default is "after".
    `keepSecretFiles` says whether `.env`, `.ssh`, `*.pem` and the like are kept with the other
    files; without it, the setting `keep_secret_files` applies. `previewAccess` says who may see the
    preview, `wakeOnVisit` whether a person who opens it wakes the sandbox, and `previewUse` which
    requests to it keep the sandbox awake; the default is "interaction". `priority` and `overflow`
    say how urgent it is when not all sandboxes can run, and whether it then makes room by pausing
    others ("evict"), waits in line or is refused.
    """

    idle: Literal["fixed", "adaptive"] | None = None
    idle_timeout_ms: int | None = Field(default=None, ge=1000, le=30 * 86_400_000)
    idle_timeout_min_ms: int | None = Field(default=None, ge=1000, le=30 * 86_400_000)
    idle_timeout_max_ms: int | None = Field(default=None, ge=1000, le=30 * 86_400_000)
    lifecycle_timeout_ms: int | None = Field(default=None, ge=1000, le=86_400_000)
    extend_while_in_use: bool | None = None
    work_max_ms: int | None = Field(default=None, ge=0, le=30 * 86_400_000)
    app_on_resume: Literal["keep", "restart"] | None = None
    files_on_resume: Literal["after", "before"] | None = None
    keep_secret_files: bool | None = None
    preview_access: Literal["private", "members", "public"] | None = None
    wake_on_visit: bool | None = None
    preview_use: Literal["none", "navigation", "interaction", "all"] | None = None
    priority: PriorityName | None = None
    overflow: OverflowName | None = None


class CreateSandboxRequest(RequestModel):
    """What a project's sandbox should be, used when it is created.

    `region` may name several with commas, the nearest first: the first one that is not out of order
    is taken. Without a `tenant` the one in its metadata is taken, under the name that the setting
    `tenant_metadata` gives, or `default`.
    """

    template: Name = "base"
    env: dict[VariableName, Text] = Field(default_factory=dict, max_length=200)
    metadata: dict[Name, Text] = Field(default_factory=dict, max_length=50)
    port: int | None = Field(default=None, ge=1, le=65535)
    start_command: StartCommand | None = None
    workdir: Folder | None = None
    region: RegionNames | None = None
    tenant: TenantName | None = None
    policy: PolicyRequest = Field(default_factory=PolicyRequest)


class AdoptRequestBody(RequestModel):
    """A running or paused instance at the provider that becomes the project's sandbox.

    `fromKeeper` names the keeper whose mark it carries, if that one no longer uses it. With
    `dryRun` everything is checked and nothing is written.
    """

    instance_id: Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,128}$")]
    port: int | None = Field(default=None, ge=1, le=65535)
    start_command: StartCommand | None = None
    workdir: Folder | None = None
    region: Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,64}$")] | None = None
    from_keeper: Name | None = None
    tenant: TenantName | None = None
    policy: PolicyRequest = Field(default_factory=PolicyRequest)
    dry_run: bool = False


class AdoptionOut(ApiModel):
    """What an adoption did: `adopted`, `known` (it had been before), or `would_adopt`."""

    outcome: Literal["adopted", "known", "would_adopt"]
    project: str
    instance_id: str
    status: StateName


class ActivityRequest(RequestModel):
    """A user did something (intent), a command still runs (work), or a user reads (passive)."""

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


class Waking(ApiModel):
    """A wake under way: which step, since when, and how long it usually takes in all.

    `position` is its place in line while it waits for a slot, and `waitMs` how long that takes, if
    it was measured.
    """

    step: str
    steps: list[str]
    started_at: datetime
    usual_ms: int | None
    position: int | None
    wait_ms: int | None


class StateTexts(ApiModel):
    """How a page shows a state. The server writes the texts: show them as they are."""

    label: str
    caption: str
    badge: BadgeName
    icon: str
    pulses: bool
    actions: list[str]
    poll_after_ms: int | None


class SummaryOut(ApiModel):
    """What is true now, for those who run sandboxes, since when, and what they can do about it.

    The texts of `StateTexts` are for the sandbox's own user. `operations` begins with the usual
    one.
    """

    word: str
    sentence: str
    since: datetime
    operations: list[Literal["wake", "restart", "pause", "extend", "verify", "kill"]]


class CompactStatus(StateTexts):
    """What a table shows of one sandbox: a part of its `Status`."""

    id: str
    project: str
    status: StateName
    summary: SummaryOut
    version: int
    ready: bool
    sandbox_url: str | None
    """The provider's address of the app, while the sandbox runs; it changes with the instance."""
    preview_url: str | None
    """The gateway's address of the app, which stays; None without a port or a gateway."""
    reason: str
    last_active_at: datetime
    last_active_class: ActivityName | None
    sleeps_at: datetime | None
    waking: Waking | None
    provider: str
    region: str | None
    template: str | None
    tenant: str
    state_since: datetime
    created_at: datetime


class Status(CompactStatus):
    """One sandbox as it was at `asOf`, with the texts of its state.

    `project` is the sandbox's address in every route: a project's id, or `job:…`, `session:…`. A
    field with the name of an attribute of the record shows that attribute (`render_status`).
    """

    owner: OwnerOut
    app: AppName | None
    """How the app of a running sandbox does, seen from outside."""
    cause: CauseName
    """Who brought the sandbox into its state."""
    provider_down_since: datetime | None
    actor: str
    as_of: datetime
    last_active_source: str | None
    passive_count: int
    last_passive_at: datetime | None
    idle_timeout_ms: int | None
    lifecycle_timeout_ms: int | None
    expires_at: datetime | None
    recreated: bool
    recreation_reason: str | None
    receipt: ReceiptOut | None
    paused_by_scheduler: bool
    last_verified_at: datetime | None
    last_webhook_received_at: datetime | None
    verification_failures: int
    killed_at: datetime | None
    killed_reason: str | None
    generation: int
    instance_id: str | None
    isolation: IsolationName | None
    """What isolates the instance; `provider` is any other than our own engine."""
    port: int | None
    metadata: dict[str, str]
    updated_at: datetime


class SandboxPage(ApiModel):
    """With `fields=compact` each item has only the fields of `CompactStatus`."""

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


class LeaseHolderOut(ApiModel):
    """A lease that keeps the sandbox awake, and its holder."""

    id: str
    holder: str
    until: datetime


class ExplanationOut(ApiModel):
    """Why the sandbox is as it is, what acts next, when, and what would prevent it."""

    project: str
    status: StateName
    label: str
    caption: str
    since: datetime
    why: str
    actor: str
    last_active_at: datetime
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
    work: str | None
    as_of: datetime
    leases: list[LeaseHolderOut]
    last_failure: str | None
    """Why the last act of the keeper failed, such as an idle pause, if that was in this state."""
    last_failure_at: datetime | None
    files: str | None
    """Why its files are not watched for changes, and how they are saved instead."""


class ActivityOut(ApiModel):
    """The activity was accepted; it is written within a second."""

    accepted: bool
    kind: ActivityName
