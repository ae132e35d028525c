"""The shapes of sessions, leases and pools on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sandkeeper.api.schemas.base import (
    NO_NUL,
    ApiModel,
    Name,
    PlainModel,
    RequestModel,
    Text,
    VariableName,
)
from sandkeeper.api.schemas.sandboxes import RegionNames, Status, TenantName

KindName = Literal["execution", "desktop"]
AcquireSourceName = Literal["reused", "woken", "replaced", "pool", "created"]
# Longer ones reach the domain, which says what is wrong with them in its own words.
Id = Annotated[str, StringConstraints(max_length=100_000)]
TemplateName = Annotated[str, StringConstraints(min_length=1, max_length=120, pattern=NO_NUL)]
LeaseId = Annotated[str, StringConstraints(pattern=r"^le-[0-9a-f]{1,64}$")]


class AcquireSessionRequest(RequestModel):
    """Whose sandbox is wanted. What follows the kind matters only when one is made."""

    user_id: Id
    task_id: Id | None = None
    conversation_id: Id | None = None
    kind: KindName = "execution"
    template: TemplateName | None = None
    env: dict[VariableName, Text] = Field(default_factory=dict, max_length=200)
    metadata: dict[Name, Text] = Field(default_factory=dict, max_length=50)
    region: RegionNames | None = None
    tenant: TenantName | None = None
    idle: Literal["fixed", "adaptive"] | None = None
    idle_timeout_ms: int | None = Field(default=None, ge=1000, le=30 * 86_400_000)
    on_idle: Literal["kill", "pause"] | None = None
    shared: bool = False
    holder: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]{1,64}$")] = "client"
    lease_ms: int | None = Field(default=None, ge=1000, le=3_600_000)


class LeaseReference(RequestModel):
    """The lease that the caller holds, if any."""

    lease_id: LeaseId | None = None


class TransferRequest(RequestModel):
    """The conversation of the same user that gets the sandbox."""

    task_id: Id | None = None
    conversation_id: Id | None = None


class LeaseRequest(RequestModel):
    """Who wants to work in the sandbox."""

    holder: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]{1,64}$")] = "client"


class RenewRequest(RequestModel):
    """For how long from now; without it, as the settings say."""

    lease_ms: int | None = Field(default=None, ge=1000, le=3_600_000)


class PoolRequest(RequestModel):
    """How many warm sandboxes of a template there should be."""

    template: TemplateName
    target: int = Field(ge=0, le=1000)


class LeaseOut(ApiModel):
    """Renew it before `until`, best every `renewAfterMs`; then the sandbox is never idle."""

    id: str
    holder: str
    until: datetime
    renew_after_ms: int


class SdkConnection(ApiModel):
    """All that the official SDK needs to reach the sandbox itself; no account's key is in it."""

    instance_id: str
    api_url: str
    sandbox_url: str | None
    domain: str
    envd_version: str
    access_token: str | None


class SessionOut(ApiModel):
    id: str
    key: str
    kind: KindName
    user_id: str
    task_id: str
    shared: bool
    workdir: str
    idle_timeout_ms: int
    created_at: datetime
    last_used_at: datetime
    idle_at: datetime
    uses: int
    sandbox: Status | None


class SessionAcquired(SessionOut):
    """A session with a sandbox that works, held by a lease."""

    source: AcquireSourceName
    task_id_source: Literal["task", "conversation", "generated"]
    code_timeout_ms: int
    lease: LeaseOut
    connection: SdkConnection


class SessionReleased(SessionOut):
    """A session whose lease was released, and the leases that others still hold on its sandbox."""

    leases: list[LeaseOut]


class SessionPage(ApiModel):
    items: list[SessionOut]
    next_cursor: str | None


class Leased(ApiModel):
    """A lease on a sandbox, and how to reach it."""

    lease: LeaseOut
    sandbox: Status
    connection: SdkConnection


class StreamOut(ApiModel):
    """A desktop's live view. Anyone with the address can watch and use the desktop."""

    running: bool
    url: str | None


class Counts(PlainModel):
    """Named as the callers of old know them, and not in camelCase."""

    active_sessions: int
    total_created: int
    total_cleaned: int
    total_reused: int
    health_check_failures: int


class SandboxMetrics(PlainModel):
    """By kind, and in total."""

    execution: Counts
    desktop: Counts
    totals: Counts


class PoolOut(ApiModel):
    template: str
    target: int
    ready: int
    starting: int
    hits: int
    misses: int
    hit_rate: float | None
    failures: int
    stopped: bool
    retry_at: datetime | None
    error: str


class PoolList(ApiModel):
    items: list[PoolOut]
