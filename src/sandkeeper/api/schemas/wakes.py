"""The shapes of wakes and jobs. Jobs speak snake_case, as the applications that have them do."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from sandkeeper.api.schemas.base import (
    NO_NUL,
    ApiModel,
    Folder,
    MethodName,
    Name,
    PlainModel,
    ReceiptOut,
    RequestModel,
    StartCommand,
    Text,
    VariableName,
)
from sandkeeper.api.schemas.sandboxes import PolicyRequest, RegionNames, TenantName

ErrorMessage = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=NO_NUL)]
JobId = Annotated[str, StringConstraints(pattern=r"^[\w.~-]{1,128}$")]


class WakeStepOut(ApiModel):
    """One step with its time; `tookMs` is null while it runs."""

    name: str
    attempt: int
    outcome: Literal["running", "done", "failed"]
    started_at: datetime
    took_ms: int | None
    detail: str


class WakeFailure(ApiModel):
    """Why a wake failed."""

    code: str
    message: str


class WakeOut(ApiModel):
    """One wake: under way, or how it ended."""

    id: str
    project: str
    status: Literal["running", "succeeded", "failed"]
    method: MethodName | None
    attempt: int
    step: str | None
    steps: list[WakeStepOut]
    started_at: datetime
    finished_at: datetime | None
    elapsed_ms: int
    usual_ms: int | None
    receipt: ReceiptOut | None
    error: WakeFailure | None


class WarmResult(ApiModel):
    """What a request for a warm-up led to, and why."""

    project: str
    result: Literal["started", "under_way", "awake", "refused"]
    reason: str


class AppLogOut(ApiModel):
    """The app's last lines, oldest first. `exitCode` is null while it runs."""

    lines: list[str]
    note: str
    """Why there are no lines; empty if there are."""
    exit_code: int | None
    ready: bool


class JobShape(PlainModel):
    """What every shape of a job shares."""

    model_config = ConfigDict(extra="forbid")


class CreateJobRequest(JobShape):
    """A new job and what its sandbox should be."""

    job_id: JobId | None = None
    template: Name = "base"
    env: dict[VariableName, Text] = Field(default_factory=dict, max_length=200)
    metadata: dict[Name, Text] = Field(default_factory=dict, max_length=50)
    port: int | None = Field(default=3000, ge=1, le=65535)
    start_command: StartCommand | None = None
    workspace_path: Folder | None = None
    region: RegionNames | None = None
    tenant: TenantName | None = None
    stage_label: Name | None = None
    build_version: Name | None = None
    debug_id: Name | None = None
    policy: PolicyRequest = Field(default_factory=PolicyRequest)


class UpdateJobRequest(JobShape):
    """Build progress reported by the host application; an `error_message` makes the job failed."""

    stage_label: Name | None = None
    build_version: Name | None = None
    debug_id: Name | None = None
    error_message: ErrorMessage | None = None


class RebuildRequest(RequestModel):
    """Without a confirmation only the cost is returned; with one, the job is rebuilt."""

    confirmation: Annotated[str, StringConstraints(max_length=200)] | None = None


class JobOut(JobShape):
    """A job with its sandbox. `sandbox_paused` is true only when the pause truly happened."""

    job_id: str
    status: Literal["building", "ready", "failed"]
    stage_label: str
    preview_url: str | None
    build_version: str | None
    error_message: str | None
    debug_id: str | None
    sandbox_id: str | None
    sandbox_state: str | None
    sandbox_ready: bool
    sandbox_expires_at: datetime | None
    sandbox_paused: bool
    pause_note: str | None
    created_at: datetime
    updated_at: datetime


class Dashboard(JobShape):
    """Jobs, newest first."""

    jobs: list[JobOut]
    next_cursor: str | None


class Snapshot(JobShape):
    """Whether the job's sandbox sleeps now; if not, `error_type` says why."""

    job_id: str
    paused: bool
    error_type: str | None


class Resumed(JobShape):
    """Where the preview is."""

    preview_url: str | None
    sandbox_id: str | None


class Rebuilt(JobShape):
    """The question (`confirmation` to be sent back), or the rebuild and the job after it."""

    message: str
    credits: int
    confirmation: str | None
    expires_at: datetime | None
    rebuild_id: str | None
    rebuild_status: str | None
    job: JobOut | None
