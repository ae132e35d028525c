"""Jobs: builds of a host application, each with its own sandbox and its own lifecycle.

A job that is ready stays ready while its sandbox sleeps: ``sandbox_paused`` says only that, and
only when the pause really happened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from sandkeeper.domain.owner import Owner, OwnerKind


class JobStatus(StrEnum):
    """The status of a job."""

    BUILDING = "building"
    """The build is in progress. → READY, FAILED"""
    READY = "ready"
    """Built; its files are saved and its sandbox sleeps until the result is opened. → FAILED"""
    FAILED = "failed"
    """The build ended without a result. → BUILDING by a rebuild"""


STAGES = {
    JobStatus.BUILDING: "Building your app…",
    JobStatus.READY: "Ready",
    JobStatus.FAILED: "Build failed",
}


@dataclass(frozen=True, slots=True)
class Job:
    """One job. ``pause_note`` says why a ready job's sandbox was not paused."""

    id: str
    created_at: datetime
    updated_at: datetime
    status: JobStatus = JobStatus.BUILDING
    stage_label: str = STAGES[JobStatus.BUILDING]
    build_version: str | None = None
    debug_id: str | None = None
    error_message: str | None = None
    pause_note: str | None = None

    @property
    def owner(self) -> Owner:
        """Return the owner of the job's sandbox."""
        return Owner(OwnerKind.JOB, self.id)

    def evolve(self, **changes: object) -> Job:
        """Return a copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]  # Fields vary in type.


class RebuildStatus(StrEnum):
    """The progress of a rebuild. Each transition is written before the next step begins."""

    CONFIRMED = "confirmed"
    """The owner agreed to the cost; the credit is requested. → CHARGED, REFUSED"""
    CHARGED = "charged"
    """The host application took the credit. → DONE, FAILED"""
    DONE = "done"
    """The job runs again from its saved files."""
    REFUSED = "refused"
    """The host application granted no credit; nothing was changed."""
    FAILED = "failed"
    """The credit was taken and the sandbox did not start; a wake tries again at no cost."""

    @property
    def is_over(self) -> bool:
        return self not in (RebuildStatus.CONFIRMED, RebuildStatus.CHARGED)


@dataclass(frozen=True, slots=True)
class Rebuild:
    """One rebuild of a job. Its id is the key under which the credit is charged once."""

    id: str
    job_id: str
    actor: str
    created_at: datetime
    updated_at: datetime
    due_at: datetime
    status: RebuildStatus = RebuildStatus.CONFIRMED
    wake_id: str | None = None
    error_code: str | None = None
    error: str | None = None

    def evolve(self, **changes: object) -> Rebuild:
        """Return a copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]  # Fields vary in type.
